"""Sources → tasks of about the same size. What a task holds depends on the inputs alone, never on the workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latemask.text.sources import Source

SMALLEST_TASK = 1 << 25  # bytes of text: a few seconds of work on one core are the least worth a process
LARGEST_TASK = 1 << 28  # bounds what an interruption can cost, and the index of documents in memory
_TASKS_WANTED = 1024
_SPLITTABLE = frozenset({"txt", "jsonl"})  # where a line's start can be found from anywhere
_PACKED = frozenset({"parquet", "arrow"})
_UNPACKING = 3  # text is about so many times the size of its compressed file


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


class Tasks(tuple[list[Piece], ...]):
    """The pieces of every task; shared, not copied, when datatrove copies a pipeline for each of them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tasks:
        return self


def task_size(total: int) -> int:
    """Return how many bytes of text make one task of a corpus of `total` bytes."""
    return min(max(total // _TASKS_WANTED, SMALLEST_TASK), LARGEST_TASK)


def plan_tasks(sources: Sequence[Source]) -> Tasks:
    """Group small files and split large ones; in the order of the sources."""
    target = task_size(sum(Piece(source).text_size for source in sources))
    tasks: list[list[Piece]] = []
    room = 0
    for piece in (piece for source in sources for piece in _pieces(source, target)):
        if not tasks or piece.text_size > room:
            tasks.append([])
            room = target
        tasks[-1].append(piece)
        room -= piece.text_size
    return Tasks(tasks)


def _pieces(source: Source, target: int) -> list[Piece]:
    count = source.size // target
    if count < 2 or source.compression or source.format not in _SPLITTABLE:
        return [Piece(source)]
    starts = [source.size * part // count for part in range(count)]
    return [Piece(source, start, end) for start, end in zip(starts, [*starts[1:], sys.maxsize], strict=True)]
