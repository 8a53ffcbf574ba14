"""`latemask status`: a line for every run."""

import json
import shutil
import time
from datetime import datetime, timedelta

import pytest

from latemask import UserError, pretrain, status
from latemask.cli import main
from latemask.ground.errors import TimeIsUp
from latemask.reporting.status import _clock
from latemask.run_folder import RunFolder
from tests.training.test_pretraining import recipe_of


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """One that is finished and one that was stopped."""
    home = tmp_path_factory.mktemp("home")
    finished = pretrain(recipe_of(4, eval_every=2), data=data.folder, out=home / "runs" / "finished")
    with pytest.raises(TimeIsUp):
        pretrain(recipe_of(4), data=data.folder, out=home / "runs" / "stopped", stop_after="0s")
    return [finished.path, home / "runs" / "stopped"]


def test_every_run_is_a_line_with_how_far_it_is(runs, capsys):
    finished, stopped = status(runs)
    assert (finished["status"], finished["step"], finished["steps"]) == ("finished", 4, 4)
    assert (stopped["status"], stopped["step"]) == ("stopped", 1)
    assert finished["loss"] == RunFolder(runs[0]).metrics()[-2]["loss"]
    assert finished["validation_loss"] == RunFolder(runs[0]).metrics()[-1]["eval_loss"]
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "step", "done", "loss", "valid.", "tokens/s", "left", "until"]
    assert [line.split()[:4] for line in lines] == [
        ["finished", "finished", "4/4", "100%"],
        ["stopped", "stopped", "1/4", "25%"],
    ]


def test_a_running_one_says_until_when(runs, data, tmp_path, capsys):
    run = RunFolder(runs[0])
    lines = run.metrics_file.read_text().splitlines()
    other = RunFolder(tmp_path / "run")
    other.path.mkdir()
    for name in ("run.json", "recipe.yaml"):
        (other.path / name).write_text((run.path / name).read_text())
    rows = [{**json.loads(line), "seconds": 100.0 * json.loads(line)["step"]} for line in lines]
    other.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows if row["step"] <= 3))
    other.update(status="running")
    with other.held():
        (row,) = status(other.path)
    assert row["status"] == "running"
    assert row["seconds_left"] == pytest.approx(100.0)
    assert abs(datetime.fromisoformat(row["until"]).timestamp() - time.time() - 100) < 5
    assert row["tokens_per_second"] == pytest.approx(8 * 32 / 100)
    assert "0:01:40" in capsys.readouterr().out


def test_another_day_is_said_with_its_name_or_date():
    today = datetime.now().astimezone().replace(hour=12, minute=30)
    assert _clock(today) == "12:30"
    assert _clock(today + timedelta(days=1)) == (today + timedelta(days=1)).strftime("%a 12:30")
    assert _clock(today + timedelta(days=400)) == (today + timedelta(days=400)).strftime("%d %b %Y")


def test_at_80_columns_only_names_are_cut(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    other = tmp_path / "a-name-that-is-much-too-long-to-be-shown"
    shutil.copytree(runs[0], other)
    status([runs[1], other])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[2:4] for line in lines[1:]] == [["1/4", "25%"], ["4/4", "100%"]]


def test_without_a_name_all_in_runs_are_shown(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs[0].parent.parent)
    assert main(["status", "--json"]) == 0
    assert [json.loads(line)["run"] for line in capsys.readouterr().out.splitlines()] == [
        "runs/finished",
        "runs/stopped",
    ]


def test_what_is_no_run_is_said_and_the_others_are_shown(runs, tmp_path, capsys):
    assert len(status([*runs, tmp_path])) == 2
    assert "is not a latemask run" in capsys.readouterr().err
    with pytest.raises(UserError, match="none of these is a run"):
        status([tmp_path])


def test_where_there_is_no_run_at_all_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="say which"):
        status()
