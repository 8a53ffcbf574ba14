"""Minimal pairs: two sentences that differ in one thing, of which the first is right. Files → pairs.

Read as they are published: BLiMP's folder of JSONL, BabyLM's filtered one, or a table with `good` and `bad`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from latemask.evaluation.tables import TableFile, read_table
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest
from latemask.text.sources import format_of

# What each column is called, by us and by BLiMP.
_GOOD, _BAD = ("good", "sentence_good"), ("bad", "sentence_bad")
_TERM, _PARADIGM = ("term", "linguistics_term"), ("paradigm", "UID")
_READ = ("tsv", "csv", "jsonl")
_NO_TERM = "all"


@dataclass(frozen=True)
class MinimalPairs:
    """Pairs of sentences, each of one paradigm; every paradigm belongs to one term."""

    name: str
    good: list[str]
    bad: list[str]
    paradigms: list[tuple[str, str]]
    """Of each pair: (term, paradigm)."""

    def __len__(self) -> int:
        return len(self.good)

    @property
    def identity(self) -> str:
        """A checksum of what is asked, wherever it lies."""
        return json_digest([self.good, self.bad, self.paradigms])


def read_pairs(path: Path) -> MinimalPairs:
    """Read a file, or all tables of a folder."""
    if not path.exists():
        raise UserError(f"{printable(str(path))}: no such file or folder")
    tables = [read_table(file) for file in _files(path)]
    with_pairs = [table for table in tables if _column(table, _GOOD) and _column(table, _BAD)]
    if not with_pairs:
        there = ", ".join(f"'{printable(name)}'" for name in tables[0].columns[:20])
        raise UserError(f"{tables[0].source.label}: no columns 'good' and 'bad' (or BLiMP's names); it has {there}")
    for table in tables:
        if table not in with_pairs:
            say(f"{table.source.label}: left out, it has no columns 'good' and 'bad'")
    pairs = MinimalPairs(_stem(path), [], [], [])
    for table in with_pairs:
        _collect(table, pairs)
    if same := sum(good == bad for good, bad in zip(pairs.good, pairs.bad, strict=True)):
        say(f"{printable(str(path))}: {same:,} pairs are twice the same sentence; they count one half each")
    return pairs


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if found := [file for file in files if format_of(file.name)[0] in _READ]:
        return found
    raise UserError(f"{printable(str(path))}: no table in it ({', '.join(_READ)}, by the file's ending)")


def _collect(table: TableFile, pairs: MinimalPairs) -> None:
    sides = []
    for names in (_GOOD, _BAD):
        column = _column(table, names)
        assert column is not None
        sides.append(table.texts(column, f"'{names[0]}'"))
    for row, texts in enumerate(zip(*sides, strict=True)):
        if not all(text.strip() for text in texts):
            raise UserError(f"{table.where(row)}: one of the two sentences is missing")
    terms, paradigms = (_names(table, names) for names in (_TERM, _PARADIGM))
    pairs.good.extend(sides[0])
    pairs.bad.extend(sides[1])
    default = _stem(Path(table.source.location))
    pairs.paradigms.extend(
        (term or _NO_TERM, paradigm or default) for term, paradigm in zip(terms, paradigms, strict=True)
    )


def _names(table: TableFile, names: Iterable[str]) -> list[str]:
    column = _column(table, names)
    return table.texts(column, f"'{column}'") if column else [""] * len(table.rows)


def _column(table: TableFile, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in table.columns), None)


def _stem(path: Path) -> str:
    """Return a file's name without what says how it is written: blimp.tsv.gz is blimp."""
    return printable(path.resolve().name.split(".")[0]) or "pairs"
