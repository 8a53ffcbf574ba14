"""Plain values, as YAML and command lines have them → the types that dataclasses and signatures declare.

One reader for both: what a recipe file may say, an option may say, and a mistake is told in the same words.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from latemask.ground.errors import UserError, nearest

Section = TypeVar("Section")
_LONGEST_SHOWN = 80
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def converted(value: Any, annotation: Any, name: str) -> Any:
    """Return a value as what it should be, or say what `name` must be."""
    try:
        return _converted(value, annotation)
    except (ValueError, TypeError, OverflowError):
        shown = str(value) if len(str(value)) <= _LONGEST_SHOWN else f"{str(value)[:_LONGEST_SHOWN]}…"
        raise UserError(f"{name} must be {described(annotation)}, not {shown!r}") from None


def _converted(value: Any, annotation: Any) -> Any:
    if members := _members(annotation):
        for member in members:
            try:
                return _converted(value, member)
            except (ValueError, TypeError):
                continue
        raise ValueError
    if typing.get_origin(annotation) is Literal:
        return value if value in typing.get_args(annotation) else _refuse()
    if (kind := typing.get_origin(annotation)) in (Sequence, list, tuple):
        (element, *_) = typing.get_args(annotation)
        found = [_converted(one, element) for one in (value if isinstance(value, (list, tuple)) else [value])]
        return tuple(found) if kind is tuple else found
    if annotation is types.NoneType:
        return None if value is None or value == "null" else _refuse()
    if annotation is bool:
        return value if isinstance(value, bool) else _TRUTH[str(value).lower()] if str(value) in _TRUTH else _refuse()
    if annotation in (int, float):
        return _number(value, annotation)
    if annotation is Path:
        return Path(value)
    if annotation is Any or isinstance(value, annotation):
        return value
    return _refuse()


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return what a union is of, None first: `null` is no text."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return ()
    return tuple(sorted(typing.get_args(annotation), key=lambda member: member is not types.NoneType))


def _number(value: Any, kind: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        _refuse()
    if kind is float:
        return float(value)
    try:
        return int(value) if not isinstance(value, float) else _refuse()
    except ValueError:
        number = float(value)  # 1e6 is a whole number, too
        return int(number) if number.is_integer() else _refuse()


def _refuse() -> Any:
    raise ValueError


def described(annotation: Any) -> str:
    """Say a type in words: `int or null`, `one of 'a', 'b'`."""
    if members := _members(annotation):
        names = [described(member) for member in members]
        return " or ".join([name for name in names if name != "null"] + ["null"] * ("null" in names))
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(annotation)))}"
    if typing.get_origin(annotation) in (Sequence, list, tuple):
        return f"one or more: {described(typing.get_args(annotation)[0])}"
    return "null" if annotation is types.NoneType else getattr(annotation, "__name__", str(annotation))


def built(section: type[Section], tree: Any, where: str, prefix: str = "") -> Section:
    """Make a dataclass of a tree of plain values; unknown keys are refused with the nearest one."""
    if not isinstance(tree, dict):
        raise UserError(f"{where}: '{prefix.rstrip('.') or 'a recipe'}' must be a mapping of keys, not {tree!r}")
    hints = hints_of(section)
    given = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in hints:
            raise UserError(f"{where}: unknown key '{name}'{nearest(name, [f'{prefix}{valid}' for valid in hints])}")
        if is_dataclass(hints[key]):
            given[key] = built(hints[key], value, where, f"{name}.")
        elif value is None and hints[key] is not Any and types.NoneType not in _members(hints[key]):
            raise UserError(f"{where}: {name} must not be null; leave the key out for its default")
        else:
            given[key] = converted(value, hints[key], f"{where}: {name}")
    return section(**given)


def hints_of(section: type) -> dict[str, Any]:
    """Return the type of every field."""
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in fields(section)}


def defaults_of(section: type) -> dict[str, Any]:
    """Return the default of every field that has one."""
    found = {}
    for field in fields(section):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    return found


@cache
def texts_of(section: type) -> dict[str, str]:
    """Return what is written below every field of a dataclass: its help text."""
    from docstring_parser import parse_from_object

    try:
        found = parse_from_object(section).params
    except (OSError, TypeError):  # a class that was typed in has no source to read
        return {}
    return {text.arg_name: " ".join((text.description or "").split()) for text in found}
