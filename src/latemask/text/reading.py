"""Files → documents, as the first step of a datatrove pipeline. Says by file and line what cannot be read.

Parquet, Arrow and Hub datasets go through datatrove's readers. Those for lines log a broken line and lose its
number, know no tabs, and hold a line of any length in memory: ours name it, count it and stay flat.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from datatrove.data import Document
from datatrove.io import DataFolder
from datatrove.pipeline.readers import IpcReader, ParquetReader
from datatrove.pipeline.readers.base import BaseReader

from latemask.ground.errors import UserError
from latemask.text.lines import LONGEST_LINE, Line, Section, cut, paragraphs, read_lines, unpacked
from latemask.text.progress import Meter
from latemask.text.sources import Groups, Piece, Source, explain

_FIRST_HASH = "hash of the first section"


@dataclass
class Problems:
    """Pieces of input that were skipped; with `strict` the first one is an error."""

    strict: bool = False
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        """Note one skipped piece, or stop at it."""
        message = f"{where}: {what}"
        if self.strict:
            raise UserError(f"{message} (without --strict it would be skipped)")
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(message)

    def first(self) -> str:
        """Return the first example, ready to append."""
        return f"; first problem: {self.examples[0]}" if self.examples else ""


class FilesReader(BaseReader):
    """The documents of files: a group of pieces for every task of datatrove."""

    name = "📚 latemask files"

    def __init__(
        self, groups: Iterable[list[Piece]], problems: Problems, meter: Meter | None = None, text_field: str = "text"
    ):
        super().__init__(text_key=text_field)
        self.groups = Groups(groups)
        self.problems = problems
        self.meter = meter or Meter()

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of group `rank`."""
        self.meter.start(rank)
        for piece in self.groups[rank]:
            is_empty = True
            for document in documents(self._sections(piece), f"{piece.source.path}/{piece.start}"):
                yield document
                is_empty = False
            if is_empty and piece.is_whole:
                if piece.source.named:
                    raise UserError(f"{piece.source.label}: holds no text{self.problems.first()}")
                self.problems.add(piece.source.label, "holds no text")
            self.meter.finish(piece.size)

    def _sections(self, piece: Piece) -> Iterator[Section]:
        try:
            for text, is_first in self._open(piece):
                yield from cut(text, is_first)
        except UserError:
            raise
        except Exception as error:  # decompressors, pyarrow and the clients of file systems have kinds of their own
            raise explain(error, piece.source) from error

    def _open(self, piece: Piece) -> Iterator[Section]:
        source = piece.source
        if source.format in ("parquet", "arrow"):
            return map(Section, self._columnar(piece))
        lines = read_lines(piece, lambda read: self.meter.show(min(read, piece.size)))
        if source.format == "txt":
            return paragraphs(lines, piece)
        if source.format == "jsonl":
            return map(Section, self._jsonl(itertools.takewhile(lambda line: line.start < piece.end, lines)))
        return map(Section, self._csv(lines, source))

    def _jsonl(self, lines: Iterator[Line]) -> Iterator[str]:
        for line in lines:
            if not line.is_whole:
                self.problems.add(line.where, f"longer than {LONGEST_LINE:,} bytes")
                while not next(lines, line._replace(is_whole=True)).is_whole:
                    pass
            elif line.text.strip():
                yield from self._usable(line.where, *_json_text(line.text, self.text_key))

    def _csv(self, lines: Iterator[Line], source: Source) -> Iterator[str]:
        csv.field_size_limit(LONGEST_LINE)
        # TSV as IANA defines it: no quoting, a quote is a character.
        dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if source.format == "tsv" else {}
        # Strict: a quote that is never closed would swallow the rest of the file without a word.
        rows = csv.reader((line.text for line in lines), strict=True, **dialect)
        try:
            column = _column(next(rows, []), self.text_key, source)
            for row in filter(None, rows):
                text = row[column] if column < len(row) else None
                yield from self._usable(f"{source.label}:{rows.line_num}", *checked(text, self.text_key))
        except csv.Error as error:
            raise UserError(f"{source.label}:{rows.line_num}: not {source.format.upper()} ({error})") from None

    def _usable(self, where: str, problem: str | None, text: str) -> Iterator[str]:
        if problem:
            self.problems.add(where, problem)
        else:
            yield text

    def _columnar(self, piece: Piece) -> Iterator[str]:
        source = piece.source
        with _seekable(source) as (folder, name):
            with folder.open(name, "rb") as file:
                table = _Columns.of(file, source.format)
            _column(table.columns, self.text_key, source)
            adapter = counting_adapter(self.text_key, self.problems, source.label)
            reader: Any = (
                ParquetReader(folder, adapter=adapter, text_key=self.text_key, read_metadata=False)
                if source.format == "parquet"
                else IpcReader(folder, adapter=adapter, text_key=self.text_key, stream=table.is_stream)
            )
            for number, document in enumerate(reader.read_file(name)):
                yield document.text
                self.meter.show(piece.size * number // table.rows if table.rows else 0)


def documents(sections: Iterable[Section], name: str) -> Iterator[Document]:
    """Yield the sections as datatrove knows documents; each knows the hash of the first of its document."""
    first = ""
    for number, (text, is_first) in enumerate(sections):
        first = text if is_first else first
        metadata = {} if is_first else {_FIRST_HASH: content_hash(first.encode("utf-8"))}
        yield Document(text=text, id=f"{name}/{number}", metadata=metadata)


def document_hash(section: Document, content: bytes) -> int:
    """Return 64 bits of the first section, given one and its content: all of a document goes to the same side."""
    return section.metadata[_FIRST_HASH] if _FIRST_HASH in section.metadata else content_hash(content)


def content_hash(content: bytes, purpose: bytes = b"") -> int:
    """Return 64 bits of a text: what becomes of it does not depend on order or on the file."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=purpose).digest(), "little")


def counting_adapter(text_field: str, problems: Problems, label: str) -> Callable[..., dict[str, Any]]:
    """Return datatrove's hook from a row to a document: a row without text is counted here and skipped there."""
    numbers = itertools.count(1)

    def adapt(_: Any, data: dict[str, Any], path: str, __: Any) -> dict[str, Any]:
        number = next(numbers)
        problem, text = checked(data.get(text_field), text_field)
        if problem:
            problems.add(f"{label}: row {number}", problem)
        return {"text": text, "id": f"{path}/{number}"}

    return adapt


@contextmanager
def _seekable(source: Source) -> Iterator[tuple[DataFolder, str]]:
    """Give (folder, name) of a file that can be read in any order; a compressed one is unpacked aside first."""
    if source.compression is None:
        parent, _, name = source.location.rpartition("/")
        yield DataFolder(parent or "/"), name
        return
    with tempfile.TemporaryDirectory(prefix="latemask-") as folder:
        with source.open() as raw, (Path(folder) / "unpacked").open("wb") as target:
            shutil.copyfileobj(unpacked(raw, source.compression), target)
        yield DataFolder(folder), "unpacked"


class _Columns(NamedTuple):
    """What a Parquet or Arrow file says of itself."""

    columns: list[str]
    rows: int | None
    is_stream: bool

    @classmethod
    def of(cls, file: Any, format: str) -> _Columns:
        from pyarrow import ipc, parquet

        if format == "parquet":
            metadata = parquet.read_metadata(file)
            return cls(list(metadata.schema.to_arrow_schema().names), metadata.num_rows, False)
        is_stream = file.read(6) != b"ARROW1"
        file.seek(0)
        return cls(list((ipc.open_stream if is_stream else ipc.open_file)(file).schema.names), None, is_stream)


def _column(columns: list[str], wanted: str, source: Source) -> int:
    if wanted not in columns:
        raise UserError(
            f"{source.label}: no column '{wanted}'; it has {', '.join(map(repr, columns[:10])) or 'none'}. "
            "Say which holds the text: --text-field"
        )
    return columns.index(wanted)


def _json_text(line: str, text_field: str) -> tuple[str | None, str]:
    """Return (what is wrong, the text) of one JSONL line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON", ""
    return checked(record.get(text_field) if isinstance(record, dict) else None, text_field)


def checked(text: Any, text_field: str) -> tuple[str | None, str]:
    """Return (what is wrong with a value, the text)."""
    if text is not None and not isinstance(text, str):
        return f"its '{text_field}' is {type(text).__name__}, not text", ""
    if not text or not text.strip():
        return f"no '{text_field}' in it", ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "half a surrogate pair in its text", ""
    return None, text
