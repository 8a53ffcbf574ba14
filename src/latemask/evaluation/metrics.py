"""Scores as GLUE defines them, by scikit-learn and scipy; and what one gets without reading the text."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn
from sklearn.utils.class_weight import compute_class_weight

from latemask.evaluation.tasks import Task

Values = Sequence[Any]
Span = tuple[int, int, str]


def accuracy(labels: Values, predictions: Values) -> float:
    """Share of right answers."""
    return float(sklearn.accuracy_score(labels, predictions))


def f1(labels: Values, predictions: Values) -> float:
    """F1 of the class 1."""
    return float(sklearn.f1_score(labels, predictions, pos_label=1, zero_division=0))


def macro_f1(labels: Values, predictions: Values) -> float:
    """Mean of the classes' F1."""
    return float(sklearn.f1_score(labels, predictions, average=_averaged("macro", labels), zero_division=0))


def micro_f1(labels: Values, predictions: Values) -> float:
    """F1 over all labels of all rows together."""
    return float(sklearn.f1_score(labels, predictions, average=_averaged("micro", labels), zero_division=0))


def _averaged(how: str, labels: Values) -> str:
    """Several labels a row, of which there is only one: scikit-learn would take its absence for a class."""
    return "binary" if np.ndim(labels) == 2 and np.shape(labels)[1] == 1 else how


def matthews(labels: Values, predictions: Values) -> float:
    """Matthews' correlation; 0 where one class alone is predicted."""
    return float(sklearn.matthews_corrcoef(labels, predictions))


def pearson(labels: Values, predictions: Values) -> float:
    """Pearson's correlation; no number where one side is constant."""
    return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: Values, predictions: Values) -> float:
    """Spearman's correlation; no number where one side is constant."""
    return _correlation(stats.spearmanr, labels, predictions)


def _correlation(function: Callable[..., Any], labels: Values, predictions: Values) -> float:
    if len(labels) < 2 or not np.isfinite(np.asarray(predictions, float)).all():
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant input: the result says it
        return float(function(labels, predictions).statistic)


def span_f1(labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> float:
    """F1 over whole spans (B-, I-, E-, S- tags), as CoNLL's evaluation counts them: borders and kind must be right.

    Ours because scikit-learn has none and seqeval is no longer kept.
    """
    wanted = {(row, *span) for row, tags in enumerate(labels) for span in spans(tags)}
    found = {(row, *span) for row, tags in enumerate(predictions) for span in spans(tags)}
    return 2 * len(wanted & found) / (len(wanted) + len(found)) if wanted or found else 0.0


def spans(tags: Iterable[str]) -> list[Span]:
    """Return (start, end, kind) of the spans in a sentence's tags: IOB1, IOB2 and IOBES alike."""
    found: list[Span] = []
    start, before = 0, "O"
    kind: str | None = None
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        goes_on = prefix in ("I", "E", "M", "L") and name == kind and before not in ("E", "S", "L", "U")
        if kind is not None and not goes_on:
            found.append((start, place, kind))
            kind = None
        if prefix != "O" and not goes_on:
            start, kind = place, name
        before = prefix
    return found


_BY_NAME: dict[str, Callable[[Values, Values], float]] = {
    function.__name__: function for function in (accuracy, f1, macro_f1, micro_f1, matthews, pearson, spearman, span_f1)
}


def measured(task: Task, labels: list[Any], predictions: list[Any]) -> dict[str, float]:
    """Return all of a task's metrics."""
    flat = (_flat(labels), _flat(predictions)) if task.kind == "tagging" else (labels, predictions)
    if task.kind == "multilabel":
        flat = np.array(labels), np.array(predictions)  # scikit-learn takes no lists of lists
    named = (_named(labels, task.labels), _named(predictions, task.labels)) if "span_f1" in task.metrics else flat
    return {name: _BY_NAME[name](*(named if name == "span_f1" else flat)) for name in task.metrics}


def _flat(sentences: list[list[int]]) -> list[int]:
    return [tag for sentence in sentences for tag in sentence]


def _named(sentences: list[list[int]], labels: tuple[str, ...]) -> list[list[str]]:
    return [["O" if tag < 0 else labels[tag] for tag in sentence] for sentence in sentences]


def score_of(task: Task, metrics: dict[str, float]) -> float:
    """Return the mean of the headline metrics; a correlation with a constant counts 0."""
    values = [metrics[name] for name in task.headline or task.metrics]
    return sum(value if math.isfinite(value) else 0.0 for value in values) / len(values)


def reported_score(task: Task, metrics: dict[str, float]) -> float:
    """Return the score that a table shows: MNLI's is that of both its dev splits; a test set is never part of it."""
    score = score_of(task, metrics)
    if "mismatched" not in task.others:
        return score
    return (score + score_of(task, {name: metrics[f"{name}_mismatched"] for name in task.metrics})) / 2


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Return metrics as JSON can say them: it has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def is_collapsed(task: Task, predictions: list[Any]) -> bool:
    """Whether a model says the same of everything."""
    if task.kind == "multilabel":
        return len(set(map(tuple, predictions))) < 2
    values = np.asarray(_flat(predictions) if task.kind == "tagging" else predictions, float)
    if task.kind != "regression":
        return len(set(values.tolist())) < 2
    return not np.isfinite(values).all() or float(np.ptp(values)) <= 1e-6 * max(1.0, float(np.abs(values).max()))


def constant_answer(task: Task) -> int | float | list[int]:
    """Return the best answer that does not read the text: the majority class, the mean, or what most rows have."""
    if task.kind == "multilabel":
        return (np.mean(task.train.labels, axis=0) >= 0.5).astype(int).tolist()
    if task.kind == "regression":
        return float(np.mean(task.train.labels))
    labels = _flat(task.train.labels) if task.kind == "tagging" else task.train.labels
    counts = Counter(labels)
    return int(max(sorted(counts), key=lambda label: counts[label]))


def constant_metrics(task: Task) -> dict[str, float]:
    """Return what the constant answer scores on dev."""
    answer, labels = constant_answer(task), task.dev.labels
    if task.kind == "tagging":
        return measured(task, labels, [[answer] * len(tags) for tags in labels])
    return measured(task, labels, [answer] * len(labels))


def balanced_weights(task: Task) -> list[float]:
    """Return a weight for each class with which all count the same; of several labels, that of having one."""
    if task.kind == "multilabel":
        having = np.sum(task.train.labels, axis=0)
        return [(len(task.train) - count) / count if 0 < count < len(task.train) else 1.0 for count in having.tolist()]
    labels = np.array(_flat(task.train.labels) if task.kind == "tagging" else task.train.labels)
    present = np.unique(labels)  # --max-train may have left no row of a class
    weights = dict(zip(present.tolist(), compute_class_weight("balanced", classes=present, y=labels), strict=True))
    return [float(weights.get(label, 1.0)) for label in range(len(task.labels))]
