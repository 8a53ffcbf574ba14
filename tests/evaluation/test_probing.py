"""`latemask probe`: tasks from the builtin text, balanced and without leaks; a probe sees what there is to see."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from latemask import UserError, probe
from latemask.cli import main
from latemask.evaluation.builtin_tasks import Document, builtin_documents, probe_tasks
from latemask.evaluation.probing import accuracies, pooled
from latemask.text.builtin import builtin_files


@pytest.fixture(scope="module")
def documents():
    """The prose of some of the builtin text's files, of all its libraries."""
    some = builtin_files()[::4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latemask.text.builtin.builtin_files", lambda: some)
        return builtin_documents()


@pytest.fixture(scope="module")
def tasks(documents):
    return {task.name: task for task in probe_tasks(documents, 600)}


def test_sentences_are_prose(documents):
    sentences = [sentence for document in documents for sentence in document.sentences]
    assert len(sentences) > 2000
    assert all(6 <= len(sentence.split()) <= 40 and ">>>" not in sentence for sentence in sentences)
    assert {"python", "numpy", "networkx"} <= {document.library for document in documents}


def test_classes_are_balanced_so_that_guessing_gains_nothing(tasks):
    assert set(tasks) == {"library", "order", "follows"}
    for task in tasks.values():
        counts = np.bincount(task.labels)
        assert 550 <= len(task.labels) <= 600
        assert counts.max() - counts.min() <= 2


def test_a_shuffled_sentence_has_the_same_words_in_another_order(documents, tasks):
    intact = {sentence for document in documents for sentence in document.sentences}
    bags = {tuple(sorted(sentence.split())) for sentence in intact}
    task = tasks["order"]
    assert all((text in intact) == bool(label) for text, label in zip(task.texts, task.labels, strict=True))
    assert all(tuple(sorted(text.split())) in bags for text in task.texts)


def test_followers_follow_and_others_do_not(documents, tasks):
    following = {
        (first, second)
        for document in documents
        for paragraph in document.paragraphs
        for first, second in pairwise(paragraph)
    }
    task = tasks["follows"]
    found = [pair in following for pair in zip(task.texts, task.pairs, strict=True)]
    assert found == [bool(label) for label in task.labels]


def test_the_same_tasks_every_time(documents, tasks):
    again = {task.name: task for task in probe_tasks(documents, 600)}
    assert again["order"].texts == tasks["order"].texts
    assert again["follows"].pairs == tasks["follows"].pairs


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


def test_the_vector_of_a_text_is_the_mean_of_its_states_and_the_first_one(encoder):
    model = encoder.plain().eval()
    texts = ["one text", "another text that is longer"]
    with torch.no_grad():
        states = [model(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    expected = [torch.cat([state.mean(0), state[0]]).numpy() for state in states]
    np.testing.assert_allclose(pooled(model, encoder, texts), expected, atol=1e-5)


def test_the_command_shows_encoder_random_and_majority(encoder_folder, tmp_path, capsys, documents, monkeypatch):
    monkeypatch.setattr("latemask.evaluation.probing.builtin_documents", lambda: documents)
    assert main(["probe", str(encoder_folder), "--examples", "200", "--splits", "1"]) == 0
    out = capsys.readouterr().out
    for word in ("this encoder", "random encoder", "majority", "which library", "shuffled", "follow"):
        assert word in " ".join(out.split())
    arguments = ["--examples", "200", "--splits", "2", "--json", "--out", str(tmp_path / "p.json")]
    assert main(["probe", str(encoder_folder), *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "p.json").read_text())
    assert [len(probe["encoder"]) for probe in record["probes"]] == [2, 2, 2]
    assert len(record["encoder"]["identity"]) == 64


def test_too_little_to_probe_with(encoder_folder, documents):
    with pytest.raises(UserError, match="--examples 10"):
        probe(str(encoder_folder), examples=10)
    with pytest.raises(UserError, match="--splits 0"):
        probe(str(encoder_folder), splits=0)
    with pytest.raises(UserError, match="too few libraries"):
        probe_tasks([Document("python", [["One sentence."]])], 300)
