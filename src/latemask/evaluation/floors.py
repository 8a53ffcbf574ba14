"""Floors: what a task gives without an encoder. One that does not beat them has learnt nothing of use for the task.

The majority class or the mean reads nothing. A linear model on TF-IDF counts n-grams; for taggers the floor is each
word's most frequent tag. Never-trained encoders, the other floor, are encoders (`encoders.controls_for`).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.evaluation.tasks import Examples, Task

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CONSTANT, TFIDF, FREQUENT_TAG = "majority class or mean", "TF-IDF + linear model", "most frequent tag of each word"

_MOST_CHARACTERS = 20_000_000  # of training text: the whole of most tasks, and a minute or two of counting n-grams
_MOST_FEATURES = 1 << 17  # of each kind of n-gram, the most frequent ones
_MOST_TUNING_ROWS = 20_000
_HELD_OUT = 0.2
_FEWEST_TO_TUNE = 20
_STRENGTHS = (3.0, 0.3, 30.0)  # C, or 1/alpha; the first is taken where there is nothing to choose by
_WORDS = r"\w+|[^\w\s]+"  # every text that is not blank has one, so that no vocabulary is empty

Labels = np.ndarray
Predict = Callable[[Examples], list[Any]]


@dataclass(frozen=True)
class Floor:
    """What one floor scores on a task."""

    name: str
    words: str
    """How it was made."""
    score: float
    metrics: dict[str, float | None]
    """On dev and, with the split's name behind them, on the other splits that are scored."""


def constant_floor(task: Task) -> dict[str, Any]:
    """Return what one scores without reading, for the record of a task."""
    from latemask.evaluation.metrics import constant_metrics, finite, reported_score  # loads scikit-learn

    metrics = constant_metrics(task)
    for split, examples in task.others.items():
        metrics |= _suffixed(constant_metrics(replace(task, dev=examples)), split)
    return {"score": reported_score(task, metrics), "metrics": finite(metrics)}


def floors_of(task: Task) -> list[dict[str, Any]]:
    """Return the floors that read the text, for the record of a task; always the same ones for the same task."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # the sums of several threads are rounded differently
        name, words, predict = _most_frequent_tags(task) if task.kind == "tagging" else _linear_model(task)
    return [asdict(_scored(name, words, task, predict))]


def _scored(name: str, words: str, task: Task, predict: Predict) -> Floor:
    from latemask.evaluation.metrics import finite, measured, reported_score

    metrics = measured(task, task.dev.labels, predict(task.dev))
    for split, examples in task.others.items():
        metrics |= _suffixed(measured(task, examples.labels, predict(examples)), split)
    return Floor(name, words, reported_score(task, metrics), finite(metrics))


def _suffixed(metrics: dict[str, float], split: str) -> dict[str, float]:
    return {f"{name}_{split}": value for name, value in metrics.items()}


def _most_frequent_tags(task: Task) -> tuple[str, str, Predict]:
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    every: Counter[int] = Counter()
    for words, tags in zip(task.train.texts, task.train.labels, strict=True):
        every.update(tags)
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    tag_of = {word: _most_frequent(tags) for word, tags in counts.items()}
    usual = _most_frequent(every)

    def predict(examples: Examples) -> list[list[int]]:
        return [[tag_of.get(word, usual) for word in words] for words in examples.texts]

    how = f"the tag that each word has most often in train; of unknown words the most frequent, {task.labels[usual]}"
    return FREQUENT_TAG, how, predict


def _most_frequent(tags: Counter[int]) -> int:
    return min(tags, key=lambda tag: (-tags[tag], tag))


def _linear_model(task: Task) -> tuple[str, str, Predict]:
    train = _affordable(task.train)
    features = NGrams()
    matrix, labels = features.fit(train), np.asarray(train.labels)
    strength = _chosen_strength(task, matrix, labels)
    model = _fitted(task, strength, matrix, labels)

    def predict(examples: Examples) -> list[Any]:
        return _predicted(model, features(examples))

    of = "" if len(train) == len(task.train) else f" of {len(task.train):,}"
    kind = "ridge regression" if task.kind == "regression" else "logistic regression"
    how = f"{kind} on word 1-2-grams and character 2-5-grams of {len(train):,}{of} training rows, strength {strength:g}"
    return TFIDF, how, predict


def _affordable(train: Examples) -> Examples:
    """Return as many rows as have no more characters than we count n-grams of, drawn at random."""
    lengths = np.array([len(text) for text in train.texts])
    if train.pairs is not None:
        lengths += np.array([len(text) for text in train.pairs])
    if lengths.sum() <= _MOST_CHARACTERS:
        return train
    order = np.random.default_rng(0).permutation(len(train))
    count = max(2, int(np.searchsorted(np.cumsum(lengths[order]), _MOST_CHARACTERS)))
    return train.taken(np.sort(order[:count]))


class NGrams:
    """Texts → TF-IDF of their n-grams; of pairs those of both texts, how they differ and what they share."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_union

        common = {"sublinear_tf": True, "max_features": _MOST_FEATURES, "dtype": np.float32}
        self.vectors = make_union(
            TfidfVectorizer(analyzer="word", ngram_range=(1, 2), token_pattern=_WORDS, **common),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **common),
        )

    def fit(self, train: Examples) -> csr_matrix:
        """Learn the n-grams of a training set, and return its features."""
        return self._joined(train, self.vectors.fit_transform)

    def __call__(self, examples: Examples) -> csr_matrix:
        """Return [rows, features]."""
        return self._joined(examples, self.vectors.transform)

    def _joined(self, examples: Examples, vectors_of: Callable[[list[str]], csr_matrix]) -> csr_matrix:
        from scipy.sparse import hstack

        if examples.pairs is None:
            return vectors_of(examples.texts)
        both = vectors_of([*examples.texts, *examples.pairs])
        first, second = both[: len(examples)], both[len(examples) :]
        return hstack([first, second, abs(first - second), first.multiply(second)], format="csr")


def _chosen_strength(task: Task, matrix: csr_matrix, labels: Labels) -> float:
    """Return the strength that scores best on a held-out part of train."""
    from sklearn.model_selection import train_test_split

    from latemask.evaluation.metrics import measured, score_of

    if len(labels) < _FEWEST_TO_TUNE:
        return _STRENGTHS[0]
    rows = np.random.default_rng(0).permutation(len(labels))[:_MOST_TUNING_ROWS]
    kept, held = train_test_split(rows, test_size=_HELD_OUT, random_state=0, stratify=_strata(task, labels[rows]))

    def score(strength: float) -> float:
        predictions = _predicted(_fitted(task, strength, matrix[kept], labels[kept]), matrix[held])
        return score_of(task, measured(task, labels[held].tolist(), predictions))

    return max(_STRENGTHS, key=score)


def _strata(task: Task, labels: Labels) -> Labels | None:
    """Return what both parts should have in the same shares; None where a class is too rare for that."""
    if task.kind != "classification":
        return None
    counts = np.unique(labels, return_counts=True)[1]
    is_possible = counts.min() >= 2 and len(counts) <= math.floor(_HELD_OUT * len(labels))
    return labels if is_possible else None


def _fitted(task: Task, strength: float, matrix: csr_matrix, labels: Labels) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import StandardScaler

    if task.kind == "regression":  # of scaled numbers: the square of a large one does not fit into float32
        ridge = Ridge(alpha=1 / strength, solver="sparse_cg")
        model: Any = TransformedTargetRegressor(ridge, transformer=StandardScaler())
    else:  # one model a class needs less memory than one for all, and takes several labels a row as well
        logistic = LogisticRegression(C=strength, solver="liblinear", dual=True, random_state=0)
        model = OneVsRestClassifier(logistic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a floor need not be the very optimum
        warnings.filterwarnings("ignore", "Label .* present in all training examples")
        return model.fit(matrix, labels)


def _predicted(model: Any, matrix: csr_matrix) -> list[Any]:
    found: list[Any] = model.predict(matrix).tolist()
    return found
