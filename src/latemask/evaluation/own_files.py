"""Your own task: labelled files → examples. What kind of task it is shows in the labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from latemask.evaluation.tables import TableFile, checksum, read_conll, read_table
from latemask.evaluation.tasks import Examples, Kind, Task, number_of, parsed_number, refuse_one_class
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError

_MOST_CLASSES = 20  # whole numbers beyond this many different ones are amounts, not names
METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "tagging": ("accuracy",),
}
SPAN_METRICS = ("span_f1", "accuracy")


def load_own(files: dict[str, Path], text: str, text_pair: str | None, label: str, kind: Kind | None) -> Task:
    """Read a task from tables: `files` by split, `train` and `dev` at least."""
    tables = {split: read_table(path) for split, path in files.items()}
    values = {split: _labels(table, label) for split, table in tables.items()}
    kind = kind or _recognised(values["train"], tables["train"])
    names = {_name(value) for value in values["train"]} if kind == "classification" else ()
    numbers = {name: parsed_number(name) for name in names}
    classes = tuple(sorted(names, key=lambda name: (numbers[name] is None, numbers[name] or 0.0, name)))
    examples = {
        split: _examples(table, text, text_pair, _ids(kind, classes, values[split], table, tables["train"]))
        for split, table in tables.items()
    }
    headline = METRICS[kind][:1] if kind == "classification" else ()
    columns = {"text": text, "text_pair": text_pair, "label": label}
    return _task(files, examples, kind=kind, labels=classes, metrics=METRICS[kind], columns=columns, headline=headline)


def _task(files: dict[str, Path], examples: dict[str, Examples], **known: Any) -> Task:
    """Put a task together, called after the folder of its files."""
    name = printable(Path(files["train"]).parent.resolve().name) or "own"
    others = {split: found for split, found in examples.items() if split not in ("train", "dev")}
    task = Task(name, train=examples["train"].without_empty(), dev=examples["dev"], others=others, **known)
    refuse_one_class(task)
    for split, found in (("dev", task.dev), *others.items()):
        if found.checksum and found.checksum == task.train.checksum:  # such a score says nothing, and looks very good
            say(f"warning: {split} is the same file as train: its score says what was memorised, not what was learnt")
    return task


def _labels(table: TableFile, label: str) -> list[Any]:
    values = table.values(label, "--label")
    for row, value in enumerate(values):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{table.where(row)}: no label in '{label}'")
        if isinstance(value, (list, dict, bytes)):
            raise UserError(f"{table.where(row)}: the label is a {type(value).__name__}, not a name or a number")
        table.refuse_half_characters(str(value), row)
    return [value.strip() if isinstance(value, str) else value for value in values]


def _recognised(values: list[Any], table: TableFile) -> Kind:
    """Regression where most labels have decimals, or are whole numbers of many kinds; classes otherwise."""
    different = {str(value): parsed_number(value) for value in values}
    numbers = [number for number in different.values() if number is not None]
    fractions = [number for number in numbers if number % 1]
    is_regression = 2 * len(fractions) > len(different) or (
        len(numbers) == len(different) and (bool(fractions) or len(different) > _MOST_CLASSES)
    )
    kind: Kind = "regression" if is_regression else "classification"
    other = "classification" if is_regression else "regression"
    say(
        f"{table.source.label}: {len(different):,} different labels, taken as a {kind} "
        f"(if it is a {other}, say --task-type {other})"
    )
    return kind


def _name(value: Any) -> str:
    """Return a class's name; 1.0, as tables with gaps write it, is 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _ids(
    kind: Kind, classes: tuple[str, ...], values: list[Any], table: TableFile, train: TableFile
) -> list[int | float]:
    if kind == "regression":
        return [number_of(value, table.where(row)) for row, value in enumerate(values)]
    ids = {name: number for number, name in enumerate(classes)}
    for row, value in enumerate(values):
        if _name(value) not in ids:
            raise _unseen(_name(value), table.where(row), train.source.label, classes)
    return [ids[_name(value)] for value in values]


def _unseen(label: str, where: str, train: str, known: tuple[str, ...]) -> UserError:
    shown = ", ".join(map(printable, known[:10])) + (" …" if len(known) > 10 else "")
    return UserError(f"{where}: the label '{printable(label)}' is not in {train}, which has {shown}")


def _examples(table: TableFile, text: str, text_pair: str | None, labels: list[Any]) -> Examples:
    texts = table.texts(text, "--text")
    pairs = table.texts(text_pair, "--text-pair") if text_pair else None
    examples = Examples(table.source.label, texts, pairs, labels, checksum(table.source))
    if empty := examples.empty_rows():
        say(f"{table.where(empty[0])}: no text; {len(empty):,} of {len(examples):,} rows have none")
    return replace(examples, empty=len(empty))


def load_tagging(files: dict[str, Path], text: str | None, label: str | None) -> Task:
    """Read a tagging task from CoNLL files: a word and its tag in every line, an empty line between sentences."""
    read = {split: read_conll(path, text, label) for split, path in files.items()}
    tags = tuple(sorted({tag for sentence in read["train"].tags for tag in sentence}))
    ids = {tag: number for number, tag in enumerate(tags)}
    examples = {}
    for split, file in read.items():
        for sentence, numbers in zip(file.tags, file.numbers, strict=True):
            for tag, number in zip(sentence, numbers, strict=True):
                if tag not in ids:
                    raise _unseen(tag, f"{file.source}:{number}", read["train"].source, tags)
        labels = [[ids[tag] for tag in sentence] for sentence in file.tags]
        examples[split] = Examples(file.source, file.words, None, labels, file.checksum)
    is_spans = any(tag[:2] in ("B-", "I-", "S-", "U-") for tag in tags)
    metrics = SPAN_METRICS if is_spans else METRICS["tagging"]
    headline = metrics[:1] if is_spans else ()
    columns = {"text": text, "label": label}
    return _task(files, examples, kind="tagging", labels=tags, metrics=metrics, columns=columns, headline=headline)
