"""`latemask glue`: the table of several encoders; interrupted anywhere, it goes on and ends the same."""

import json
import os
import re
import signal
import time

import pytest

from latemask.cli import main
from latemask.evaluation import grid
from latemask.evaluation.results import Results
from tests.evaluation.conftest import write_glue
from tests.launching import launch

QUICK = ["--epochs", "1", "--seeds", "2", "--lrs", "1e-3", "--batch-size", "8", "--no-control"]


@pytest.fixture
def two_tasks(tmp_path):
    return write_glue(tmp_path / "glue-data", "cola", "mnli", train=16, dev=6)


def table(folder):
    """The table and its notes, but for the seconds that runs took."""
    notes = re.sub(r"[\d,]+ s a run", "", (folder / "results.md").read_text())
    return notes, (folder / "results.csv").read_text()


def test_the_table_of_two_encoders(two_tasks, encoder_folder, tmp_path, capsys):
    arguments = [str(encoder_folder), "random:demo", "--data", str(two_tasks), "--out", str(tmp_path / "o")]
    assert main(["glue", *arguments, *QUICK, "--max-train", "12"]) == 0
    out, err = capsys.readouterr()
    assert "no sst2, mrpc, stsb, qqp, qnli, rte, wnli in it; the table goes without" in err
    assert "the average is over cola, mnli; of cola, mnli only a part" in " ".join(out.split())
    results = Results.read(tmp_path / "o" / "results.json")
    assert len(results.trials) == 8
    assert {"accuracy", "accuracy_mismatched"} == set(results.summary("random:demo", "mnli").metrics)
    lines = table(tmp_path / "o")[0].splitlines()
    assert lines[0] == "| encoder | cola* | mnli* | average |"
    assert [line.split("|")[1].strip() for line in lines[2:6]][1:] == [
        "random:demo (never trained)",
        "majority class or mean",
        "TF-IDF + linear model",
    ]
    average = json.loads((tmp_path / "o" / "results.json").read_text())["averages"]["random:demo"]
    medians = [results.summary("random:demo", task).median for task in ("cola", "mnli")]
    assert average["score"] == pytest.approx(sum(medians) / 2)


def test_only_the_tasks_that_are_asked_for(glue_folder, encoder_folder, tmp_path, capsys):
    common = ["glue", str(encoder_folder), "--data", str(glue_folder), "--out", str(tmp_path / "o"), *QUICK]
    assert main([*common, "--tasks", "rte,wnli"]) == 0
    assert list(Results.read(tmp_path / "o" / "results.json").tasks) == ["rte", "wnli"]
    assert main([*common, "--tasks", "rte", "stsb"]) == 0  # more tasks in the same table
    assert len(Results.read(tmp_path / "o" / "results.json").trials) == 6
    capsys.readouterr()
    assert main([*common, "--tasks", "imdb"]) == 2
    assert "--tasks: unknown 'imdb'" in capsys.readouterr().err


def test_an_interruption_anywhere_leaves_the_table_the_same(two_tasks, encoder_folder, tmp_path, monkeypatch, capsys):
    """Ctrl-C in the middle of every single run, then on to the end."""
    common = ["glue", str(encoder_folder), "--data", str(two_tasks), *QUICK]
    assert main([*common, "--out", str(tmp_path / "whole")]) == 0
    real, calls = grid.run_trial, []

    def interrupted(*arguments, **settings):
        calls.append(arguments)
        trial = real(*arguments, **settings)
        if len(calls) % 2:
            raise KeyboardInterrupt  # after the work, before anything was written down
        return trial

    monkeypatch.setattr(grid, "run_trial", interrupted)
    codes = [main([*common, "--out", str(tmp_path / "cut")])]
    while codes[-1] == 130:
        codes.append(main([*common, "--out", str(tmp_path / "cut")]))
    assert codes == [130, 130, 130, 130, 0]
    assert "The same command goes on from there" in capsys.readouterr().err
    assert table(tmp_path / "cut") == table(tmp_path / "whole")


def test_a_kill_loses_nothing_that_was_finished(two_tasks, encoder_folder, tmp_path):
    """SIGKILL at whatever moment the first run is written down, then the same command again."""
    common = ["glue", str(encoder_folder), "--data", str(two_tasks), *QUICK]
    process = launch(tmp_path / "says", *common, "--out", tmp_path / "cut")
    path = tmp_path / "cut" / "results.json"
    while process.returncode is None and not (path.is_file() and Results.read(path).trials):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(Results.read(path).trials)
    assert 1 <= done < 4
    assert main([*common, "--out", str(tmp_path / "cut")]) == 0
    assert main([*common, "--out", str(tmp_path / "whole")]) == 0
    assert table(tmp_path / "cut") == table(tmp_path / "whole")


def test_sigterm_ends_like_ctrl_c_with_its_own_code(two_tasks, encoder_folder, tmp_path, monkeypatch, capsys):
    real = grid.run_trial

    def terminated(*arguments, **settings):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **settings)

    monkeypatch.setattr(grid, "run_trial", terminated)
    arguments = ["glue", str(encoder_folder), "--data", str(two_tasks), "--out", str(tmp_path / "o"), *QUICK]
    assert main(arguments) == 128 + signal.SIGTERM
    assert "stopped; 0 finished runs are in" in capsys.readouterr().err


def test_a_folder_in_use_is_left_alone(two_tasks, encoder_folder, tmp_path, capsys):
    from latemask.ground.files import exclusive_lock

    lock = exclusive_lock(tmp_path / "o" / ".lock", "busy")
    assert main(["glue", str(encoder_folder), "--data", str(two_tasks), "--out", str(tmp_path / "o"), *QUICK]) == 2
    assert "is in use by another process" in capsys.readouterr().err
    lock.release()


def test_a_folder_without_glue(tmp_path, encoder_folder, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["glue", str(encoder_folder), "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "o")]) == 2
    assert "holds no GLUE task" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
