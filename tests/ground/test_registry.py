"""Tables that anybody may add to, and that answer a wrong name with the nearest right one."""

import pytest

from latemask.ground import registry
from latemask.ground.errors import UserError
from latemask.ground.registry import Registry, load_plugins


def test_functions_are_kept_and_classes_become_one_object():
    table = Registry("shape")

    @table.register("round")
    class Round:
        corners = 0

    table.register("double")(lambda x: 2 * x)
    assert table["round"].corners == Round.corners
    assert isinstance(table["round"], Round)
    assert table["double"](2) == 4


def test_an_unknown_name_is_answered_with_the_nearest():
    table = Registry("shape")
    table["square"] = 4
    with pytest.raises(UserError, match=r"unknown shape 'sqare' \(did you mean 'square'\?\)"):
        table["sqare"]


class Plugin:
    name, value = "mine", "my_package"

    def __init__(self, load):
        self.load = load


def test_a_package_that_adds_something_is_imported_when_a_name_is_missing(monkeypatch):
    table = Registry("shape")
    plugin = Plugin(lambda: table.register("star")(5))
    monkeypatch.setattr(registry, "entry_points", lambda group: [plugin] if group == "latemask" else [])
    load_plugins.cache_clear()
    assert table["star"] == 5


def test_a_package_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [Plugin(lambda: 1 / 0)])
    load_plugins.cache_clear()
    with pytest.raises(UserError, match=r"the plugin 'mine' \(my_package\) cannot be imported: division by zero"):
        Registry("shape")["star"]
    load_plugins.cache_clear()
