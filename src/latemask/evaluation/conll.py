"""CoNLL files: a word and its tag in every line, an empty line between sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latemask.evaluation.tables import checksum, open_source, whole_lines
from latemask.ground.errors import UserError
from latemask.text.sources import Source

_CONLLU_COLUMNS = 10
_FORMAT = "txt"  # whatever the ending is: .conll, .bio, .iob2, .txt, .tsv
_SHAPE = "CoNLL has a word and its tag in every line"
Row = tuple[int, list[str]]


@dataclass(frozen=True)
class Tagged:
    """The sentences of a file."""

    source: str
    checksum: str | None
    words: list[list[str]]
    tags: list[list[str]]
    numbers: list[list[int]]
    """The line of every word."""


def read_conll(path: str | Path, word: str | None = None, tag: str | None = None) -> Tagged:
    """Read sentences; `word` and `tag` are numbers of columns from 1, by default the first and the last one."""
    source = open_source(path, _FORMAT)
    columns = _column(word, "--text", 0), _column(tag, "--label", -1)
    found = Tagged(source.label, checksum(source), [], [], [])
    for sentence in _sentences(source):
        pairs = [_word_and_tag(fields, columns, f"{source.label}:{number}") for number, fields in sentence]
        found.words.append([word for word, _ in pairs])
        found.tags.append([tag for _, tag in pairs])
        found.numbers.append([number for number, _ in sentence])
    return found


def read_words(path: str | Path, word: str | None = None) -> list[list[str]]:
    """Read sentences without tags: a word in every line, alone or in the column `word`."""
    source = open_source(path, _FORMAT)
    column = _column(word, "--text", 0)
    return [[_word(row, column, source) for row in sentence] for sentence in _sentences(source)]


def _sentences(source: Source) -> Iterator[list[Row]]:
    """Yield each sentence as (line number, fields) of its words."""
    lines = [line.text.strip("\r\n") for line in whole_lines(source)]
    has_tabs = any("\t" in line for line in lines)
    sentence: list[Row] = []
    count = 0
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if sentence:
                yield sentence
                count += 1
            sentence = []
        elif fields := _fields(line, has_tabs):
            sentence.append((number, fields))
    if not count:
        raise UserError(f"{source.label}: holds no sentences; {_SHAPE}")


def _fields(line: str, has_tabs: bool) -> list[str]:
    """Split a line; nothing where it is a comment, or what CoNLL-U adds to the words of a sentence."""
    if not has_tabs:
        return line.split()
    if line.startswith("#") and "\t" not in line:
        return []
    fields = [field.strip() for field in line.split("\t")]
    return [] if len(fields) == _CONLLU_COLUMNS and not fields[0].isdigit() else fields


def _word(row: Row, column: int, source: Source) -> str:
    number, fields = row
    if column >= len(fields) or not fields[column]:
        raise UserError(f"{source.label}:{number}: no word in column {column + 1}")
    return fields[column]


def _word_and_tag(fields: list[str], columns: tuple[int, int], where: str) -> tuple[str, str]:
    if len(fields) < 2:
        raise UserError(f"{where}: one column only; {_SHAPE}")
    if max(columns) >= len(fields):
        raise UserError(f"{where}: {len(fields)} columns; there is no column {max(columns) + 1}")
    word, tag = fields[columns[0]], fields[columns[1]]
    if not word or not tag:
        raise UserError(f"{where}: no {'tag' if word else 'word'}")
    return word, tag


def _column(given: str | None, option: str, default: int) -> int:
    if given is None:
        return default
    if not given.isdigit() or given == "0":
        raise UserError(f"{option} {given}: CoNLL files have no header; give the column's number, from 1")
    return int(given) - 1
