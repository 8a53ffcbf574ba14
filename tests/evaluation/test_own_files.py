"""Your own files: what kind of task they are shows in the labels; what is wrong is said with file and line."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from latemask import UserError
from latemask.evaluation.own_files import OwnFiles, load_own


@pytest.fixture
def own(table):
    """Load a task from the lines of two JSONL or CSV files."""

    def load(train, dev, ending="csv", kind=None, pair=None):
        files = {}
        for name, rows in (("train", train), ("dev", dev)):
            if ending == "jsonl":
                text = "\n".join(json.dumps({"text": t, "label": label}) for t, label in rows)
            else:
                text = "text,label\n" + "\n".join(f"{t},{label}" for t, label in rows)
            files[name] = table(f"{name}.{ending}", text + "\n")
        return one_task(**files, text_pair=pair, task_type=kind)

    return load


def one_task(**given):
    (task,) = load_own(OwnFiles(**given))
    return task


def rows(*labels):
    return [(f"text {number}", label) for number, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        (("neg", "pos", "neg"), "classification", ("neg", "pos")),
        (("10", "9", "1"), "classification", ("1", "9", "10")),  # by value, not by spelling
        (("1", "2", "x"), "classification", ("1", "2", "x")),
        (("0.5", "1.25", "3"), "regression", ()),
        ([str(number) for number in range(30)], "regression", ()),
        (("1.5", "2.5", "1.5"), "regression", ()),
        ([f"2023_{number:02}" for number in range(30)], "classification", tuple(f"2023_{n:02}" for n in range(30))),
        (("nan", "inf", "nan"), "classification", ("inf", "nan")),
    ],
)
def test_the_kind_is_recognised_from_the_labels(own, capsys, labels, kind, names):
    task = own(rows(*labels), rows(labels[0], labels[1]))
    assert (task.kind, task.labels) == (kind, names)
    assert f"taken as a {kind}" in capsys.readouterr().err


def test_json_knows_numbers_and_truth(own):
    assert own(rows(1.0, 0.0), rows(1.0), "jsonl").labels == ("0", "1")
    assert own(rows(True, False), rows(True), "jsonl").labels == ("False", "True")
    assert own(rows(0.5, 1), rows(1), "jsonl").train.labels == [0.5, 1.0]


def test_the_kind_can_be_said(own):
    assert own(rows("1", "2"), rows("2"), kind="regression").dev.labels == [2.0]
    assert own(rows("1.5", "2.5"), rows("2.5"), kind="classification").labels == ("1.5", "2.5")


@pytest.mark.parametrize(
    ("train", "dev", "kind", "message"),
    [
        (rows("a", "b"), rows("a", "c"), None, r"dev.csv:3: the label 'c' is not in .*train.csv, which has a, b"),
        (rows("a", "a"), rows("a"), None, r"train.csv: one class only, every label is 'a'"),
        (rows("1.5", "n/a", "2.5", "0.1"), rows("1.5"), None, r"train.csv:3: the label 'n/a' is not a number"),
        (rows("1.5", "2.5"), rows("1.5", "much"), None, r"dev.csv:3: the label 'much' is not a number"),
        (rows("a", "b"), rows("a"), "regression", r"train.csv:2: the label 'a' is not a number"),
        (rows("1.5", "inf", "2.5"), rows("1.5"), None, r"train.csv:3: the label 'inf' is not a number"),
        (rows("2.5", "2.5"), rows("2.5"), None, r"train.csv: one class only, every label is '2.5'"),
        (rows("a", ""), rows("a"), None, r"train.csv:3: no label in 'label'"),
        ([("", "a"), (" ", "b")], rows("a"), None, r"train.csv: every text is empty"),
    ],
)
def test_bad_labels_are_named_with_file_and_line(own, train, dev, kind, message):
    with pytest.raises(UserError, match=message):
        own(train, dev, kind=kind)


def test_a_list_is_neither_a_text_nor_a_label(own):
    with pytest.raises(UserError, match=r"train.jsonl:1: the label is a list"):
        own(rows(["a"], ["b"]), rows("a"), "jsonl", kind="classification")
    with pytest.raises(UserError, match=r"dev.jsonl:1: the label is a list"):
        own(rows("a", "b"), rows(["a"]), "jsonl")
    with pytest.raises(UserError, match=r"train.jsonl:1: 'text' is a list"):
        own([(["a"], "x"), ("b", "y")], rows("x"), "jsonl")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([("a", "x"), ("b", "half \ud800")], r"train.jsonl:2: half a surrogate pair"),
        ([("half \ud800", "x"), ("b", "y")], r"train.jsonl:1: half a surrogate pair"),
        ([("a", 0.5), ("b", 10**400), ("c", 1.5)], r"train.jsonl:2: the label '10+' is not a number"),
        ([("a", 0.5), ("b", 1e39)], r"train.jsonl:2: the label '1e\+39' is not a number that a regression can learn"),
    ],
)
def test_what_json_can_spell_and_nobody_can_learn(own, train, message):
    with pytest.raises(UserError, match=message):
        own(train, train[:1], "jsonl")


def test_bytes_are_no_text_and_nan_is_none(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [b"a", b"b"], "label": ["x", "y"]}), path)
    with pytest.raises(UserError, match=r"a.parquet: row 1: 'text' is a bytes"):
        one_task(train=path, dev=path)
    parquet.write_table(pyarrow.table({"text": [float("nan"), 2.0, 3.0], "label": ["x", "y", "x"]}), path)
    assert one_task(train=path, dev=path).dev.texts == ["", "2.0", "3.0"]


def test_a_score_on_the_training_file_is_warned_of(table, capsys):
    path = table("a.csv", "text,label\na,x\nb,y\n")
    one_task(train=path, dev=path)
    assert "warning: dev is the same file as train" in capsys.readouterr().err


def test_empty_texts_are_said_not_trained_on_and_scored(own, capsys):
    task = own([("a", "x"), ("", "y"), ("b", "y")], [("", "x"), ("c", "y")])
    assert task.train.texts == ["a", "b"]
    assert task.dev.texts == ["", "c"]
    assert "train.csv:3: no text; 1 of 3 rows have none" in capsys.readouterr().err


def test_two_texts_and_a_test_file(table):
    header = "question,answer,right\n"
    files = {
        "train": table("train.csv", header + "q1,a1,yes\nq2,a2,no\n"),
        "dev": table("dev.csv", header + "q3,a3,no\n"),
        "test": table("test.csv", header + "q4,a4,yes\n"),
    }
    task = one_task(**files, text="question", text_pair="answer", label="right")
    assert task.train.pairs == ["a1", "a2"]
    assert task.others["test"].labels == [task.labels.index("yes")]
    assert task.columns == {"text": "question", "text_pair": "answer", "label": "right"}


def test_tags_become_a_task_and_unknown_ones_are_named(table):
    train = table("train.txt", "EU B-ORG\nnow O\n\nIt O\n")
    task = one_task(train=train, dev=table("dev.txt", "UN B-ORG\n"), task_type="tagging")
    assert task.labels == ("B-ORG", "O")
    assert task.train.labels == [[0, 1], [1]]
    assert (task.metrics, task.headline) == (("span_f1", "accuracy"), ("span_f1",))
    with pytest.raises(UserError, match=r"dev.txt:2: the label 'B-LOC' is not in .*train.txt, which has B-ORG, O"):
        one_task(train=train, dev=table("dev.txt", "UN B-ORG\nRome B-LOC\n"), task_type="tagging")
    parts = table("parts.conll", "dogs NOUN\nrun VERB\n")
    assert one_task(train=parts, dev=parts).metrics == ("accuracy",)


def test_a_part_of_the_training_rows_is_the_same_part_every_time(own):
    task = own(rows(*["a", "b"] * 50), rows("a"))
    part = task.limited(20)
    assert len(part.train) == 20
    assert part.part == "20 of 100 training rows"
    assert part.train.texts == task.limited(20).train.texts
    assert set(part.train.texts) < set(task.train.texts)
    assert all(part.train.labels[row] == task.train.labels[task.train.texts.index(text)]
               for row, text in enumerate(part.train.texts))  # fmt: skip
    assert task.limited(100) is task
    with pytest.raises(UserError, match=r"one class only.*raise --max-train"):
        task.limited(1)
