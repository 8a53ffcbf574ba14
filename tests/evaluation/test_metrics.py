"""Metrics against scikit-learn's and scipy's own functions, on random and on degenerate predictions."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from latemask.evaluation import metrics as ours
from latemask.evaluation.metrics import (
    balanced_weights,
    constant_answer,
    constant_metrics,
    is_collapsed,
    measured,
    score_of,
    spans,
)
from latemask.evaluation.tasks import GLUE, Examples
from tests.evaluation.conftest import make_task

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, 50).tolist()
PREDICTIONS = {
    "random": RANDOM.integers(0, 2, 50).tolist(),
    "right": LABELS,
    "wrong": [1 - label for label in LABELS],
    "all 0": [0] * 50,
    "all 1": [1] * 50,
}
NUMBERS = RANDOM.normal(size=50).tolist()
NUMERIC = {
    "random": RANDOM.normal(size=50).tolist(),
    "right": NUMBERS,
    "ranks": np.argsort(np.argsort(NUMBERS)).tolist(),
    "constant": [1.5] * 50,
    "two values": [float(number > 0) for number in NUMBERS],
}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_classification_equals_scikit_learn(name):
    predictions = PREDICTIONS[name]
    assert ours.accuracy(LABELS, predictions) == sklearn.accuracy_score(LABELS, predictions)
    assert ours.f1(LABELS, predictions) == sklearn.f1_score(LABELS, predictions, zero_division=0)
    assert ours.matthews(LABELS, predictions) == sklearn.matthews_corrcoef(LABELS, predictions)
    macro = sklearn.f1_score(LABELS, predictions, average="macro", zero_division=0)
    assert ours.macro_f1(LABELS, predictions) == macro


@pytest.mark.parametrize("name", NUMERIC)
def test_correlations_equal_scipy(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pearson = stats.pearsonr(NUMBERS, NUMERIC[name]).statistic
        spearman = stats.spearmanr(NUMBERS, NUMERIC[name]).statistic
    np.testing.assert_equal(ours.pearson(NUMBERS, NUMERIC[name]), float(pearson))
    np.testing.assert_equal(ours.spearman(NUMBERS, NUMERIC[name]), float(spearman))


def test_labels_of_one_class_alone_are_no_error():
    assert ours.matthews([1, 1, 1], [1, 0, 1]) == 0
    assert ours.f1([0, 0], [0, 0]) == 0
    assert math.isnan(ours.pearson([2.0, 2.0], [1.0, 3.0]))
    assert math.isnan(ours.pearson([2.0], [1.0]))


def test_a_model_that_diverged_scores_nothing_and_raises_nothing():
    assert math.isnan(ours.pearson([1.0, 2.0, 3.0], [math.nan] * 3))
    task = make_task("regression")
    values = measured(task, task.dev.labels, [math.nan] * 12)
    assert score_of(task, values) == 0
    assert is_collapsed(task, [math.nan] * 12)


def test_glue_measures_what_glue_measures():
    assert {name: glue.metrics for name, glue in GLUE.items()} == {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }


def test_the_score_is_the_mean_of_the_headline_metrics():
    task = make_task(metrics=("f1", "accuracy"))
    assert score_of(task, {"f1": 0.8, "accuracy": 0.6}) == pytest.approx(0.7)
    task = make_task(metrics=("accuracy", "macro_f1"), headline=("accuracy",))
    assert score_of(task, {"accuracy": 0.6, "macro_f1": 0.1}) == 0.6


@pytest.mark.parametrize(
    ("kind", "predictions", "collapsed"),
    [
        ("classification", [1, 1, 1], True),
        ("classification", [1, 0, 1], False),
        ("regression", [0.3, 0.3, 0.3 + 1e-9], True),
        ("regression", [0.3, 0.31, 0.3], False),
        ("tagging", [[0, 0], [0]], True),
        ("tagging", [[0, 1], [0]], False),
        ("multilabel", [[1, 0], [1, 0]], True),
        ("multilabel", [[1, 0], [0, 0]], False),
    ],
)
def test_a_model_that_says_one_thing_only_has_collapsed(kind, predictions, collapsed):
    assert is_collapsed(make_task(kind), predictions) is collapsed


def test_what_one_scores_without_reading():
    train = Examples("t", ["a"] * 5, None, [1, 1, 1, 0, 0])
    dev = Examples("d", ["a"] * 4, None, [1, 0, 0, 0])
    task = make_task(train=train, dev=dev, metrics=("accuracy", "f1"))
    assert constant_answer(task) == 1
    assert constant_metrics(task) == {"accuracy": 0.25, "f1": 0.4}
    assert constant_answer(make_task("regression")) == pytest.approx(1.0)
    assert constant_metrics(make_task("tagging"))["span_f1"] == 0


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-A I-A O", [(1, 3, "A")]),
        ("B-A B-A I-A", [(0, 1, "A"), (1, 3, "A")]),
        ("I-A I-A O I-B", [(0, 2, "A"), (3, 4, "B")]),  # IOB1
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
        ("S-A B-B I-B E-B", [(0, 1, "A"), (1, 4, "B")]),  # IOBES
        ("B-A E-A I-A", [(0, 2, "A"), (2, 3, "A")]),
        ("O O", []),
        ("B I O B", [(0, 2, ""), (3, 4, "")]),  # kinds without a name
    ],
)
def test_spans_of_tags(tags, expected):
    assert spans(tags.split()) == expected


def test_span_f1_wants_borders_and_kind():
    truth = [["B-A", "I-A", "O", "B-B"], ["O"]]
    assert ours.span_f1(truth, truth) == 1
    assert ours.span_f1(truth, [["B-A", "O", "O", "B-B"], ["O"]]) == pytest.approx(0.5)
    assert ours.span_f1(truth, [["B-B", "I-B", "O", "B-B"], ["B-A"]]) == pytest.approx(2 / 5)
    assert ours.span_f1(truth, [["O"] * 4, ["O"]]) == 0


def test_several_labels_equal_scikit_learn_and_the_constant_answer_is_what_most_rows_have():
    labels, predictions = RANDOM.integers(0, 2, (2, 20, 3))
    task = make_task("multilabel", dev=Examples("d", ["a"] * 20, None, labels.tolist()))
    values = measured(task, labels.tolist(), predictions.tolist())
    assert values["micro_f1"] == sklearn.f1_score(labels.ravel(), predictions.ravel())
    columns = [sklearn.f1_score(labels[:, one], predictions[:, one]) for one in range(3)]
    assert values["macro_f1"] == pytest.approx(np.mean(columns))
    task = make_task("multilabel", train=Examples("t", ["a"] * 4, None, [[1, 0], [1, 1], [0, 0], [1, 0]]))
    assert constant_answer(task) == [1, 0]


def test_a_class_that_no_row_has_is_weighed_like_others():
    task = make_task(labels=("a", "b", "c"), train=Examples("t", ["a"] * 4, None, [0, 0, 0, 2]))
    assert balanced_weights(task) == [4 / (2 * 3), 1.0, 4 / 2]
