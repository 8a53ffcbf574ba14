"""`latemask resume RUN`: a run knows its recipe, its data and its processes."""

import json
import shutil
import sys
from dataclasses import replace

import pytest

from latemask import UserError, load_recipe, pretrain, resume
from latemask.ground.errors import SaidByTheFirst, TimeIsUp
from latemask.run_folder import RunFolder
from latemask.training import resuming
from tests.conftest import tiny_recipe
from tests.training.test_pretraining import recipe_of, same_weights


@pytest.fixture
def stopped(data, tmp_path) -> RunFolder:
    with pytest.raises(TimeIsUp):
        pretrain(recipe_of(6), data=data.folder, out=tmp_path / "run", stop_after="0s")
    return RunFolder(tmp_path / "run")


def test_a_run_goes_on_with_what_it_knows(data, tmp_path, stopped):
    assert resume(stopped.path).is_finished()
    assert same_weights(stopped, pretrain(recipe_of(6), data=data.folder, out=tmp_path / "whole"))


def test_from_anywhere(stopped, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../run").is_finished()


def test_data_that_were_moved_are_asked_for(data, tmp_path, stopped):
    shutil.copytree(data.folder, tmp_path / "moved")
    record = stopped.record
    stopped.update(data={**record["data"], "folders": [str(tmp_path / "gone")]})
    with pytest.raises(UserError, match="and are not there now: give --data"):
        resume(stopped.path)
    assert resume(stopped.path, data=[tmp_path / "moved"]).is_finished()


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(UserError, match="nothing to resume"):
        resume(tmp_path / "nowhere")


def test_a_finished_run_is_left_as_it_is(stopped, capsys):
    resume(stopped.path)
    resume(stopped.path)
    assert "finished already: nothing to do" in capsys.readouterr().err


def test_it_is_told_once_what_to_do_at_a_gradient_that_is_no_number(data, tmp_path, monkeypatch):
    with pytest.raises(TimeIsUp):
        pretrain(recipe_of(6), data=data.folder, out=tmp_path / "run", stop_after="0s", on_nan="rewind")
    told = []
    monkeypatch.setattr(resuming, "pretrain", lambda recipe, **options: told.append(options["on_nan"]))
    resume(tmp_path / "run")
    resume(tmp_path / "run", on_nan="stop")
    assert told == ["rewind", "stop"]


def test_as_many_processes_as_it_had_are_started(stopped, monkeypatch, tmp_path):
    stopped.update(processes=2)
    words = tmp_path / "words.json"
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv, open({str(words)!r}, 'w'))\nsys.exit(3)"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(SaidByTheFirst) as ended:
        resume(stopped.path, stop_after="2h")
    assert ended.value.exit_code == 3
    told = json.loads(words.read_text())
    assert told[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert told[6:10] == ["-m", "latemask", "resume", str(stopped.path)]
    assert told[-4:] == ["--stop-after", "2h", "--on-nan", "stop"]


def test_several_machines_are_for_the_user_to_start(stopped):
    stopped.update(processes=16, machines=2)
    with pytest.raises(UserError, match="--nnodes 2 --nproc-per-node 8"):
        resume(stopped.path)


@pytest.mark.parametrize(
    "change",
    [
        {"log_every": 2},
        {"eval_every": 3},
        {"save_every": 2},
        {"keep_checkpoints": 5},
        {"workers": 1},
        {"keep_at": (4,)},
    ],
)
def test_what_changes_no_weight_does_not_keep_a_run_from_going_on(data, tmp_path, stopped, change, capsys):
    recipe = replace(recipe_of(6), train=replace(recipe_of(6).train, **change))
    run = pretrain(recipe, data=data.folder, out=stopped.path, resume=True)
    assert same_weights(run, pretrain(recipe_of(6), data=data.folder, out=tmp_path / "whole"))
    assert f"going on with changes: train.{next(iter(change))}" in capsys.readouterr().err
    assert getattr(load_recipe(run.recipe_file).train, next(iter(change))) == next(iter(change.values()))
    assert "changes" not in run.record


def test_what_changes_weights_still_does(data, stopped):
    with pytest.raises(UserError, match=r"train.learning_rate: 0.003 -> 0.01"):
        pretrain(
            replace(recipe_of(6), train=replace(tiny_recipe().train, learning_rate=0.01)),
            data=data.folder,
            out=stopped.path,
            resume=True,
        )
