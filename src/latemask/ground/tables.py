"""Rows of text → a table for a terminal, or for a Markdown file. The first row is the head."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]
_BETWEEN, _SHORTEST = 1, 8  # columns of a terminal: between two of a table, and of a name that is cut


def show_table(rows: Rows, narrow: bool = False) -> None:
    """Print a table: names on the left, numbers on the right; a narrow one has no lines, and only names are cut."""
    head, *body = rows
    console, table = (
        Console(highlight=False),
        Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0)) if narrow else Table(),
    )
    of_numbers = sum(max(map(len, column)) + _BETWEEN for column in list(zip(*rows, strict=True))[1:])
    for number, name in enumerate(head):
        most = max(_SHORTEST, console.width - of_numbers) if narrow and not number else None
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=narrow, max_width=most)
    for row in body:
        table.add_row(*map(Text, row))
    console.print(table)


def markdown_table(rows: Rows) -> list[str]:
    """Return the lines of a table."""
    head, *body = ([escaped(cell) for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def escaped(text: str) -> str:
    """Keep what was read from files from becoming Markdown or HTML."""
    return "".join(f"&#{ord(c)};" if c in "<>&`|[]" else c for c in text)
