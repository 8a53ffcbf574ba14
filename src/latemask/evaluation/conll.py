"""CoNLL files → sentences: a word and its tag in every line, an empty line between sentences. CoNLL-U among them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from latemask.evaluation.tables import checksum, open_source, whole_lines
from latemask.ground.console import printable
from latemask.ground.errors import UserError, nearest
from latemask.text.lines import Row
from latemask.text.sources import COMPRESSIONS

ENDINGS = (".conllu", ".conll", ".iob", ".iob2", ".bio", ".bioes")
_FORMAT = "txt"  # whatever the ending is
_SHAPE = "CoNLL has a word and its tag in every line"
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_ID = re.compile(r"\d+([-.]\d+)?")  # a word, a range of words, an empty node


@dataclass(frozen=True)
class Tagged:
    """The sentences of a file."""

    source: str
    checksum: str | None
    words: list[list[str]]
    tags: list[list[str]]
    numbers: list[list[int]]
    """The line of every word."""


def is_conll(path: str | Path) -> bool:
    """Whether a file's name says that it is of words and tags."""
    name = str(path).lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return name.endswith(ENDINGS)


def read_conll(path: str | Path, word: str | None = None, tag: str | None = None) -> Tagged:
    """Read sentences; `word` and `tag` are columns, as numbers from 1 or by CoNLL-U's names.

    By default the first and the last one; of CoNLL-U the form and the universal part of speech.
    """
    source = open_source(path, _FORMAT)
    sentences, is_conllu = _sentences((line.text for line in whole_lines(source)), source.label)
    columns = _column(word, "--text", is_conllu, 0, "form"), _column(tag, "--label", is_conllu, -1, "upos")
    found = Tagged(source.label, checksum(source), [], [], [])
    for sentence in sentences:
        pairs = [_word_and_tag(fields, columns, f"{found.source}:{number}") for number, fields in sentence]
        found.words.append([word for word, _ in pairs])
        found.tags.append([tag for _, tag in pairs])
        found.numbers.append([number for number, _ in sentence])
    if not found.words:
        raise UserError(f"{source.label}: holds no sentences; {_SHAPE}")
    return found


def read_words(path: str | Path, word: str | None = None) -> list[list[str]]:
    """Read sentences without tags: a word in every line, alone or in the column `word`."""
    source = open_source(path, _FORMAT)
    return words_of((line.text for line in whole_lines(source)), source.label, word)


def words_of(lines: Iterable[str], label: str, word: str | None = None, before: int = 0) -> list[list[str]]:
    """Return the words of each sentence; messages call the lines `label`, of which `before` were read already."""
    sentences, is_conllu = _sentences(lines, label, before)
    column = _column(word, "--text", is_conllu, 0, "form")
    for number, fields in (row for sentence in sentences for row in sentence):
        if column >= len(fields) or not fields[column]:
            raise UserError(f"{label}:{number}: no word in column {column + 1}")
    return [[fields[column] for _, fields in sentence] for sentence in sentences]


def _sentences(lines: Iterable[str], label: str, before: int = 0) -> tuple[list[list[Row]], bool]:
    """Return each sentence as (line number, fields) of its words, and whether they are CoNLL-U's."""
    given = [line.strip("\r\n") for line in lines]
    has_tabs = any("\t" in line for line in given)
    is_conllu = has_tabs and _is_conllu(given)
    sentences: list[list[Row]] = [[]]
    for number, line in enumerate(given, before + 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
        elif fields := _fields(line, has_tabs, is_conllu, f"{label}:{number}"):
            sentences[-1].append((number, fields))
    return [sentence for sentence in sentences if sentence], is_conllu


def _is_conllu(lines: list[str]) -> bool:
    """Whether the first line of a word has ten columns, a number in front."""
    first = next((line for line in lines if "\t" in line and not line.startswith("#")), "").split("\t")
    return len(first) == len(_CONLLU) and bool(_CONLLU_ID.fullmatch(first[0].strip()))


def _fields(line: str, has_tabs: bool, is_conllu: bool, where: str) -> list[str]:
    """Split a line; nothing where it is a comment, or what CoNLL-U adds to the words of a sentence."""
    if not has_tabs:
        return line.split()
    if line.startswith("#") and (is_conllu or "\t" not in line):
        return []
    fields = [field.strip() for field in line.split("\t")]
    if not is_conllu:
        return fields
    if len(fields) != len(_CONLLU) or not _CONLLU_ID.fullmatch(fields[0]):
        raise UserError(f"{where}: not a line of CoNLL-U, which has {len(_CONLLU)} columns and a number in the first")
    return fields if fields[0].isdigit() else []


def _word_and_tag(fields: list[str], columns: tuple[int, int], where: str) -> tuple[str, str]:
    if len(fields) < 2:
        raise UserError(f"{where}: one column only; {_SHAPE}")
    if max(columns) >= len(fields):
        raise UserError(f"{where}: {len(fields)} columns; there is no column {max(columns) + 1}")
    word, tag = fields[columns[0]], fields[columns[1]]
    if not word or not tag:
        raise UserError(f"{where}: no {'tag' if word else 'word'}")
    return word, tag


def _column(given: str | None, option: str, is_conllu: bool, default: int, name: str) -> int:
    """Return the number of a column from 0, or -1 for the last; `name` is CoNLL-U's default."""
    if given is None and not is_conllu:
        return default
    wanted = (given or name).lower()
    if is_conllu and wanted in _CONLLU:
        return _CONLLU.index(wanted)
    if not wanted.isdigit() or wanted == "0":
        if is_conllu:
            raise UserError(f"{option} {printable(wanted)}: no column of CoNLL-U{nearest(wanted, _CONLLU)}")
        raise UserError(f"{option} {printable(wanted)}: CoNLL files have no header; give the column's number, from 1")
    return int(wanted) - 1
