"""A column of labels → what kind of task it is, its classes, and an id, a number or several of them for each row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from latemask.evaluation.tables import TableFile
from latemask.evaluation.tasks import Kind, number_of, parsed_number
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError

_MOST_CLASSES = 20  # whole numbers beyond this many different ones are amounts, not names


def read_labels(
    tables: dict[str, TableFile], column: str, kind: Kind | None, separator: str | None
) -> tuple[Kind, tuple[str, ...], dict[str, list[Any]]]:
    """Return the kind of a task, its classes, and the labels of every split; `separator` stands between several."""
    if separator is not None and kind not in (None, "multilabel"):
        raise UserError(f"--label-separator: a {kind} has one label a row; --task-type multilabel has several")
    kind = "multilabel" if separator is not None else kind
    values = {split: _values(table, column, kind, separator) for split, table in tables.items()}
    kind = kind or _recognised(values["train"], tables["train"])
    for split, found in values.items():
        for row, value in enumerate(found):
            if isinstance(value, list) and kind != "multilabel":
                raise _no_label(value, tables[split], row)
    if kind == "regression":
        numbers = {
            split: [number_of(value, tables[split].where(row)) for row, value in enumerate(found)]
            for split, found in values.items()
        }
        return kind, (), numbers
    names = {split: [list(map(_name, _as_list(value))) for value in found] for split, found in values.items()}
    classes = _in_order({name for row in names["train"] for name in row})
    return kind, classes, {split: _ids(kind, classes, found, tables, split) for split, found in names.items()}


def _ids(
    kind: Kind, classes: tuple[str, ...], names: list[list[str]], tables: dict[str, TableFile], split: str
) -> list[Any]:
    ids = {name: number for number, name in enumerate(classes)}
    for row, several in enumerate(names):
        for name in several:
            if name not in ids:
                raise unseen_label(name, tables[split].where(row), tables["train"].source.label, classes)
    if kind == "multilabel":
        return [[int(one in several) for one in classes] for several in names]
    return [ids[name] for (name,) in names]


def unseen_label(label: str, where: str, train: str, known: tuple[str, ...]) -> UserError:
    """Say that training never shows a label, and which ones it does."""
    shown = ", ".join(map(printable, known[:10])) + (" …" if len(known) > 10 else "")
    return UserError(f"{where}: the label '{printable(label)}' is not in {train}, which has {shown}")


def _values(table: TableFile, column: str, kind: Kind | None, separator: str | None) -> list[Any]:
    """Return a column without spaces around its labels: a value a row, or a list where there may be several."""
    found = []
    for row, value in enumerate(table.values(column, "--label")):
        if separator is not None and isinstance(value, str):
            value = [one for one in value.split(separator) if one.strip()]
        if isinstance(value, list) and kind in (None, "multilabel"):
            found.append([_value(one, table, column, row) for one in value])
        else:
            found.append(_value(value, table, column, row))
    return found


def _value(value: Any, table: TableFile, column: str, row: int) -> Any:
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{table.where(row)}: no label in '{printable(column)}'")
    if isinstance(value, (list, dict, bytes)):
        raise _no_label(value, table, row)
    table.refuse_half_characters(str(value), row)
    return value.strip() if isinstance(value, str) else value


def _no_label(value: Any, table: TableFile, row: int) -> UserError:
    return UserError(f"{table.where(row)}: the label is a {type(value).__name__}, not a name or a number")


def _recognised(values: list[Any], table: TableFile) -> Kind:
    """Several where lists are; a regression of decimals, or of many whole numbers; classes otherwise."""
    different = {str(value): parsed_number(value) for row in values for value in _as_list(row)}
    numbers = [number for number in different.values() if number is not None]
    fractions = [number for number in numbers if number % 1]
    is_regression = 2 * len(fractions) > len(different) or (
        len(numbers) == len(different) and (bool(fractions) or len(different) > _MOST_CLASSES)
    )
    kind: Kind = "regression" if is_regression else "classification"
    if any(isinstance(value, list) for value in values):
        say(f"{table.source.label}: {len(different):,} different labels, several a row: taken as multilabel")
        return "multilabel"
    other = "classification" if is_regression else "regression"
    say(
        f"{table.source.label}: {len(different):,} different labels, taken as a {kind} "
        f"(if it is a {other}, say --task-type {other})"
    )
    return kind


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _name(value: Any) -> str:
    """Return a class's name; 1.0, as tables with gaps write it, is 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return numbers by value, then names."""
    numbers = {name: parsed_number(name) for name in names}
    return tuple(sorted(numbers, key=lambda name: (numbers[name] is None, numbers[name] or 0.0, name)))
