"""One page that needs nothing but a browser: no script, no network, every text escaped by the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from latemask import __version__
from latemask.reporting.plots import COLOURS, Figure

_TEMPLATE = Path(__file__).with_name("page.html")
# The colours of the figures, lighter, for a dark page.
_DARK = ("#5cb3e8", "#ff8a4c", "#3ccf9f", "#e7a3c8", "#f2bf4a", "#8fd0f5", "#b39ae0", "#cfae6a")


@dataclass(frozen=True)
class Table:
    """Rows under columns; `numbers` are the columns that are set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A part of the page; without figures and tables it is left out."""

    id: str
    title: str
    note: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Progress:
    """How far a single run is."""

    sentence: str
    steps: int
    done: int


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    MARK: ClassVar[str] = '<meta name="generator" content="latemask '  # what page.html has, and nobody else's page

    title: str
    verdict: Sequence[str] = ()
    problems: Sequence[str] = ()
    sections: Sequence[Section] = ()
    recipes: Sequence[tuple[str, str]] = ()
    progress: Progress | None = None
    written: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def html(self) -> str:
        """Return the page as one file: the template gets every field by its name."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        template = environment.from_string(_TEMPLATE.read_text("utf-8"))
        written = f"{self.written:%Y-%m-%d %H:%M}"
        return template.render({**vars(self), "written": written}, version=__version__, light=COLOURS, dark=_DARK)
