"""`latemask probe`: a probe sees what there is to see, in every layer; the command says what it saw."""

import json
from dataclasses import replace

import numpy as np
import pytest

from latemask import UserError, probe
from latemask.cli import main
from latemask.evaluation.probe_records import read_probe
from latemask.evaluation.probe_tasks import probe_tasks
from latemask.evaluation.probing import accuracies


@pytest.fixture(scope="module")
def tasks(builtin):
    return {task.name: task for task in probe_tasks(builtin, 600)}


@pytest.fixture
def own_files(tmp_path):
    """Two small files of text, which differ in a word."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("ships", "trees"):
        lines = [f"Number {number} of all the {name} is here in {number % 7} parts." for number in range(180)]
        (folder / f"{name}.txt").write_text("\n".join(lines), "utf-8")
    return folder


def test_a_probe_finds_what_a_line_can_separate_and_nothing_else(tasks):
    task = tasks["order"]
    random = np.random.default_rng(0)
    noise = random.normal(size=(len(task.labels), 16))
    assert abs(np.mean(accuracies([noise], task, 3)) - 0.5) < 0.08
    noise[:, 3] += 4 * task.labels
    assert np.mean(accuracies([noise], task, 3)) > 0.9


def test_directions_that_hardly_vary_do_not_drown_the_others(tasks):
    """A trained encoder's first token has some: whitened, their rounding errors would be as loud as anything."""
    task = tasks["order"]
    random = np.random.default_rng(0)
    loud = random.normal(size=(len(task.labels), 8)) * 5
    loud[:, 3] += 20 * task.labels
    few_directions = random.normal(size=(len(loud), 4)) @ random.normal(size=(4, 300)) * 10
    vectors = np.concatenate([loud, few_directions], 1).astype(np.float32)
    assert np.mean(accuracies([vectors], task, 3)) > 0.93


def test_documents_are_in_training_or_in_test_never_in_both(tasks):
    """A vector that gives away the document must not help: each document has one label of its own here."""
    task = tasks["library"]
    groups = np.unique(task.groups)
    labels = np.random.default_rng(0).integers(0, 2, groups.max() + 1)[task.groups]
    vectors = np.eye(groups.max() + 1)[task.groups]
    assert np.mean(accuracies([vectors], replace(task, labels=labels), 2)) < 0.7


def words(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_without_a_file_the_builtin_text_is_probed_and_the_record_printed(
    encoder_folder, tmp_path, capsys, builtin, monkeypatch
):
    monkeypatch.setattr("latemask.evaluation.probing.builtin_text", lambda: builtin)
    arguments = ["--examples", "200", "--splits", "2", "--json", "--out", str(tmp_path / "p.json")]
    assert main(["probe", str(encoder_folder), *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "p.json").read_text())
    assert [probe["task"] for probe in record["probes"]] == ["library", "order", "follows"]
    assert [len(probe["encoder"]) for probe in record["probes"]] == [2, 2, 2]
    assert len(record["encoder"]["identity"]) == 64


def test_own_text_is_probed_layer_by_layer_and_its_rank_is_measured(
    encoder_folder, own_files, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("latemask.evaluation.probing._STRENGTHS", (0.1,))
    out = tmp_path / "new" / "p.json"
    options = ["--layers", "--rank", "--examples", "200", "--splits", "1", "--out", str(out)]
    assert main(["probe", str(encoder_folder), "--text", str(own_files), *options]) == 0
    shown = words(capsys)
    for word in ("this encoder", "random encoder", "majority", "(ships.txt,", "shuffled", "follow"):
        assert word in shown
    for word in ("mean of the last 3", "order: best from", "all probes together", "effective rank", "last layer:"):
        assert word in shown
    record = read_probe(out)
    assert [probe.task for probe in record.probes] == ["file", "order", "follows"]
    for one in record.probes:
        assert [layer.layer for layer in one.layers] == ["0", "1", "2", "3", "mean of the last 3"]
        assert (one.encoder, one.random) == (one.layers[3].encoder, one.layers[3].random)
    assert record.probes[0].encoder[0] > 0.9  # one word tells
    assert abs(record.probes[1].layers[0].encoder[0] - 0.5) < 0.25  # layer 0 of ModernBERT knows no order
    assert len(record.rank.encoder) == 4


def test_what_cannot_be_probed_is_said_before_any_work(encoder_folder, tmp_path, own_files):
    for options, said in (
        ({"examples": 10}, "--examples 10"),
        ({"splits": 0}, "--splits 0"),
        ({"label": "mood"}, "there is no --text"),
        ({"out": tmp_path}, "is a folder"),
        ({"text": [own_files / "ships.txt"], "text_field": "x", "label": "y"}, "a table is needed"),
    ):
        with pytest.raises(UserError, match=said):
            probe(str(encoder_folder), **options)
