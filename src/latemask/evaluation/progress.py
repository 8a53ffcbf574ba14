"""Where a table is: one bar over all of its cells in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import Progress, TaskID

from latemask.ground.console import is_interactive, progress_bar, say
from latemask.ground.signals import SignalFlag

_SILENCE = 30.0  # seconds without a line are enough


class Watch:
    """Hears of steps and epochs, and does nothing; `GridWatch` shows them."""

    def step(self) -> None:
        """One step is done."""

    def epoch(self, number: int, score: float) -> None:
        """One epoch is done, and scored."""

    def check(self) -> None:
        """A good moment to stop, by raising something."""


class GridWatch(Watch):
    """Shows how far all cells are. Steps that early stopping saves are taken off the total."""

    def __init__(self, cells: int, steps: int, stop: SignalFlag):
        self.cells, self.total, self.stop = cells, steps, stop
        self.done, self.number, self.left_in_cell = 0, 0, 0
        self.label, self.state = "", ""
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def __enter__(self) -> GridWatch:
        self.started = self.last_line = time.monotonic()
        if is_interactive():
            self.bar = progress_bar("{task.fields[state]}")
            self.task = self.bar.add_task("fine-tuning", total=self.total, state="")
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, label: str, steps: int) -> None:
        """A cell of so many steps begins."""
        self.number += 1
        self.label, self.left_in_cell, self.state = label, steps, ""

    def end(self) -> None:
        """The cell is done, perhaps early."""
        self.total -= self.left_in_cell
        self.left_in_cell = 0

    def step(self) -> None:
        """Move on."""
        self.done += 1
        self.left_in_cell -= 1
        if self.bar:
            self.bar.update(self.task, completed=self.done, total=self.total, state=self._text())
        elif time.monotonic() - self.last_line > _SILENCE:
            self._line()

    def epoch(self, number: int, score: float) -> None:
        """Show the score."""
        self.state = f"  epoch {number}: {100 * score:.1f}"
        if not self.bar:
            self._line()

    def check(self) -> None:
        """Stop if somebody asked for it."""
        if self.stop.received is not None:
            raise KeyboardInterrupt

    def _text(self) -> str:
        return f"{self.number}/{self.cells} {self.label}{self.state}"

    def _line(self) -> None:
        self.last_line = time.monotonic()
        left = (self.last_line - self.started) / max(self.done, 1) * (self.total - self.done)
        minutes, seconds = divmod(round(left), 60)
        say(f"{self._text()}  left {minutes // 60}:{minutes % 60:02}:{seconds:02}")
