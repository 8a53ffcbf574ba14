"""One reader for recipe files and command lines: plain values become what a type says, or a line that says why not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from latemask.ground.errors import UserError
from latemask.ground.typed import built, converted, defaults_of, texts_of


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("3", int, 3),
        ("1e6", int, 1_000_000),
        (7, float, 7.0),
        ("6e-4", float, 6e-4),  # which YAML takes for text
        ("true", bool, True),
        (False, bool, False),
        (None, int | None, None),
        ("null", int | None, None),
        ("4", int | None, 4),
        ("b", Literal["a", "b"], "b"),
        ("x/y", Path, Path("x/y")),
        (["1", 2], Sequence[float], [1.0, 2.0]),
        ("text", str, "text"),
    ],
)
def test_a_value_becomes_what_its_type_says(value, annotation, expected):
    found = converted(value, annotation, "key")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "said"),
    [
        ("x", int, "key must be int, not 'x'"),
        (1.5, int, "key must be int, not '1.5'"),
        ("1.5", int, "key must be int, not '1.5'"),
        (True, int, "key must be int, not 'True'"),
        (True, float, "key must be float, not 'True'"),
        ("", float | None, "key must be float or null, not ''"),
        ("maybe", bool, "key must be bool, not 'maybe'"),
        ("c", Literal["a", "b"], "key must be one of 'a', 'b', not 'c'"),
        (3, str, "key must be str, not '3'"),
        (["x"], Sequence[float], "key must be one or more: float, not"),
        ("9" * 200, bool, "…"),
    ],
)
def test_what_it_cannot_be_is_said_with_its_name_and_type(value, annotation, said):
    with pytest.raises(UserError) as refused:
        converted(value, annotation, "key")
    assert said in str(refused.value)


@dataclass(frozen=True)
class Inner:
    """A part."""

    size: int = 1
    """How large
    it is."""


@dataclass(frozen=True)
class Outer:
    """A whole."""

    name: str = "it"
    """What it is called."""
    inner: Inner = field(default_factory=Inner)


def test_a_tree_becomes_a_dataclass_and_its_parts():
    assert built(Outer, {"name": "a", "inner": {"size": "3"}}, "file") == Outer("a", Inner(3))
    assert defaults_of(Outer) == {"name": "it", "inner": Inner()}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"nam": 1}, r"file: unknown key 'nam' \(did you mean 'name'\?\)"),
        ({"inner": {"sise": 1}}, r"unknown key 'inner.sise' \(did you mean 'inner.size'\?\)"),
        ({"inner": 3}, "file: 'inner' must be a mapping of keys, not 3"),
        ({"name": None}, "name must not be null"),
        ([1], "must be a mapping"),
    ],
)
def test_a_tree_of_another_shape_is_refused_by_its_key(tree, said):
    with pytest.raises(UserError, match=said):
        built(Outer, tree, "file")


def test_what_stands_below_a_field_is_its_help():
    assert texts_of(Outer)["name"] == "What it is called."
    assert texts_of(Inner) == {"size": "How large it is."}


def test_a_class_that_was_typed_in_has_no_help_and_works_all_the_same():
    space = {"__name__": "typed_in"}
    exec("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Typed:\n    size: int = 1\n", space)
    assert texts_of(space["Typed"]) == {}
    assert built(space["Typed"], {"size": 2}, "file").size == 2
