"""Tables of named things that anybody may add to: objectives, families, patterns, optimizers, schedules, methods.

    @OBJECTIVES.register("mine")
    class Mine(Objective): ...

A package that adds some names its module as an entry point of the group `latemask`; it is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from latemask.ground.errors import UserError, nearest

Thing = TypeVar("Thing")
GROUP = "latemask"


class Registry(dict[str, Thing], Generic[Thing]):
    """A dictionary whose missing names are a user's mistake, said with the nearest one that is there."""

    def __init__(self, what: str, home: str | None = None):
        super().__init__()
        self.what = what
        self.home = home
        """The module whose import fills the table."""

    def register(self, name: str) -> Callable[[Any], Any]:
        """Add what is decorated: a function, or one object of a class."""

        def add(thing: Any) -> Any:
            self[name] = thing() if isinstance(thing, type) else thing
            return thing

        return add

    def names(self) -> list[str]:
        """Return all names, those of other packages included, in the order they were added."""
        if self.home:
            import_module(self.home)
        load_plugins()
        return list(self)

    def __missing__(self, name: str) -> Thing:
        if name not in self.names():
            raise UserError(f"unknown {self.what} '{name}'{nearest(str(name), self)}")
        return self[name]


@cache
def load_plugins() -> None:
    """Import what other packages add, once."""
    for plugin in entry_points(group=GROUP):
        try:
            plugin.load()
        except Exception as error:  # somebody else's module may fail in any way
            raise UserError(f"the plugin '{plugin.name}' ({plugin.value}) cannot be imported: {error}") from error
