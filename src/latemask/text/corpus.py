"""Text files → documents. Says by file and line what cannot be read."""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from datatrove.data import Document
from datatrove.pipeline.readers.base import BaseReader

from latemask.console import printable
from latemask.errors import UserError

FORMATS = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\v\b\x1b")
_BINARY_SHARE = 0.05  # a stray NUL is survived, a file full of control bytes is not text


@dataclass(frozen=True)
class Source:
    """One file to read, and whether the user named it (or a folder or pattern found it)."""

    path: Path
    named: bool

    @property
    def format(self) -> str:
        """`.txt` or `.jsonl`."""
        return Path(self.path.name.lower().removesuffix(".gz")).suffix


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


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """Expand files, folders and glob patterns to readable files, each once, in a stable order."""
    sources: dict[Path, Source] = {}
    for given in inputs:
        for source in _expand(str(given)):
            sources.setdefault(source.path.resolve(), source)
    return list(sources.values())


def _expand(given: str) -> list[Source]:
    path = Path(given)
    if not given:
        raise UserError("an INPUT is empty")
    if path.is_file():
        if not _is_supported(path):
            raise UserError(f"{printable(given)}: unknown format; latemask reads {', '.join(FORMATS)}")
        return [Source(path, named=True)]
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and _is_supported(p) and not p.name.startswith("."))
    elif glob.has_magic(given):
        found = sorted(p for p in map(Path, glob.iglob(given, recursive=True)) if p.is_file() and _is_supported(p))
    else:
        raise UserError(f"{printable(given)}: no such file or folder")
    if not found:
        raise UserError(f"{printable(given)}: holds no {', '.join(FORMATS)} file")
    return [Source(p, named=False) for p in found]


def _is_supported(path: Path) -> bool:
    return path.name.lower().endswith(FORMATS)


class CorpusReader(BaseReader):
    """The first step of a datatrove pipeline: the documents of text files, in the order of `sources`.

    datatrove's own JSONL reader logs a broken line and loses its number; ours names it and counts it.
    """

    name = "📚 latemask corpus"

    def __init__(self, sources: Sequence[Source], problems: Problems, on_bytes: Callable[[int], None] | None = None):
        super().__init__()
        self.sources = sources
        self.problems = problems
        self.on_bytes = on_bytes or (lambda _: None)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of every `world_size`-th source."""
        for source in self.sources[rank::world_size]:
            found = False
            for number, text in enumerate(self._read(source)):
                found = True
                yield Document(text=text, id=f"{source.path}/{number}")
            if not found:
                self._complain_of_empty(source)

    def _read(self, source: Source) -> Iterator[str]:
        try:
            with source.path.open("rb") as raw:
                opened: Any = gzip.GzipFile(fileobj=raw) if source.path.suffix.lower() == ".gz" else raw
                _refuse_binary(opened, source.path)
                lines = self._decoded(opened, raw, source.path)
                yield from (self._jsonl(lines, source.path) if source.format == ".jsonl" else _paragraphs(lines))
        except (EOFError, gzip.BadGzipFile) as error:
            raise UserError(f"{printable(str(source.path))}: damaged gzip file ({error})") from None
        except OSError as error:
            raise UserError(f"{printable(str(source.path))}: cannot be read ({error.strerror or error})") from None

    def _decoded(self, opened: IO[bytes], raw: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
        position = 0
        for number, line in enumerate(opened, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").replace("\r\n", "\n")
            except UnicodeDecodeError:
                raise UserError(
                    f"{printable(str(path))}:{number}: not valid UTF-8; convert the file first (iconv -t utf-8)"
                ) from None
            if number % 1000 == 0:
                position = self._tell(raw, position)
        self._tell(raw, position)

    def _tell(self, raw: IO[bytes], before: int) -> int:
        now = raw.tell()
        self.on_bytes(now - before)
        return now

    def _jsonl(self, lines: Iterable[tuple[int, str]], path: Path) -> Iterator[str]:
        for number, line in lines:
            if not line.strip():
                continue
            problem, text = _text_of(line)
            if problem:
                self.problems.add(f"{printable(str(path))}:{number}", problem)
            else:
                yield text

    def _complain_of_empty(self, source: Source) -> None:
        if source.named:
            raise UserError(f"{printable(str(source.path))}: holds no text{self._first_problem()}")
        self.problems.add(printable(str(source.path)), "holds no text")

    def _first_problem(self) -> str:
        return f"; first problem: {self.problems.examples[0]}" if self.problems.examples else ""


def _refuse_binary(opened: Any, path: Path) -> None:
    head = opened.read(8192)
    opened.seek(0)
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if controls > _BINARY_SHARE * len(head):
        raise UserError(f"{printable(str(path))}: looks binary or UTF-16; latemask reads UTF-8 text")


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Documents of a .txt file: what stands between empty lines."""
    document: list[str] = []
    for _, line in lines:
        if line.strip():
            document.append(line)
        elif document:
            yield "".join(document).rstrip("\n")
            document = []
    if document:
        yield "".join(document).rstrip("\n")


def _text_of(line: str) -> tuple[str | None, str]:
    """Return (what is wrong, the text) of one JSONL line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON", ""
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        return "no 'text' in it", ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "half a surrogate pair in its text", ""
    return None, text
