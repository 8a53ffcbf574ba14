"""Rows of text → a table for a terminal, or for a Markdown file. The first row is the head."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]


def show_table(rows: Rows) -> None:
    """Print a table: names on the left, numbers on the right."""
    head, *body = rows
    table = Table()
    for number, name in enumerate(head):
        table.add_column(Text(name), justify="right" if number else "left")
    for row in body:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def markdown_table(rows: Rows) -> list[str]:
    """Return the lines of a table."""
    head, *body = ([escaped(cell) for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def escaped(text: str) -> str:
    """Keep what was read from files from becoming Markdown or HTML."""
    return "".join(f"&#{ord(c)};" if c in "<>&`|[]" else c for c in text)
