"""Inputs → files to read, each once, with format and size; files → pieces, in groups of about the same size."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from latemask.ground.console import one_line, printable, say
from latemask.ground.errors import UserError

EXTENSIONS = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_READABLE = f"{', '.join(EXTENSIONS)}, plain or {', '.join(COMPRESSIONS)}"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+(::|://)")
_PATTERN = re.compile(r"[*?\[]")
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "last_commit", "created")
SMALLEST_GROUP = 1 << 25  # bytes of text: a few seconds of work on one core are the least worth a process
LARGEST_GROUP = 1 << 28  # bounds what an interruption can cost, and the index of documents in memory
_GROUPS_WANTED = 1024
_SPLITTABLE = frozenset({"txt", "jsonl"})  # where a line's start can be found from anywhere
_PACKED = frozenset({"parquet", "arrow"})
_UNPACKING = 3  # text is about so many times the size of its compressed file


@dataclass(frozen=True)
class Source:
    """One file to read."""

    path: str
    """As the user wrote it or a folder listed it: for messages and records."""
    location: str
    """An absolute path or a URL."""
    named: bool
    """Whether the user named it, or a folder or pattern found it."""
    format: str
    compression: str | None
    size: int
    stamp: str
    """Changes when the file does."""

    @property
    def label(self) -> str:
        """The path, safe to show."""
        return printable(self.path)

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return not _URL.match(self.location)

    def open(self) -> Any:
        """Return the file as it lies there, in binary."""
        if self.is_local:
            return Path(self.location).open("rb", buffering=1 << 20)
        file_system, path = _file_system(self.location)
        return file_system.open(path, "rb")


def find_sources(inputs: Sequence[str | Path], format: str | None = None) -> list[Source]:
    """Expand files, folders, glob patterns and URLs to readable files, each once, in a stable order."""
    sources: dict[str, Source] = {}
    for given in inputs:
        for source in _expand(str(given), format):
            sources.setdefault(os.path.realpath(source.location) if source.is_local else source.location, source)
    return list(sources.values())


def _file_system(location: str) -> tuple[AbstractFileSystem, str]:
    if not _URL.match(location):
        return LocalFileSystem(), location
    try:
        return url_to_fs(location)
    except ImportError as error:
        protocol = location.split(":")[0]
        raise UserError(f"{printable(location)}: reading {protocol}:// needs one more package ({error})") from None
    except Exception as error:  # whatever a file system's client raises
        raise UserError(f"{printable(location)}: cannot be opened ({one_line(error)})") from None


def _expand(given: str, format: str | None) -> list[Source]:
    if not given:
        raise UserError("an INPUT is empty")
    is_url = bool(_URL.match(given))
    file_system, path = _file_system(given if is_url else str(Path(given).absolute()))
    try:
        names, named = _matches(file_system, path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{printable(given)}: cannot be listed ({one_line(error)})") from None
    if names is None:
        raise UserError(f"{printable(given)}: no such file or folder" + (", or not reachable" * is_url))
    candidates = (_source(file_system, name, given, named, format) for name in names)
    found = [source for source in candidates if source is not None]
    if not found and named:
        raise UserError(f"{printable(given)}: unknown format; latemask reads {_READABLE}. Say which with --format")
    if not names and _PATTERN.search(given):
        raise UserError(f"{printable(given)}: matches no file")
    if not found:
        raise UserError(f"{printable(given)}: holds no file that latemask reads ({_READABLE})")
    if others := len(names) - len(found):
        say(f"{printable(given)}: {others:,} of its files are of other formats and left out")
    return found


def _matches(file_system: AbstractFileSystem, path: str) -> tuple[list[str] | None, bool]:
    """Return the files that `path` means, and whether it names one."""
    if file_system.isfile(path):
        return [path], True
    if file_system.isdir(path):
        return [name for name in sorted(file_system.find(path)) if "/." not in f"/{name[len(path) :]}"], False
    if _PATTERN.search(path):
        found = (name for name in sorted(file_system.glob(path)) if file_system.isfile(name))
        hidden_wanted = path.rpartition("/")[2].startswith(".")
        return [name for name in found if hidden_wanted or not name.rpartition("/")[2].startswith(".")], False
    return None, False


def format_of(name: str) -> tuple[str | None, str | None]:
    """Return format and compression of a file, by the endings of its name."""
    endings = PurePosixPath(name.lower()).suffixes
    compression = COMPRESSIONS.get(endings[-1]) if endings else None
    return EXTENSIONS.get("".join(endings[:-1][-1:] if compression else endings[-1:])), compression


def _source(file_system: AbstractFileSystem, name: str, given: str, named: bool, format: str | None) -> Source | None:
    by_name, compression = format_of(name)
    if (format := format or by_name) is None:
        return None
    is_local = isinstance(file_system, LocalFileSystem)
    location = name if is_local else file_system.unstrip_protocol(name)
    path = os.path.relpath(name) if is_local and not Path(given).is_absolute() else location  # as the user writes it
    info = file_system.info(name)
    stamp = next((str(info[key]) for key in _STAMPS if info.get(key)), "")
    return Source(path, location, named, format, compression, int(info.get("size") or 0), stamp)


def explain(error: Exception, source: Source) -> UserError:
    """Turn what was raised while reading `source` into a line for the user."""
    if isinstance(error, OSError) and error.errno and error.strerror:
        return UserError(f"{source.label}: cannot be read ({error.strerror})")
    return UserError(f"{source.label}: damaged, or no {source.compression or source.format} file ({one_line(error)})")


@dataclass(frozen=True)
class Piece:
    """A file, or a range of bytes of one."""

    source: Source
    start: int = 0
    end: int = sys.maxsize

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start == 0 and self.end == sys.maxsize

    @property
    def size(self) -> int:
        """Bytes of the file that it covers."""
        return min(self.end, self.source.size) - self.start

    @property
    def text_size(self) -> int:
        """About how many bytes of text it holds."""
        packed = self.source.compression or self.source.format in _PACKED
        return self.size * (_UNPACKING if packed else 1)


class Groups(tuple[list[Piece], ...]):
    """Pieces that are read one after another; shared, not copied, when datatrove copies a pipeline for each group."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Groups:
        return self


def group_size(total: int) -> int:
    """Return how many bytes of text make one group of a corpus of `total` bytes."""
    return min(max(total // _GROUPS_WANTED, SMALLEST_GROUP), LARGEST_GROUP)


def group_pieces(sources: Sequence[Source]) -> Groups:
    """Group small files and split large ones, in the order of the sources: by the inputs alone, not the workers."""
    target = group_size(sum(Piece(source).text_size for source in sources))
    groups: list[list[Piece]] = []
    room = 0
    for piece in (piece for source in sources for piece in _cut(source, target)):
        if not groups or piece.text_size > room:
            groups.append([])
            room = target
        groups[-1].append(piece)
        room -= piece.text_size
    return Groups(groups)


def _cut(source: Source, target: int) -> list[Piece]:
    count = source.size // target
    if count < 2 or source.compression or source.format not in _SPLITTABLE:
        return [Piece(source)]
    starts = [source.size * part // count for part in range(count)]
    return [Piece(source, start, end) for start, end in zip(starts, [*starts[1:], sys.maxsize], strict=True)]
