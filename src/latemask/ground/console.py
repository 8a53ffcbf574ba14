"""What the user sees while something runs: lines and bars on stderr. Text from files is escaped before it is shown."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from latemask.ground.processes import is_first

_WIDE, _BAR, _SHORT_BAR = 110, 30, 8  # columns
_console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """Print one line for the user; of several processes the first talks."""
    if is_first():
        _console.print("\n".join(printable(line) for line in message.split("\n")), markup=False)


def is_interactive() -> bool:
    """Whether somebody watches a terminal, so that a moving bar makes sense."""
    return _console.is_terminal and is_first()


def progress_bar(*extra: str) -> Progress:
    """Return a bar with the time left; each of `extra` is one more text column.

    Where a terminal is too narrow, the last of them is cut first: the time left stands before them.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=_BAR if _console.width >= _WIDE else _SHORT_BAR),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("left", table_column=Column(no_wrap=True, min_width=4)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        *(
            TextColumn(column, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
            for column in extra  # may show names from outside
        ),
        console=_console,
        disable=not is_interactive(),
    )


def json_line(value: Any) -> str:
    """Return JSON on one line that a terminal can show: every letter as it is, everything else escaped."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """Escape what could move the cursor, change colours or turn the writing direction of a terminal."""
    if text.isprintable():  # nearly every text, and every line of a file asks
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(error: Exception, most: int = 200) -> str:
    """Return the beginning of what an error of somebody else's says, fit to be shown; its kind if it says nothing."""
    return printable(" ".join(str(error).split())[:most]) or type(error).__name__
