"""Your own files: what kind of task they are shows in the labels; what is wrong is said with file and line."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from latemask import UserError
from latemask.evaluation.identity import task_record
from latemask.evaluation.own_files import OwnFiles, load_own, name_of
from tests.evaluation.conftest import SHARED


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


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("trec-train.csv", "trec"),
        ("train_trec.jsonl", "trec"),
        ("ewt-train.conllu.gz", "ewt"),
        ("v1.2.training.tsv.zst", "v1.2"),
        ("train.csv", "train"),
        ("constrain.csv", "constrain"),
        ("trains.csv", "trains"),
    ],
)
def test_a_task_is_called_after_its_file(file, name):
    assert name_of(Path("somewhere") / file) == name


def test_a_name_can_be_given_and_the_folder_says_nothing(table):
    path = table("train.csv", "text,label\na,x\nb,y\n")
    assert one_task(train=path, dev=path).name == "train"
    assert one_task(train=path, dev=path, name="moods").name == "moods"
    with pytest.raises(UserError, match="--name 'a/b': a name without slashes"):
        one_task(train=path, dev=path, name="a/b")


def ten_rows(start=0):
    return "text,label\n" + "".join(f"row {number},{'xy'[number % 2]}\n" for number in range(start, start + 10))


def test_without_a_dev_file_a_part_is_held_out_and_it_is_said(table, capsys):
    task = one_task(train=table("a-train.csv", ten_rows()), test=table("test.csv", ten_rows(5)))
    assert (len(task.train), len(task.dev), sorted(task.dev.labels)) == (8, 2, [0, 1])
    assert not set(task.train.texts) & set(task.dev.texts)
    said = capsys.readouterr().err
    assert "no --dev: 2 rows of" in said
    assert "same file" not in said
    assert task.overlap["dev"]["rows"] == 0
    assert task.overlap["test"]["rows"] == sum(text in task.train.texts for text in task.others["test"].texts) > 0


def test_folds_are_tasks_of_one_file(table):
    tasks = load_own(OwnFiles(train=table("a-train.csv", ten_rows()), folds=5))
    assert [task.name for task in tasks] == [f"a fold {number} of 5" for number in range(1, 6)]
    assert sorted(text for task in tasks for text in task.dev.texts) == [f"row {number}" for number in range(10)]
    assert {task.labels for task in tasks} == {("x", "y")}


def test_rows_on_both_sides_are_said_and_can_be_dropped(table, capsys):
    files = {"train": table("train.csv", ten_rows()), "dev": table("dev.csv", ten_rows(8))}
    assert one_task(**files).overlap["dev"] == {"rows": 2, "exact": 2, "other_label": 0}
    assert "2 of 10 rows stand in" in (said := capsys.readouterr().err)
    assert ". --drop-overlap leaves them out of training" in said
    dropped = one_task(**files, drop_overlap=True)
    assert (len(dropped.train), dropped.train.dropped, len(dropped.dev)) == (8, 2, 10)
    assert task_record(dropped)["overlap"] == {"dev": {"rows": 2, "exact": 2, "other_label": 0}}
    assert task_record(dropped)["data"]["train"]["dropped"] == 2


def test_a_folder_of_tasks(tmp_path, capsys):
    for name, file, text in (
        ("moods", "train.csv", ten_rows()),
        ("moods", "validation.csv", ten_rows(20)),
        ("tags", "train.conll", "\n\n".join(["dogs NOUN\nrun VERB"] * 3 + [f"dog{n} NOUN" for n in range(9)])),
        ("notes", "readme.txt", "nothing"),
        (".hidden", "train.csv", ""),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text(text)
    moods, tags = load_own(OwnFiles(tasks=tmp_path))
    assert (moods.name, moods.kind, len(moods.train), len(moods.dev)) == ("moods", "classification", 10, 10)
    assert (tags.name, tags.kind) == ("tags", "tagging")
    assert "notes: no train file in it; left out" in capsys.readouterr().err
    (tmp_path / "moods" / "train.jsonl").write_text("")
    with pytest.raises(UserError, match=r"moods: train.csv and train.jsonl are both there"):
        load_own(OwnFiles(tasks=tmp_path))
    with pytest.raises(UserError, match=r"no sub-folder with a train file, such as TASK/train.csv"):
        load_own(OwnFiles(tasks=tmp_path / "notes"))


@pytest.mark.parametrize(
    ("ending", "text", "given"),
    [
        ("jsonl", '{"text":"a","label":["x","y"]}\n{"text":"b","label":[]}\n{"text":"c","label":["y"]}\n', {}),
        ("csv", "text,label\na,x|y\nb,\nc, y |\n", {"label_separator": "|"}),
    ],
)
def test_several_labels_a_row(table, ending, text, given):
    train = table(f"train.{ending}", text)
    task = one_task(train=train, dev=train, **given)
    assert (task.kind, task.labels, task.train.labels) == ("multilabel", ("x", "y"), [[1, 1], [0, 0], [0, 1]])
    assert (task.metrics, task.headline) == (("micro_f1", "macro_f1"), ("micro_f1",))


def test_labels_of_several_are_refused_like_others(table):
    train = table("train.csv", "text,label\na,x|y\nb,x\n")
    with pytest.raises(UserError, match=r"dev.csv:3: the label 'z' is not in .*train.csv, which has x, y"):
        one_task(train=train, dev=table("dev.csv", "text,label\na,x\nb,y|z\n"), label_separator="|")
    with pytest.raises(UserError, match=r"every row has the same labels"):
        one_task(train=table("t.csv", "text,label\na,x|y\nb,y|x\n"), dev=train, label_separator="|")
    with pytest.raises(UserError, match=r"--label-separator: a regression has one label a row"):
        one_task(train=train, dev=train, label_separator="|", task_type="regression")


def test_options_of_tables_are_not_for_tags(table):
    path = table("a.conll", "dogs NOUN\nrun VERB\n")
    for name in ("delimiter", "text_pair", "label_separator"):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}: a tagging task has a word and a tag"):
            one_task(train=path, dev=path, **{name: ";"})


@pytest.mark.skipif(not (SHARED / "tagging").is_dir(), reason="no shared data here")
def test_the_english_web_treebank_is_read_as_it_is():
    files = {split: SHARED / "tagging" / f"ewt-{name}.conllu.gz" for split, name in (("train", "dev"), ("dev", "test"))}
    task = one_task(**files, task_type="tagging", label="upos", name="ewt")
    assert (len(task.labels), task.labels[0]) == (17, "ADJ")
    assert [len(split) for split in task.splits.values()] == [2_001, 2_077]
