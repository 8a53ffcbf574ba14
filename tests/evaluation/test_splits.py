"""Which rows teach and which judge: overlap is found where it was planted and nowhere else; parts are even."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask import UserError
from latemask.evaluation.splits import folds, near_keys, normalised, with_overlap
from latemask.evaluation.tasks import Examples
from tests.evaluation.conftest import make_task


def examples(texts, labels=None, pairs=None, source="train.csv"):
    return Examples(source, texts, pairs, [0] * len(texts) if labels is None else labels, source)


def task(train, dev, **others):
    return make_task(train=train, dev=replace(dev, source="dev.csv", checksum="dev.csv"), others=others)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A good film.", "a  good film"),
        ("“Good”, he said", '"good" he said!'),
        ("ﬁne １", "fine 1"),
        ("Straße", "STRASSE"),
        ("well-known\tthing", "well known thing"),
    ],
)
def test_nearly_the_same(one, other):
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("version 1.5", "version 15"),
        ("C++", "C"),
        ("a good film", "a good films"),
        (":)", ":("),  # nothing but punctuation: then it is the text
        ("?", "!"),
        ("not good", "good"),
        ("कि", "का"),  # vowel signs are no punctuation
        ("👍", "👎"),
        ("résumé", "resume"),
    ],
)
def test_not_the_same(one, other):
    assert normalised(one) != normalised(other)


def test_planted_overlap_is_counted_and_said(capsys):
    train = examples(["a film", "Good one!", "bad one", "new", ""], [0, 1, 0, 1, 0])
    dev = examples(["a film", "good one", "other", "", "BAD one."], [0, 0, 1, 0, 0])
    found = with_overlap(task(train, dev, test=examples(["fresh"], [1], source="test.csv")))
    assert found.overlap == {
        "dev": {"rows": 3, "exact": 1, "other_label": 1},
        "test": {"rows": 0, "exact": 0, "other_label": 0},
    }
    assert found.train is train
    assert capsys.readouterr().err.splitlines() == [
        "dev.csv: 3 of 5 rows stand in train.csv, too (1 exactly, 2 but for case, spacing or punctuation; "
        "1 of them with another label)"
    ]


def test_a_clean_split_is_silent(capsys):
    found = with_overlap(task(examples(["a film", "good"]), examples(["another film", "goods"])), drop=True)
    assert found.overlap["dev"]["rows"] == 0
    assert len(found.train) == 2
    assert capsys.readouterr().err == ""


def test_of_pairs_both_sides_must_be_the_same():
    train = examples(["q", "q", "r"], pairs=["a", "b", "a"])
    dev = examples(["Q", "q", "r"], pairs=["A.", "c", "b"])
    assert with_overlap(task(train, dev)).overlap["dev"]["rows"] == 1


def test_of_tagging_the_words_count_and_tags_are_compared_word_by_word():
    train = examples([["It", "rains"], ["Go", "home"]], [[0, 1], [1, 0]])
    dev = examples([["it", "rains", "."], ["Go", "home"], ["Go", "Home"]], [[0, 1, 0], [1, 1], [1, 0]])
    assert with_overlap(task(train, dev)).overlap["dev"] == {"rows": 3, "exact": 1, "other_label": 1}


def test_dropping_takes_rows_from_train_and_leaves_dev_alone(capsys):
    train = examples(["a film", "A film!", "bad", "other"], [0, 1, 0, 1])
    dev, test = examples(["a film", "x"], [0, 1]), examples(["BAD"], [0], source="test.csv")
    found = with_overlap(task(train, dev, test=test), drop=True)
    assert (found.train.texts, found.train.labels, found.train.dropped) == (["other"], [1], 3)
    assert found.dev.texts == dev.texts
    assert "train.csv: 3 of 4 rows are left out, as dev or test has them" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--drop-overlap: every row of train.csv stands in dev or test"):
        with_overlap(task(train, train), drop=True)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=40, max_size=80), st.integers(2, 5), st.integers(20, 40))
def test_every_row_is_in_dev_once_and_twins_stay_together(labels, count, different):
    texts = [f"text {number % different}" for number in range(len(labels))]
    rows = examples(texts, labels)
    keys = Counter()
    for train, dev in folds(rows, "regression", count):
        assert sorted(train.texts + dev.texts) == sorted(texts)
        assert not set(near_keys(train)) & set(near_keys(dev))
        keys.update(dev.texts)
    assert keys == Counter(texts)


def test_classes_are_spread_evenly_and_the_same_way_every_time():
    labels = [0] * 70 + [1] * 20 + [2] * 10
    rows = examples([f"text {number}" for number in range(100)], labels)
    parts = list(folds(rows, "classification", 5))
    assert [Counter(dev.labels) for _, dev in parts] == [Counter({0: 14, 1: 4, 2: 2})] * 5
    assert [dev.texts for _, dev in parts] == [dev.texts for _, dev in folds(rows, "classification", 5)]
    assert parts[0][1].source == "train.csv (held out)"


def test_a_class_that_stands_once_is_trained_on():
    rows = examples([f"text {number}" for number in range(21)], [0, 1] * 10 + [2])
    for train, dev in folds(rows, "classification", 5):
        assert set(train.labels) == {0, 1, 2}
        assert 2 not in dev.labels


def test_numbers_are_spread_evenly_and_rare_labels_of_several_too():
    rows = examples([f"text {number}" for number in range(100)], [float(number) ** 3 for number in range(100)])
    medians = [np.median(dev.labels) for _, dev in folds(rows, "regression", 5)]
    assert max(medians) < 2 * min(medians)
    several = examples(rows.texts, [[1, int(number < 5), 0] for number in range(100)])
    assert [sum(label[1] for label in dev.labels) for _, dev in folds(several, "multilabel", 5)] == [1] * 5


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["same"] * 9, [0, 1, 2] * 3, "1 different rows are too few for 5 parts"),
        ([f"text {number}" for number in range(6)], list(range(6)), "too few rows of each class to hold some out"),
    ],
)
def test_what_cannot_be_split_is_refused(texts, labels, message):
    rows = examples(texts, labels)
    with pytest.raises(UserError, match=message):
        next(folds(rows, "classification", 5))
