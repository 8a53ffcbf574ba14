"""A file → its columns, by name, and where each row stands: CSV, TSV, JSONL, Parquet and Arrow, plain or compressed.

CoNLL files → sentences: a word and its tag in every line, an empty line between sentences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import sha256_of
from latemask.text.lines import LONGEST_LINE, Line, Row, csv_rows, open_arrow, read_lines, unpacked
from latemask.text.sources import EXTENSIONS, Piece, Source, explain, find_sources, format_of

_READ = ("csv", "tsv", "jsonl", "parquet", "arrow")
_CONLL_FORMAT = "txt"  # whatever the ending is: .conll, .bio, .iob2, .txt, .tsv
_CONLL_SHAPE = "CoNLL has a word and its tag in every line"
_CONLLU_COLUMNS = 10


@dataclass(frozen=True)
class TableFile:
    """The rows of a file."""

    source: Source
    columns: list[str]
    rows: list[list[Any]]
    numbers: list[int]
    """Where each row ends: its line, or its number in a file that has no lines."""

    def where(self, row: int) -> str:
        """Return the file and the line of a row, for a message."""
        return place(self.source, self.numbers[row])

    def values(self, name: str, option: str) -> list[Any]:
        """Return a column, or say which ones there are."""
        if name not in self.columns:
            there = ", ".join(f"'{printable(column)}'" for column in self.columns[:20]) or "none"
            raise UserError(f"{self.source.label}: no column '{name}' ({option}); it has {there}")
        if self.columns.count(name) > 1:
            raise UserError(f"{self.source.label}: the column '{name}' is there twice")
        column = self.columns.index(name)
        return [row[column] for row in self.rows]

    def texts(self, name: str, option: str) -> list[str]:
        """Return a column of texts; what is missing in it is empty."""
        return [self._text(value, name, row) for row, value in enumerate(self.values(name, option))]

    def _text(self, value: Any, name: str, row: int) -> str:
        if value is None or value != value:  # NaN is what tables made of gaps hold
            return ""
        if isinstance(value, (list, dict, bytes)):
            raise UserError(f"{self.where(row)}: '{name}' is a {type(value).__name__}, not a text")
        self.refuse_half_characters(str(value), row)
        return str(value)

    def refuse_half_characters(self, text: str, row: int) -> None:
        """JSON can spell half a surrogate pair, which is no text."""
        if text != text.encode("utf-8", "ignore").decode("utf-8"):
            raise UserError(f"{self.where(row)}: half a surrogate pair in it, which is no text")


def place(source: Source, number: int) -> str:
    """Return `file:line`, or the row where a file has no lines."""
    return f"{source.label}: row {number}" if source.format in ("parquet", "arrow") else f"{source.label}:{number}"


def open_source(path: str | Path, format: str | None = None) -> Source:
    """Return one file by its path or URL."""
    if Path(path).is_dir():
        raise UserError(f"{printable(str(path))} is a folder; give one file")
    if format is None and Path(path).is_file() and format_of(str(path))[0] is None:
        raise UserError(f"{printable(str(path))}: unknown format; a file here ends in {', '.join(EXTENSIONS)}")
    (source, *more) = find_sources([path], format)
    if more:
        raise UserError(f"{path} means {len(more) + 1} files; give one")
    return source


def checksum(source: Source) -> str | None:
    """Return the SHA-256 of a file of this machine."""
    return sha256_of(Path(source.location)) if source.is_local else None


def read_table(path: str | Path) -> TableFile:
    """Read a file with a header (or, in JSONL, names in every line)."""
    source = open_source(path)
    if source.format not in _READ:
        raise UserError(f"{source.label}: a table is needed: {', '.join(_READ)}, by the file's ending")
    try:
        table = _read(source)
    except UserError:
        raise
    except Exception as error:  # decompressors and pyarrow have kinds of their own
        raise explain(error, source) from None
    if not table.rows:
        raise UserError(f"{source.label}: holds no rows")
    return table


def _read(source: Source) -> TableFile:
    if source.format in ("parquet", "arrow"):
        return _columnar(source)
    lines = whole_lines(source)
    if source.format == "jsonl":
        return _jsonl(lines, source)
    rows = split_at_tabs(lines) if source.format == "tsv" else (row for row in csv_rows(lines, source) if row[1])
    return _with_header(source, rows)


def whole_lines(source: Source) -> Iterator[Line]:
    """Yield the lines of a file; one that is longer than any text is an error."""
    for line in read_lines(Piece(source)):
        if not line.is_whole:
            raise UserError(f"{line.where}: longer than {LONGEST_LINE:,} bytes")
        yield line


def split_at_tabs(lines: Iterator[Line]) -> Iterator[Row]:
    """Yield (line number, fields): TSV as IANA defines it and GLUE uses it; a quote is a character."""
    for number, line in enumerate(lines, 1):
        if text := line.text.rstrip("\r\n"):
            yield number, text.split("\t")


def _with_header(source: Source, rows: Iterator[Row]) -> TableFile:
    _, columns = next(rows, (0, []))
    table = TableFile(source, columns, [], [])
    for number, row in rows:
        if len(row) != len(columns):
            hint = "; a comma in a text needs quotes around it" if source.format == "csv" else ""
            raise UserError(f"{place(source, number)}: {len(row)} fields, and the header has {len(columns)}{hint}")
        table.rows.append(row)
        table.numbers.append(number)
    return table


def _jsonl(lines: Iterator[Line], source: Source) -> TableFile:
    records, numbers = [], []
    for number, line in enumerate(lines, 1):
        if not line.text.strip():
            continue
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UserError(f"{place(source, number)}: not a JSON object; one is needed in every line")
        records.append(record)
        numbers.append(number)
    columns = list(dict.fromkeys(name for record in records for name in record))
    return TableFile(source, columns, [[record.get(name) for name in columns] for record in records], numbers)


def _columnar(source: Source) -> TableFile:
    import pyarrow
    from pyarrow import parquet

    with source.open() as raw, unpacked(raw, source.compression) as file:
        data = pyarrow.BufferReader(file.read())
    table = parquet.read_table(data) if source.format == "parquet" else open_arrow(data)[0].read_all()
    values = [column.to_pylist() for column in table.columns]
    rows = [list(row) for row in zip(*values, strict=True)]
    return TableFile(source, list(table.column_names), rows, list(range(1, len(rows) + 1)))


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
    source = open_source(path, _CONLL_FORMAT)
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
    source = open_source(path, _CONLL_FORMAT)
    column = _column(word, "--text", 0)
    sentences = list(_sentences(source))
    for number, fields in (row for sentence in sentences for row in sentence):
        if column >= len(fields) or not fields[column]:
            raise UserError(f"{source.label}:{number}: no word in column {column + 1}")
    return [[fields[column] for _, fields in sentence] for sentence in sentences]


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
        raise UserError(f"{source.label}: holds no sentences; {_CONLL_SHAPE}")


def _fields(line: str, has_tabs: bool) -> list[str]:
    """Split a line; nothing where it is a comment, or what CoNLL-U adds to the words of a sentence."""
    if not has_tabs:
        return line.split()
    if line.startswith("#") and "\t" not in line:
        return []
    fields = [field.strip() for field in line.split("\t")]
    return [] if len(fields) == _CONLLU_COLUMNS and not fields[0].isdigit() else fields


def _word_and_tag(fields: list[str], columns: tuple[int, int], where: str) -> tuple[str, str]:
    if len(fields) < 2:
        raise UserError(f"{where}: one column only; {_CONLL_SHAPE}")
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
