"""Files → documents, as the first step of a datatrove pipeline. Says by file and line what cannot be read.

Parquet, Arrow and Hub datasets go through datatrove's readers. Those for lines log a broken line and lose its
number, know no tabs, and hold a line of any length in memory: ours name it, count it and stay flat.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.io import DataFolder
from datatrove.pipeline.readers import IpcReader, ParquetReader
from datatrove.pipeline.readers.base import BaseReader

from latemask.ground.errors import UserError
from latemask.text.lines import LONGEST_LINE, Line, Section, csv_rows, cut, open_arrow, paragraphs, read_lines, unpacked
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
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise  # it was not reading: a file unpacked aside, or the note of how far we are
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
                try:
                    record = json.loads(line.text)
                except (ValueError, RecursionError):
                    self.problems.add(line.where, "not JSON")
                    continue
                text = record.get(self.text_key) if isinstance(record, dict) else None
                yield from self._usable(line.where, text)

    def _csv(self, lines: Iterator[Line], source: Source) -> Iterator[str]:
        rows = csv_rows(lines, source)
        _, columns = next(rows, (0, []))
        column = _column(columns, self.text_key, source)
        for number, row in rows:
            if row:
                yield from self._usable(f"{source.label}:{number}", row[column] if column < len(row) else None)

    def _usable(self, where: str, value: Any) -> Iterator[str]:
        problem, text = checked(value, self.text_key)
        if problem:
            self.problems.add(where, problem)
        else:
            yield text

    def _columnar(self, piece: Piece) -> Iterator[str]:
        from pyarrow import parquet

        source = piece.source
        with _seekable(source) as (folder, name):
            adapter = counting_adapter(self.text_key, self.problems, source.label)
            common: dict[str, Any] = {"adapter": adapter, "text_key": self.text_key}
            reader: Any
            with folder.open(name, "rb") as file:
                if source.format == "parquet":
                    metadata = parquet.read_metadata(file)
                    names, rows = metadata.schema.to_arrow_schema().names, metadata.num_rows
                    reader = ParquetReader(folder, read_metadata=False, **common)
                else:
                    table, is_stream = open_arrow(file)
                    names, rows = table.schema.names, 0
                    reader = IpcReader(folder, stream=is_stream, **common)
            _column(list(names), self.text_key, source)
            for number, document in enumerate(reader.read_file(name)):
                yield document.text
                self.meter.show(piece.size * number // rows if rows else 0)


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


def _column(columns: list[str], wanted: str, source: Source) -> int:
    if wanted not in columns:
        raise UserError(
            f"{source.label}: no column '{wanted}'; it has {', '.join(map(repr, columns[:10])) or 'none'}. "
            "Say which holds the text: --text-field"
        )
    return columns.index(wanted)


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
