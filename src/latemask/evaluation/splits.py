"""Which rows teach and which judge: held-out parts and folds of a training set; rows that stand on both sides."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from latemask.evaluation.tasks import Examples, Kind, Task
from latemask.ground.console import say
from latemask.ground.errors import UserError

HELD_OUT = 5  # one row of so many is dev where there is no dev file
_BINS = 10  # of a regression's labels, so that every part has small and large ones
_SEED = 0  # the same rows for every encoder and seed


@cache
def _without_punctuation() -> dict[int, str]:
    # Symbols stay: C and C++ are not the same, nor are two smileys. No punctuation lies beyond plane 1.
    return {code: " " for code in range(0x20000) if unicodedata.category(chr(code)).startswith("P")}


def normalised(text: str) -> str:
    """Return a text without what hardly makes another text of it: case, spacing, punctuation, Unicode's variants."""
    plain = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(plain.translate(_without_punctuation()).split())
    return words or plain.strip()  # of punctuation alone, it is the text


def exact_keys(examples: Examples) -> list[Hashable]:
    """Return what is the same for two rows of the same text (or texts, or words)."""
    texts = [tuple(text) if isinstance(text, list) else text for text in examples.texts]
    return texts if examples.pairs is None else list(zip(texts, examples.pairs, strict=True))


def near_keys(examples: Examples) -> list[Hashable]:
    """Return what is the same for two rows of nearly the same text."""
    texts = [normalised(" ".join(text) if isinstance(text, list) else text) for text in examples.texts]
    if examples.pairs is None:
        return list(texts)
    return list(zip(texts, map(normalised, examples.pairs), strict=True))


def with_overlap(task: Task, drop: bool = False, advice: str = "") -> Task:
    """Count the rows of every other split that stand in train, too, and say so; `drop` takes them out of train."""
    near, exact = near_keys(task.train), set(exact_keys(task.train))
    labels: dict[Hashable, set[Any]] = {}
    for key, label in zip(near, task.train.labels, strict=True):
        labels.setdefault(key, set()).add(_hashable(label))
    found, elsewhere = {}, set()
    for split, examples in task.splits.items():
        if split == "train":
            continue
        keys = near_keys(examples)
        found[split] = _counted(examples, keys, labels, exact)
        elsewhere.update(keys)
        _say_overlap(examples, found[split], task.train, advice)
    task = replace(task, overlap=found)
    return _without(task, [row for row, key in enumerate(near) if key in elsewhere]) if drop else task


def _differs(label: Any, found: set[Any]) -> bool:
    """Whether no row of nearly the same text has this label; tags of other words cannot be compared."""
    if isinstance(label, tuple):
        found = {other for other in found if len(other) == len(label)}
    return bool(found) and label not in found


def _hashable(label: Any) -> Any:
    return tuple(label) if isinstance(label, list) else label


def _counted(
    examples: Examples, keys: list[Hashable], labels: dict[Hashable, set[Any]], exact: set[Hashable]
) -> dict[str, int]:
    rows = [row for row, key in enumerate(keys) if key in labels and not examples.is_empty(row)]
    same = exact_keys(examples)
    return {
        "rows": len(rows),
        "exact": sum(same[row] in exact for row in rows),
        "other_label": sum(_differs(_hashable(examples.labels[row]), labels[keys[row]]) for row in rows),
    }


def _say_overlap(examples: Examples, counts: dict[str, int], train: Examples, advice: str) -> None:
    if not counts["rows"] or examples.checksum == train.checksum is not None:  # the same file was warned of
        return
    near, other = counts["rows"] - counts["exact"], counts["other_label"]
    kinds = [f"{counts['exact']:,} exactly"] if counts["exact"] else []
    kinds += [f"{near:,} but for case, spacing or punctuation"] if near else []
    labelled = f"; {other:,} of them with another label" if other else ""
    say(
        f"{examples.source}: {counts['rows']:,} of {len(examples):,} rows stand in {train.source}, too "
        f"({', '.join(kinds)}{labelled}){advice}"
    )


def _without(task: Task, rows: list[int]) -> Task:
    if len(rows) == len(task.train):
        raise UserError(f"--drop-overlap: every row of {task.train.source} stands in dev or test, none is left")
    if not rows:
        return task
    say(f"{task.train.source}: {len(rows):,} of {len(task.train):,} rows are left out, as dev or test has them")
    dropped = set(rows)
    kept = [row for row in range(len(task.train)) if row not in dropped]
    return replace(task, train=replace(task.train.taken(kept), dropped=len(rows)))


def folds(examples: Examples, kind: Kind, count: int) -> Iterator[tuple[Examples, Examples]]:
    """Yield (train, dev) `count` times: every row is in dev once, with labels spread as evenly as they can be.

    Rows of nearly the same text stay on one side. A class that training would not see stays out of dev.
    """
    keys = near_keys(examples)
    groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    if len(groups) < count:
        raise UserError(f"{examples.source}: {len(groups):,} different rows are too few for {count} parts")
    group_of = np.array([groups[key] for key in keys])
    _, first = np.unique(group_of, return_index=True)
    for part in _parts(_strata([examples.labels[row] for row in first], kind), len(groups), count):
        in_dev = np.isin(group_of, part)
        in_dev &= ~_unseen(in_dev, examples.labels, kind)
        if not in_dev.any():
            raise UserError(f"{examples.source}: too few rows of each class to hold some out; give --dev")
        yield _part(examples, ~in_dev, "trained on"), _part(examples, in_dev, "held out")


def _part(examples: Examples, chosen: np.ndarray, words: str) -> Examples:
    part = examples.taken(np.flatnonzero(chosen))
    empty = sum(part.is_empty(row) for row in range(len(part)))
    return replace(part, source=f"{examples.source} ({words})", empty=empty)


def _parts(strata: list[Any], rows: int, count: int) -> list[np.ndarray]:
    from sklearn.model_selection import KFold, StratifiedKFold  # not for --help

    is_even = bool(strata) and max(Counter(strata).values()) >= count  # scikit-learn refuses what it cannot spread
    splitter = (StratifiedKFold if is_even else KFold)(count, shuffle=True, random_state=_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with fewer rows than parts: they are spread as far as they go
        return [part for _, part in splitter.split(np.zeros(rows), strata if is_even else None)]


def _strata(labels: list[Any], kind: Kind) -> list[Any]:
    """Return what the parts should have alike: the class, the tenth of all numbers, or the rarest of several labels."""
    if kind == "classification":
        return labels
    if kind == "regression":
        ranks = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        return [int(rank) * _BINS // len(labels) for rank in ranks]
    if kind == "multilabel":
        counts = np.sum(labels, axis=0)
        return [int(min(np.flatnonzero(row), key=lambda one: counts[one], default=-1)) for row in labels]
    return []


def _unseen(in_dev: np.ndarray, labels: list[Any], kind: Kind) -> np.ndarray:
    """Return which rows of dev have a class that is nowhere else."""
    if kind != "classification":
        return np.zeros(len(labels), bool)
    classes = np.array(labels)
    return in_dev & ~np.isin(classes, classes[~in_dev])
