"""A file → its columns, by name, and where each row stands: CSV, TSV, JSONL, Parquet and Arrow, plain or compressed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import sha256_of
from latemask.text.lines import LONGEST_LINE, Line, Row, csv_rows, open_arrow, read_lines, unpacked
from latemask.text.sources import EXTENSIONS, Piece, Source, explain, find_sources, format_of

_READ = ("csv", "tsv", "jsonl", "parquet", "arrow")
_DELIMITERS = ";\t|"  # what stands in CSV files instead of a comma
_SPELLED = {"tab": "\t", "\\t": "\t"}  # what a shell makes hard to type


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
            hint = (
                "; --delimiter says what separates them" if any(set(c) & set(_DELIMITERS) for c in self.columns) else ""
            )
            raise UserError(f"{self.source.label}: no column '{printable(name)}' ({option}); it has {there}{hint}")
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


def read_table(path: str | Path, delimiter: str | None = None) -> TableFile:
    """Read a file with a header (or, in JSONL, names in every line); `delimiter` stands between CSV's fields."""
    source = open_source(path)
    if source.format not in _READ:
        raise UserError(f"{source.label}: a table is needed: {', '.join(_READ)}, by the file's ending")
    if delimiter is not None and source.format not in ("csv", "tsv"):
        raise UserError(f"{source.label}: --delimiter is for CSV and TSV files")
    try:
        table = _read(source, delimiter)
    except UserError:
        raise
    except Exception as error:  # decompressors and pyarrow have kinds of their own
        raise explain(error, source) from None
    if not table.rows:
        raise UserError(f"{source.label}: holds no rows")
    return table


def _read(source: Source, delimiter: str | None) -> TableFile:
    if source.format in ("parquet", "arrow"):
        return _columnar(source)
    lines = whole_lines(source)
    if source.format == "jsonl":
        return _jsonl(lines, source)
    delimiter = _one_character(delimiter)
    if source.format == "tsv" and delimiter in (None, "\t"):
        return _with_header(source, split_at_tabs(lines))
    first = next(lines, None)
    if first is None:
        return TableFile(source, [], [], [])
    delimiter = delimiter or _recognised(first.text, source)
    return _with_header(source, (row for row in csv_rows(chain([first], lines), source, delimiter) if row[1]))


def _one_character(delimiter: str | None) -> str | None:
    given = _SPELLED.get(delimiter or "", delimiter)
    if given is not None and (len(given) != 1 or given in '\r\n" '):
        raise UserError(f"--delimiter '{printable(given)}': one character, such as ; or | or tab")
    return given


def _recognised(header: str, source: Source) -> str:
    """Return what separates the fields: a comma, or what a header without commas has instead."""
    fields = {delimiter: len(next(csv.reader([header], delimiter=delimiter), [])) for delimiter in f",{_DELIMITERS}"}
    found = max(fields, key=lambda delimiter: fields[delimiter])
    if fields[","] > 1 or fields[found] < 2:
        return ","
    say(f"{source.label}: its fields are separated by '{printable(found)}' (if that is wrong, pass --delimiter)")
    return found


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
            hint = "; a text that holds the delimiter needs quotes around it" if source.format == "csv" else ""
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
