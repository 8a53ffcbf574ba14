"""Floors: what a task gives without an encoder, against scikit-learn used plainly and against counting by hand."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from latemask.evaluation import floors
from latemask.evaluation.floors import FREQUENT_TAG, TFIDF, constant_floor, floors_of
from latemask.evaluation.tasks import Examples, Task
from tests.evaluation.conftest import PLAIN, WORDS, make_task, sentence


def examples(texts, labels, pairs=None):
    return Examples("made up", texts, pairs, labels, "0" * 64)


def noisy_task(rows=80, kinds=3, **changes):
    """Texts whose first word says their class most of the time."""
    random = np.random.default_rng(1)
    names = [*WORDS["0"], *WORDS["1"]][:kinds]
    labels = random.integers(0, kinds, rows).tolist()
    shown = [label if random.random() < 0.8 else int(random.integers(0, kinds)) for label in labels]
    texts = [f"{names[label]} {' '.join(random.choice(PLAIN, 4))}" for label in shown]
    half = rows // 2
    task = Task("noisy", "classification", tuple(map(str, range(kinds))), ("accuracy", "macro_f1"),
                examples(texts[:half], labels[:half]), examples(texts[half:], labels[half:]))  # fmt: skip
    return replace(task, **changes)


def by_hand(train, dev):
    """TF-IDF of words and characters, as a reader of scikit-learn's manual would write it down."""
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]+", sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    return tuple(
        np.hstack([getattr(vectors, method)(texts).toarray() for vectors in (words, letters)])
        for method, texts in (("fit_transform", train), ("transform", dev))
    )


@pytest.mark.parametrize("strength", [0.3, 30.0])
def test_classes_are_those_of_one_logistic_regression_a_class(monkeypatch, strength):
    monkeypatch.setattr(floors, "_STRENGTHS", (strength,))
    task = noisy_task()
    train, dev = by_hand(task.train.texts, task.dev.texts)
    model = LogisticRegression(C=strength, solver="liblinear")
    sure = [model.fit(train, np.equal(task.train.labels, k)).predict_proba(dev)[:, 1] for k in range(3)]
    right = np.mean(np.argmax(sure, 0) == task.dev.labels)
    (floor,) = floors_of(task)
    assert (floor["name"], floor["metrics"]["accuracy"]) == (TFIDF, pytest.approx(right))
    assert 0.5 < right < 1
    assert floor["words"].endswith(f"of 40 training rows, strength {strength:g}")


def test_numbers_are_those_of_a_ridge_regression_and_large_ones_do_no_harm(monkeypatch):
    monkeypatch.setattr(floors, "_STRENGTHS", (1.0,))
    task = noisy_task(kind="regression", labels=(), metrics=("pearson",))
    train, dev = by_hand(task.train.texts, task.dev.texts)
    wanted = pearsonr(Ridge(alpha=1.0).fit(train, task.train.labels).predict(dev), task.dev.labels).statistic
    assert floors_of(task)[0]["score"] == pytest.approx(wanted, abs=1e-3)
    huge = replace(task, train=examples(task.train.texts, [1e30 * label for label in task.train.labels]))
    assert floors_of(huge)[0]["score"] == pytest.approx(wanted, abs=1e-3)


def test_a_pair_is_judged_by_what_its_texts_share():
    """Which word it is says nothing: only whether both texts have the same one."""
    random = np.random.default_rng(0)
    names = [*WORDS["0"], *WORDS["1"]]
    first = random.integers(0, 8, 400)
    same = random.integers(0, 2, 400)
    second = np.where(same, first, (first + random.integers(1, 8, 400)) % 8)
    texts, pairs = ([f"the {names[number]} film" for number in side] for side in (first, second))
    both = [examples(texts[part], same[part].tolist(), pairs[part]) for part in (slice(300), slice(300, 400))]
    task = Task("pairs", "classification", ("no", "yes"), ("accuracy",), *both)
    assert floors_of(task)[0]["score"] == 1
    alone = replace(task, train=replace(both[0], pairs=None), dev=replace(both[1], pairs=None))
    assert floors_of(alone)[0]["score"] < 0.7


@pytest.mark.parametrize("strengths", [(1e-6, 3.0), (3.0, 1e-6)])
def test_the_strength_is_chosen_by_what_scores_on_held_out_training_rows(monkeypatch, strengths):
    """One of the two says the same of everything; dev, where this would be right, has no say."""
    monkeypatch.setattr(floors, "_STRENGTHS", strengths)
    task = noisy_task()
    blind = replace(task, dev=examples(task.dev.texts, [0] * len(task.dev)))
    assert floors_of(blind)[0]["words"].endswith("strength 3")


def test_every_word_has_its_most_frequent_tag_and_an_unknown_one_the_majoritys():
    train = examples([["a", "b", "a"], ["a", "c"], ["c"]], [[0, 1, 1], [1, 2], [2]])
    dev = examples([["a", "b", "c", "new"]], [[1, 1, 2, 0]])
    task = make_task("tagging", labels=("X", "Y", "Z"), metrics=("accuracy",), train=train, dev=dev)
    (floor,) = floors_of(task)
    assert (floor["name"], floor["score"]) == (FREQUENT_TAG, 0.75)
    assert floor["words"].endswith("of unknown words the most frequent, Y")


def test_the_tags_of_a_larger_text_equal_a_slow_loop():
    random = np.random.default_rng(0)
    texts = [[str(word) for word in random.integers(0, 30, 8)] for _ in range(60)]
    labels = [[(int(word) + int(random.random() < 0.4)) % 5 for word in words] for words in texts]
    dev = examples(texts[40:], labels[40:])
    task = make_task("tagging", labels=tuple("ABCDE"), metrics=("accuracy",),
                     train=examples(texts[:40], labels[:40]), dev=dev)  # fmt: skip
    seen = [pair for words, tags in zip(texts[:40], labels[:40], strict=True) for pair in zip(words, tags, strict=True)]
    everywhere = Counter(tag for _, tag in seen)
    right = []
    for words, tags in zip(dev.texts, dev.labels, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts = Counter(other for name, other in seen if name == word) or everywhere
            right.append(tag == min(sorted(counts), key=lambda one: -counts[one]))
    assert floors_of(task)[0]["score"] == pytest.approx(np.mean(right))


def test_other_splits_are_scored_and_mnlis_score_is_that_of_both_its_dev_splits():
    task = noisy_task()
    task = replace(task, metrics=("accuracy",), others={"mismatched": task.train, "test": task.train.taken(range(4))})
    for floor in (constant_floor(task), floors_of(task)[0]):
        assert set(floor["metrics"]) == {"accuracy", "accuracy_mismatched", "accuracy_test"}
        both = floor["metrics"]["accuracy"] + floor["metrics"]["accuracy_mismatched"]
        assert floor["score"] == pytest.approx(both / 2)


def test_the_same_task_has_the_same_floors_and_json_can_say_them():
    for kind in ("classification", "regression", "tagging"):
        once, again = (json.dumps(floors_of(make_task(kind))) for _ in range(2))
        assert once == again


def test_of_a_large_training_set_a_part_is_counted_and_said(monkeypatch):
    task = make_task(rows=60)
    monkeypatch.setattr(floors, "_MOST_CHARACTERS", sum(map(len, task.train.texts)) // 2)
    words = floors_of(task)[0]["words"]
    counted = int(words.split(" of ")[1].split()[0])
    assert f"{counted} of 60 training rows" in words
    assert 20 < counted < 40


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["!", "?"], [0, 1]),  # no word in it
        (["a b"] * 24 + ["c"], [0] * 24 + [1]),  # one class has a single row, which may be held out
        ([sentence(n, str(n % 2)) for n in range(30)], list(range(30))),  # as many classes as rows
        (["good", ""] * 12, [1, 0] * 12),  # an empty text
    ],
)
def test_odd_training_sets_have_a_floor_too(texts, labels):
    train = examples(texts, labels)
    task = Task("odd", "classification", tuple(map(str, range(max(labels) + 1))), ("accuracy",), train, train)
    assert 0.5 <= floors_of(task)[0]["score"] <= 1
