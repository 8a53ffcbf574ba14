"""Text files → lines → documents, in memory that does not grow with a line, a document or a file."""

from __future__ import annotations

import codecs
import csv
import io
import lzma
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from latemask.ground.errors import UserError
from latemask.text.sources import Piece, Source

LONGEST_LINE = 1 << 26  # bytes
LONGEST_DOCUMENT = 1 << 18  # characters; a longer one is cut to sections: memory stays flat, and all cores have work
_BUFFER = 1 << 20
_LINES_BETWEEN_REPORTS = 1000
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\v\b\x1b")
_BINARY_SHARE = 0.05  # a stray NUL is survived, a file full of control bytes is not text


Row = tuple[int, list[str]]
"""The number of a line, and its fields."""


class Line(NamedTuple):
    """One line, or a part of one that is too long."""

    text: str
    start: int
    """Offset of its first byte in the unpacked text."""
    where: str
    """The file, and the line's number; its byte where reading began in the middle of a file."""
    is_whole: bool


def unpacked(raw: Any, compression: str | None) -> io.BufferedReader:
    """Return what a compressed file holds; a truncated one raises at its end.

    pyarrow rather than fsspec's table: the latter takes a truncated .zst for a whole one.
    """
    raw = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw, _BUFFER)
    if compression is None or not raw.peek(1):  # an empty file is empty, also if its name says that it is compressed
        return raw
    if compression == "xz":
        return io.BufferedReader(lzma.LZMAFile(raw), _BUFFER)
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, compression), _BUFFER)


def read_lines(piece: Piece, report: Callable[[int], None] = lambda _: None) -> Iterator[Line]:
    """Yield the lines from the start of a piece to the end of the file; `report` hears how many bytes were read."""
    source = piece.source
    with source.open() as raw, unpacked(raw, source.compression) as file:
        if not piece.start:
            _refuse_binary(file.peek(8192)[:8192], source)
        position, number, is_whole = _skip_to(piece.start, file), 0, True
        decoder = codecs.getincrementaldecoder("utf-8" if position else "utf-8-sig")()
        while block := file.readline(LONGEST_LINE):
            number += is_whole
            is_whole = block.endswith(b"\n") or len(block) < LONGEST_LINE
            where = f"{source.label}:byte {position}" if piece.start else f"{source.label}:{number}"
            yield Line(_decoded(decoder, block, where), position, where, is_whole)
            position += len(block)
            if number % _LINES_BETWEEN_REPORTS == 0:
                report(raw.tell() - piece.start)
        _decoded(decoder, b"", f"{source.label}: the last line")


def csv_rows(lines: Iterable[Line], source: Source, delimiter: str | None = None) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file, empty ones, too; a `delimiter` that is given is CSV's, with quotes."""
    csv.field_size_limit(LONGEST_LINE)
    # TSV as IANA defines it: no quoting, a quote is a character.
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if source.format == "tsv" else {}
    dialect = {"delimiter": delimiter} if delimiter else dialect
    # Strict: a quote that is never closed would swallow the rest of the file without a word.
    rows = csv.reader((line.text for line in lines), strict=True, **dialect)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise UserError(f"{source.label}:{rows.line_num}: not {source.format.upper()} ({error})") from None


def open_arrow(file: Any) -> tuple[Any, bool]:
    """Return pyarrow's reader of an Arrow file, and whether it is a stream."""
    from pyarrow import ipc

    is_stream = file.read(6) != b"ARROW1"
    file.seek(0)
    return (ipc.open_stream if is_stream else ipc.open_file)(file), is_stream


def _skip_to(start: int, file: Any) -> int:
    """Go to the first line that begins at `start` or later; return where that is."""
    if not start:
        return 0
    file.seek(start - 1)
    while (block := file.readline(LONGEST_LINE)) and not block.endswith(b"\n"):
        pass
    return int(file.tell())


def _decoded(decoder: codecs.IncrementalDecoder, block: bytes, where: str) -> str:
    try:
        return decoder.decode(block, final=not block).replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UserError(f"{where}: not valid UTF-8; convert the file first (iconv -t utf-8)") from None


def _refuse_binary(head: bytes, source: Source) -> None:
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if controls > _BINARY_SHARE * len(head):
        raise UserError(f"{source.label}: looks binary or UTF-16; latemask reads UTF-8 text")


class Section(NamedTuple):
    """A document, or a part of one that is too long."""

    text: str
    is_first: bool = True
    """Whether a document begins with it."""


def paragraphs(lines: Iterable[Line], piece: Piece) -> Iterator[Section]:
    """Documents of a .txt file: what stands between empty lines. A long one comes a few lines at a time.

    A document belongs to the piece in which the empty line before it begins, so that every one is read once.
    """
    document: list[str] = []
    size, ours, is_first = 0, not piece.start, True
    for text, start, _, _ in lines:
        is_empty = not text.strip()
        if document and (is_empty or size >= LONGEST_DOCUMENT):
            yield Section("".join(document).rstrip("\n"), is_first)
            document, size, is_first = [], 0, is_empty
        if start >= piece.end and (is_empty or not ours):
            return
        ours = ours or is_empty
        if ours and not is_empty:
            document.append(text)
            size += len(text)
    if document:
        yield Section("".join(document).rstrip("\n"), is_first)


def cut(text: str, is_first: bool = True) -> Iterator[Section]:
    """Yield a text, in sections if it is too long for one; between words where there is a gap."""
    limit = LONGEST_DOCUMENT
    while len(text) > limit:
        gap = max(text.rfind(" ", limit // 2, limit), text.rfind("\n", limit // 2, limit))
        end = gap if gap > 0 else limit
        yield Section(text[:end], is_first)
        text, is_first = text[end:].lstrip(), False
    if text.strip():
        yield Section(text, is_first)
