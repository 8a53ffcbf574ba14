"""GLUE's own files: header-driven, quotes are characters, CoLA has no header; parts are called parts."""

import re

import pytest

from latemask import UserError
from latemask.evaluation.glue_files import load_glue, tasks_present
from latemask.evaluation.tasks import GLUE
from tests.evaluation.conftest import SHARED, sentence, write_glue, write_glue_file


@pytest.mark.parametrize("name", GLUE)
def test_every_layout_is_read_to_the_last_row(glue_folder, name):
    task = load_glue(name, glue_folder)
    assert (len(task.train), len(task.dev)) == (24, 10)
    assert task.train.texts[0].strip() == sentence(0, "0")
    assert '"' in task.train.texts[0]
    assert (task.train.pairs is None) == (GLUE[name].pair is None)
    if task.train.pairs:
        assert task.train.pairs[0] == sentence(1, "0")
    if GLUE[name].labels:
        assert task.train.labels[:3] == [0, 1, 2 % len(GLUE[name].labels)]
    else:
        assert task.train.labels[:3] == [0.25, 1.25, 2.25]


def test_columns_may_stand_in_any_order(tmp_path):
    folder = tmp_path / "QQP"
    folder.mkdir()
    for split in ("train", "dev"):
        text = "is_duplicate\tmore\tquestion2\tquestion1\n1\tx\tb\ta\n0\tx\td\tc\n"
        (folder / f"{split}.tsv").write_text(text)
    task = load_glue("qqp", tmp_path)
    assert (task.dev.texts, task.dev.pairs, task.dev.labels) == (["a", "c"], ["b", "d"], [1, 0])


def test_mnli_has_a_second_dev_set_where_it_is_there(glue_folder, tmp_path):
    assert list(load_glue("mnli", glue_folder).others) == ["mismatched"]
    write_glue(tmp_path, "mnli")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    assert load_glue("mnli", tmp_path).others == {}
    assert load_glue("mnli", tmp_path).part.endswith("; matched only")


def test_a_part_says_that_it_is_one(glue_folder):
    assert load_glue("rte", glue_folder).part == "24 of 2,490 training rows; 10 dev rows, GLUE has 277"


def test_the_task_s_own_folder_will_do_and_its_name_may_be_plain(tmp_path):
    write_glue(tmp_path, "sst2")
    assert len(load_glue("sst2", tmp_path / "SST-2").train) == 24
    (tmp_path / "SST-2").rename(tmp_path / "sst_2")
    assert tasks_present(tmp_path) == ["sst2"]


def test_rows_without_a_text_are_not_trained_on_but_scored(tmp_path):
    write_glue(tmp_path, "sst2")
    for split in ("train", "dev"):
        path = tmp_path / "SST-2" / f"{split}.tsv"
        path.write_text(path.read_text() + "\n \t1\n")
    task = load_glue("sst2", tmp_path)
    assert (len(task.train), task.train.empty) == (24, 1)
    assert (len(task.dev), task.dev.empty) == (11, 1)


def test_a_torn_row_is_skipped_and_counted_but_not_many(tmp_path):
    write_glue(tmp_path, "qqp", train=300)
    path = tmp_path / "QQP" / "train.tsv"
    path.write_text(path.read_text() + "\n133\t2\tonly a question")
    task = load_glue("qqp", tmp_path)
    assert (len(task.train), task.train.skipped) == (300, 1)
    path.write_text(path.read_text() + "\n133\t2\tonly a question" * 20)
    with pytest.raises(UserError, match=r"QQP/train.tsv: 21 rows of 321 lack columns"):
        load_glue("qqp", tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("sst2", "sentence\tlabel", "text\tlabel", "no column 'sentence'; it has 'text', 'label'"),
        ("rte", "\tentailment", "\tperhaps", r"RTE/train.tsv:2: the label 'perhaps' is none of rte's entailment, not"),
        ("stsb", "0.250", "much", r"STS-B/train.tsv:2: the label 'much' is not a number"),
        ("stsb", "0.250", "nan", r"STS-B/train.tsv:2: the label 'nan' is not a number"),
        ("cola", "gj04\t0", "gj04\t7", r"CoLA/train.tsv:1: the label '7' is none of cola's 0, 1"),
        ("sst2", "\t1", "\t0", "one class only, every label is '0'"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, name, old, new, message):
    write_glue(tmp_path, name)
    path = tmp_path / GLUE[name].folder / "train.tsv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        load_glue(name, tmp_path)


def test_what_is_missing_is_said(tmp_path, glue_folder):
    with pytest.raises(UserError, match="no such folder"):
        load_glue("sst2", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no SST-2/train.tsv; GLUE's layout is"):
        load_glue("sst2", tmp_path)
    write_glue(tmp_path, "rte")
    with pytest.raises(UserError, match=r"no SST-2/train.tsv; it holds rte"):
        load_glue("sst2", tmp_path)
    (tmp_path / "RTE" / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"RTE/dev.tsv: no such file"):
        load_glue("rte", tmp_path)


def test_binary_rubbish_is_no_tsv(tmp_path):
    write_glue(tmp_path, "sst2")
    (tmp_path / "SST-2" / "train.tsv").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(UserError, match="looks binary"):
        load_glue("sst2", tmp_path)


def test_from_the_hub_labels_and_splits_mean_the_same(monkeypatch):
    import datasets

    rows = {"premise": ["a", "b", "c"], "hypothesis": ["x", "y", "z"], "label": [0, 1, 2]}
    names = ("train", "validation_matched", "validation_mismatched")
    asked = []

    def load(*what):
        asked.append(what)
        return {name: datasets.Dataset.from_dict(rows) for name in names}

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = load_glue("mnli", None)
    assert asked == [("nyu-mll/glue", "mnli")]
    assert (task.dev.texts, task.dev.pairs, task.dev.labels) == (["a", "b", "c"], ["x", "y", "z"], [0, 1, 2])
    assert task.labels == ("entailment", "neutral", "contradiction")
    assert len(task.others["mismatched"]) == 3


def test_an_unreachable_hub_points_at_the_folder(monkeypatch):
    import datasets

    def load(*what):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UserError, match=r"cannot be had from the Hub \(no network\).*--data FOLDER"):
        load_glue("rte", None)


def readme_counts() -> dict[str, tuple[int, int]]:
    """Read the rows that the shared folder's README promises for each task."""
    rows = re.findall(r"^\| ([\w-]+) \| ([\d,]+)[^|]*\| ([\d,]+)", (SHARED / "README.md").read_text(), re.MULTILINE)
    return {folder: (int(train.replace(",", "")), int(dev.replace(",", ""))) for folder, train, dev in rows}


@pytest.mark.skipif(not (SHARED / "glue").is_dir(), reason="no shared data here")
def test_the_shared_files_are_read_with_exactly_their_rows():
    counts = readme_counts()
    assert len(counts) == 9
    for name, glue in GLUE.items():
        task = load_glue(name, SHARED / "glue")
        rows = len(task.train) + task.train.empty
        assert (rows, len(task.dev)) == counts[glue.folder], name
        assert task.train.skipped == task.dev.skipped == 0
        is_part = counts[glue.folder] != (glue.train_rows, glue.dev_rows)
        assert bool(task.part) == is_part, name


def test_a_file_of_the_layout_ends_without_a_newline(tmp_path):
    """What makes the last row easy to lose."""
    write_glue_file(tmp_path / "x.tsv", "cola", 3)
    assert not (tmp_path / "x.tsv").read_text().endswith("\n")
