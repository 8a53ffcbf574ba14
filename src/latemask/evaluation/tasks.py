"""What a task is: kind, labels, metrics and examples. GLUE is nine rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from latemask.ground.console import printable
from latemask.ground.errors import UserError

Kind = Literal["classification", "regression", "tagging", "multilabel"]
GlueName = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]

_LARGEST_NUMBER = 1e30  # its square must fit into float32
ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class GlueTask:
    """One row of GLUE: where it is, what its columns are called, what is measured, how large the whole of it is."""

    name: str
    folder: str
    text: str
    pair: str | None
    label: str
    labels: tuple[str, ...]
    """As the files write them, in the order of their ids on the Hub; none for a regression."""
    metrics: tuple[str, ...]
    train_rows: int
    dev_rows: int
    dev: str = "dev"
    other_dev: str | None = None

    @property
    def kind(self) -> Kind:
        """Classification or regression."""
        return "classification" if self.labels else "regression"


GLUE: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("cola", "CoLA", "sentence", None, "label", ("0", "1"), ("matthews",), 8551, 1043),
        GlueTask("sst2", "SST-2", "sentence", None, "label", ("0", "1"), ("accuracy",), 67349, 872),
        GlueTask("mrpc", "MRPC", "#1 String", "#2 String", "Quality", ("0", "1"), ("f1", "accuracy"), 3668, 408),
        GlueTask("stsb", "STS-B", "sentence1", "sentence2", "score", (), ("pearson", "spearman"), 5749, 1500),
        GlueTask("qqp", "QQP", "question1", "question2", "is_duplicate", ("0", "1"), ("f1", "accuracy"), 363846, 40430),
        replace(
            GlueTask("mnli", "MNLI", "sentence1", "sentence2", "gold_label", INFERENCE, ("accuracy",), 392702, 9815),
            dev="dev_matched",
            other_dev="dev_mismatched",
        ),
        GlueTask("qnli", "QNLI", "question", "sentence", "label", ENTAILMENT, ("accuracy",), 104743, 5463),
        GlueTask("rte", "RTE", "sentence1", "sentence2", "label", ENTAILMENT, ("accuracy",), 2490, 277),
        GlueTask("wnli", "WNLI", "sentence1", "sentence2", "label", ("0", "1"), ("accuracy",), 635, 71),
    )
}
COLA_COLUMNS = ("source", "label", "star", "sentence")  # its files have no header


@dataclass(frozen=True)
class Examples:
    """Labelled texts of one split. Taggers have a list of words and a list of tags instead of a text and a label."""

    source: str
    texts: list[Any]
    pairs: list[str] | None
    labels: list[Any]
    """Ids of classes, numbers, lists of ids of tags; for several labels at once a 0 or 1 for each of them."""
    checksum: str | None = None
    empty: int = 0
    """Rows without a text: left out of training, kept where scores are counted."""
    skipped: int = 0
    """Rows that could not be read."""
    dropped: int = 0
    """Rows that were left out because dev or test has them."""

    def __len__(self) -> int:
        return len(self.texts)

    def is_empty(self, row: int) -> bool:
        """Whether a row has no text, or no second one."""
        if isinstance(self.texts[row], list):
            return not self.texts[row]
        return not (self.texts[row].strip() and (self.pairs is None or self.pairs[row].strip()))

    def empty_rows(self) -> list[int]:
        """Return the rows without a text; refuse a file where all are."""
        found = [row for row in range(len(self)) if self.is_empty(row)]
        if len(found) == len(self):
            raise UserError(f"{self.source}: every text is empty")
        return found

    def without_empty(self) -> Examples:
        """Return the rows that one can learn from."""
        return self.taken([row for row in range(len(self)) if not self.is_empty(row)]) if self.empty else self

    def taken(self, rows: Sequence[int] | np.ndarray) -> Examples:
        """Return some of the rows."""
        return replace(
            self,
            texts=[self.texts[row] for row in rows],
            pairs=None if self.pairs is None else [self.pairs[row] for row in rows],
            labels=[self.labels[row] for row in rows],
        )


@dataclass(frozen=True)
class Task:
    """Everything a fine-tuning needs to know of its data."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    train: Examples
    dev: Examples
    others: dict[str, Examples] = field(default_factory=dict)
    """More splits that are scored, by the word that their metrics end in: `mismatched`, `test`."""
    part: str = ""
    """What of the task this is, where it is not all of it."""
    columns: dict[str, str | None] = field(default_factory=dict)
    headline: tuple[str, ...] = ()
    """The metrics whose mean is the score; by default all of them, as GLUE has it."""
    overlap: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each other split: how many of its rows stand in train, too (see splits.with_overlap)."""

    @property
    def splits(self) -> dict[str, Examples]:
        """All examples by the name of their split."""
        return {"train": self.train, "dev": self.dev, **self.others}

    def limited(self, rows: int | None) -> Task:
        """Return the task with a random part of its training rows, the same part for every encoder and seed."""
        if rows is None or rows >= len(self.train):
            return self
        chosen = np.sort(np.random.default_rng(0).permutation(len(self.train))[:rows])
        part = f"{rows:,} of {len(self.train):,} training rows"
        task = replace(self, train=self.train.taken(chosen), part="; ".join(filter(None, [self.part, part])))
        refuse_one_class(task, "; raise --max-train")
        return task


def parsed_number(value: Any) -> float | None:
    """Return what a label says as a number, if it is one: 2023_01, True, nan and inf are none."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def number_of(value: Any, where: str) -> float:
    """Return a regression's label, or say where it is none."""
    number = parsed_number(value)
    if number is None or abs(number) > _LARGEST_NUMBER:
        raise UserError(
            f"{where}: the label '{printable(str(value)[:40])}' is not a number that a regression can learn"
        )
    return number


def refuse_one_class(task: Task, advice: str = "") -> None:
    """A training set with one label alone teaches nothing."""
    labels = task.train.labels
    if task.kind == "multilabel":
        if len(set(map(tuple, labels))) < 2:
            raise UserError(f"{task.train.source}: every row has the same labels{advice}")
        return
    found = {tag for tags in labels for tag in tags} if task.kind == "tagging" else set(labels)
    if len(found) < 2:
        (only,) = found or {"none"}
        shown = task.labels[only] if task.labels and found else only
        raise UserError(f"{task.train.source}: one class only, every label is '{printable(str(shown))}'{advice}")
