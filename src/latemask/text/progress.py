"""How far the tasks are: each writes a number into a file of its own, whoever waits adds them up.

Files, because tasks may run in other processes or on other machines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

from latemask.ground.console import progress_bar, say

_SECONDS_BETWEEN_NUMBERS = 0.5
_SECONDS_BETWEEN_LINES = 10.0


class Meter:
    """A task's side: notes now and then how much it has read."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.rank, self.finished, self.noted = 0, 0, 0.0

    def start(self, rank: int) -> None:
        """Begin a task."""
        self.rank, self.finished = rank, 0

    def show(self, current: int) -> None:
        """Note how much of the current piece is read."""
        if self.folder and time.monotonic() - self.noted > _SECONDS_BETWEEN_NUMBERS:
            self.noted = time.monotonic()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / str(self.rank)).write_text(str(self.finished + current))

    def finish(self, size: int) -> None:
        """End the current piece."""
        self.finished += size
        self.show(0)


class ProgressWatch(AbstractContextManager["ProgressWatch"]):
    """The waiting side: a bar with the time left in a terminal, now and then a line elsewhere."""

    def __init__(self, what: str, sizes: Sequence[int], folder: Path | None = None, done: Iterable[int] = ()):
        self.what, self.sizes, self.folder = what, sizes, folder
        self.unfinished = set(range(len(sizes))) - set(done)
        self.total = sum(sizes)
        self.bar = progress_bar()
        self.task = self.bar.add_task(f"{what:<10}", total=self.total or None)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.started = self.last_line = time.monotonic()
        self.done_before = self.done()

    def __enter__(self) -> ProgressWatch:
        self.bar.start()
        self.thread.start()
        return self

    def finish(self, rank: int) -> None:
        """Count a task as done."""
        self.unfinished.discard(rank)

    def __exit__(self, *failure: Any) -> None:
        self.ended.set()
        self.thread.join()
        self.bar.update(self.task, completed=self.done())
        self.bar.stop()

    def _follow(self) -> None:
        while not self.ended.wait(_SECONDS_BETWEEN_NUMBERS):
            self.bar.update(self.task, completed=self.done())
            if self.bar.disable and time.monotonic() - self.last_line > _SECONDS_BETWEEN_LINES:
                say(self._line())
                self.last_line = time.monotonic()

    def _line(self) -> str:
        done = self.done()
        if not self.total:  # a stream does not say how long it is
            return f"{self.what}: {done:,} documents"
        here = done - self.done_before
        left = (time.monotonic() - self.started) * (self.total - done) / here if here > 0 else None
        return f"{self.what}: {done / self.total:.0%}" + (f", {timedelta(seconds=round(left))} left" if left else "")

    def done(self) -> int:
        """Return how much is read in all."""
        if not self.total:
            return sum(self._noted(rank) for rank in range(len(self.sizes)))
        return self.total - sum(max(self.sizes[rank] - self._noted(rank), 0) for rank in list(self.unfinished))

    def _noted(self, rank: int) -> int:
        try:
            return int((self.folder / str(rank)).read_text()) if self.folder else 0
        except (OSError, ValueError):  # not begun yet, or caught in the middle of a write
            return 0
