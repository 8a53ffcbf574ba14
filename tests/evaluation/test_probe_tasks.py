"""Tasks for probes: balanced and without leaks, of the builtin text and of anybody's."""

from itertools import pairwise

import numpy as np
import pytest

from latemask import UserError
from latemask.evaluation.probe_tasks import probe_tasks
from latemask.evaluation.probe_text import Document, ProbeText, units


@pytest.fixture(scope="module")
def tasks(builtin):
    return {task.name: task for task in probe_tasks(builtin, 600)}


def made_up(files: int, documents: int, sentences: int, form: str = "File {} says in text {} word {}.") -> ProbeText:
    """Sentences in one paragraph for each document."""
    found = [
        Document(f"{name}.txt", [[form.format(name, document, number) for number in range(sentences)]])
        for name in range(files)
        for document in range(documents)
    ]
    return ProbeText(found, "file", "made up")


def test_classes_are_balanced_so_that_guessing_gains_nothing(tasks):
    assert set(tasks) == {"library", "order", "follows"}
    for task in tasks.values():
        counts = np.bincount(task.labels)
        assert 550 <= len(task.labels) <= 600
        assert counts.max() - counts.min() <= 2


def test_a_shuffled_sentence_has_the_same_words_in_another_order(builtin, tasks):
    intact = {sentence for document in builtin.documents for sentence in document.sentences}
    bags = {tuple(sorted(sentence.split())) for sentence in intact}
    task = tasks["order"]
    assert all((text in intact) == bool(label) for text, label in zip(task.texts, task.labels, strict=True))
    assert all(tuple(sorted(text.split())) in bags for text in task.texts)


def test_where_words_have_no_spaces_characters_are_shuffled():
    text = made_up(1, 20, 20, "文件{}第{}章里的第{}个句子在这里。")
    task = next(task for task in probe_tasks(text, 300) if task.name == "order")
    intact = {sentence for document in text.documents for sentence in document.sentences}
    bags = {tuple(sorted(units(sentence))) for sentence in intact}
    assert not any(" " in text for text in task.texts)
    assert all((text in intact) == bool(label) for text, label in zip(task.texts, task.labels, strict=True))
    assert all(tuple(sorted(text)) in bags for text in task.texts)


def test_followers_follow_and_others_do_not(builtin, tasks):
    following = {
        (first, second)
        for document in builtin.documents
        for paragraph in document.paragraphs
        for first, second in pairwise(paragraph)
    }
    task = tasks["follows"]
    found = [pair in following for pair in zip(task.texts, task.pairs, strict=True)]
    assert found == [bool(label) for label in task.labels]


def test_followers_are_balanced_also_where_every_file_is_short():
    task = next(task for task in probe_tasks(made_up(400, 1, 2), 400) if task.name == "follows")
    assert np.bincount(task.labels).tolist() == [200, 200]
    same_file = [first.split()[1] == second.split()[1] for first, second in zip(task.texts, task.pairs, strict=True)]
    assert same_file == [bool(label) for label in task.labels]


def test_the_same_tasks_every_time(builtin, tasks):
    again = {task.name: task for task in probe_tasks(builtin, 600)}
    assert again["order"].texts == tasks["order"].texts
    assert again["follows"].pairs == tasks["follows"].pairs


def test_a_sentence_that_stands_there_often_is_taken_once():
    text = made_up(2, 20, 20)
    for document in text.documents:
        document.paragraphs.append(["All rights reserved by all of us."])
    for task in probe_tasks(text, 10_000):
        assert sum(sentence == "All rights reserved by all of us." for sentence in task.texts) <= 1


def test_which_file_is_asked_of_the_largest_ones_and_names_them(capsys):
    (task, *_) = probe_tasks(made_up(25, 8, 20), 2000)
    assert task.name == "file"
    assert np.bincount(task.labels).tolist() == [100] * 20
    assert "which file is a sentence from (0.txt, " in task.question
    assert task.question.endswith(" and 10 more)")
    assert capsys.readouterr().err == ""


def test_a_task_that_the_text_cannot_give_is_left_out_and_said(capsys):
    (order, follows) = probe_tasks(made_up(1, 20, 20), 300)
    assert (order.name, follows.name) == ("order", "follows")
    assert "not probed: which file" in capsys.readouterr().err
    (order,) = probe_tasks(made_up(1, 300, 1), 300)
    assert order.name == "order"
    assert "not probed: does one sentence follow the other" in capsys.readouterr().err


def test_too_little_text_is_refused():
    with pytest.raises(UserError, match=r"made up: 100 different sentences.* need 200"):
        probe_tasks(made_up(1, 10, 10), 300)
