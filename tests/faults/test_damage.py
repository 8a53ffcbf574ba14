"""Every file, harmed in every way: noticed, named, and passed over or refused."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from latemask import UserError, export, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.recipe import BudgetRecipe, dump_recipe
from latemask.run_folder import RunFolder
from latemask.text import Mixture
from latemask.training.checkpoints import checkpoint_to_resume
from latemask.training.loop import Loop
from tests.faults.tormenting import RECIPE, log_lines, same_end

HARM = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "zeroed": lambda content: bytes(len(content)),
    "first bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "middle bit": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 16]) + content[len(content) // 2 + 1 :]
    ),
    "last bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "longer": lambda content: content + b"\0",
    "gone": None,
}


def do_harm(path: Path, harm: str) -> None:
    change = HARM[harm]
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory) -> RunFolder:
    """A run that was stopped, with two checkpoints: the last one harmed in many ways."""
    run = RunFolder(tmp_path_factory.mktemp("stopped") / "run")
    pretrain(RECIPE, data=data.folder, out=run.path)
    run.update(status="running")
    assert len(run.all_checkpoints()) == 2
    return run


@pytest.fixture
def copy(stopped, tmp_path) -> RunFolder:
    shutil.copytree(stopped.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("harm", HARM)
def test_any_file_of_the_newest_checkpoint(copy, harm, capsys):
    newest, before = copy.all_checkpoints()
    for path in sorted(newest.rglob("*")):
        kept = path.read_bytes()
        do_harm(path, harm)
        assert checkpoint_to_resume(copy) == before, path
        assert f"{path} is {'missing' if harm == 'gone' else 'damaged'}; passing over {newest.name}" in (
            capsys.readouterr().err.replace("\n", "")
        )
        path.write_bytes(kept)
    assert checkpoint_to_resume(copy) == newest


def test_a_run_goes_on_from_the_checkpoint_before_and_ends_the_same(copy, stopped, data):
    newest, _ = copy.all_checkpoints()
    do_harm(newest / "optimizer.pt", "middle bit")
    shutil.rmtree(copy.model)
    pretrain(RECIPE, data=data.folder, out=copy.path, resume=True)
    assert same_end(copy, stopped)
    assert [row["step"] for row in log_lines(copy)] == [row["step"] for row in log_lines(stopped)]


@pytest.mark.parametrize("harm", HARM)
def test_any_file_of_the_data(data, tmp_path, harm):
    folder = tmp_path / "data"
    shutil.copytree(data.folder, folder)
    for name in json.loads((folder / "manifest.json").read_text())["files"]:
        path = folder / name
        kept = path.read_bytes()
        do_harm(path, harm)
        with pytest.raises(UserError) as refused:
            Mixture.open(folder)
        assert str(path) in str(refused.value)
        path.write_bytes(kept)
    Mixture.open(folder)


@pytest.mark.parametrize(
    ("harm", "said"), [("cut", "was cut while in use"), ("gone", "No such file")], ids=["cut", "gone"]
)
def test_data_that_go_while_they_are_read_stop_the_run_by_name(data, stopped, tmp_path, monkeypatch, harm, said):
    """Mapped memory without a file behind it would end the process without a word."""
    folder, run = tmp_path / "data", RunFolder(tmp_path / "run")
    shutil.copytree(data.folder, folder)
    (shard,) = (folder / "train").glob("*.ds")
    kept = shard.read_bytes()
    step = Loop.step

    def harmful(loop, batches):
        step(loop, batches)
        if loop.done == 5 and harm == "cut":
            os.truncate(shard, 0)
        elif loop.done == 5:
            shard.unlink()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Loop, "step", harmful)
        with pytest.raises(OSError, match=said) as stop:
            pretrain(RECIPE, data=folder, out=run.path)
    assert stop.value.filename == str(shard)
    assert run.last_checkpoint().name == "checkpoint-4"
    shard.write_bytes(kept)
    assert same_end(pretrain(RECIPE, data=folder, out=run.path, resume=True), stopped)


def test_no_pickle_is_left_in_a_checkpoint_or_a_model(stopped):
    assert not list(stopped.path.rglob("*.bin"))


def test_the_last_good_checkpoint_stays_until_the_next_is_whole(data, tmp_path, monkeypatch):
    """One checkpoint is kept; writing the next fails at its last moment, and the old one is still there."""
    run = RunFolder(tmp_path / "run")
    with pytest.raises(TimeIsUp):
        pretrain(RECIPE, data=data.folder, out=run.path, stop_after="0s")
    (good,) = run.all_checkpoints()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("latemask.training.checkpoints.seal", fail)
    with pytest.raises(OSError, match="No space left"):
        pretrain(RECIPE, data=data.folder, out=run.path, resume=True)
    assert run.all_checkpoints() == [good]
    monkeypatch.undo()
    assert pretrain(RECIPE, data=data.folder, out=run.path, resume=True).is_finished()
    assert not (run.checkpoints / ".writing").exists()


def test_a_damaged_model_of_a_finished_run_is_named_and_written_again(data, tmp_path, capsys):
    run = pretrain(RECIPE, data=data.folder, out=tmp_path / "run")
    weights = run.model / "model.safetensors"
    whole = weights.read_bytes()
    do_harm(weights, "middle bit")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged; --resume writes it again"):
        export(run.path, out=tmp_path / "encoder")
    pretrain(RECIPE, data=data.folder, out=run.path, resume=True)
    assert weights.read_bytes() == whole
    assert "is damaged; writing the model again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [(b'{"step": 5, "lo', ""), (b"\x00\x00\xff\n", "1 damaged line(s) left out"), (b"[]\n", "1 damaged line(s)")],
    ids=["torn at the end", "garbage in the middle", "not ours"],
)
def test_a_damaged_log_loses_no_other_line(copy, stopped, data, line, said, capsys):
    """The run goes on from step 40, so every good line stays, and none comes twice."""
    content = copy.metrics_file.read_bytes()
    middle = content.index(b"\n") + 1
    copy.metrics_file.write_bytes(
        content[:middle] + line + content[middle:] if line.endswith(b"\n") else content + line
    )
    pretrain(RECIPE, data=data.folder, out=copy.path, resume=True)
    assert log_lines(copy) == log_lines(stopped)
    assert said in capsys.readouterr().err


def test_a_checkpoint_under_another_name_is_not_believed(copy, capsys):
    newest, before = copy.all_checkpoints()
    shutil.copytree(before, before.with_name("checkpoint-99"))
    assert checkpoint_to_resume(copy) == newest
    assert "checkpoint-99 is of step 36, whatever its name; passing over checkpoint-99" in (
        capsys.readouterr().err.replace("\n", "")
    )


def test_what_others_put_beside_checkpoints_is_left_alone(copy, data, stopped):
    newest, before = copy.all_checkpoints()
    shutil.rmtree(newest)
    shutil.copytree(before, before.with_name("checkpoint-36-mine"))
    for name in (".DS_Store", "checkpoint-x", "checkpoint-5"):
        (copy.checkpoints / name).write_text("mine")
    (copy.checkpoints / "checkpoint-77").symlink_to(before)
    copy.update(status="running")
    shutil.rmtree(copy.model)
    pretrain(RECIPE, data=data.folder, out=copy.path, resume=True)
    assert same_end(copy, stopped)
    for name in (".DS_Store", "checkpoint-x", "checkpoint-5", "checkpoint-36-mine", "checkpoint-77"):
        assert (copy.checkpoints / name).exists()


def test_overwriting_removes_what_we_wrote_and_nothing_else(copy, data, tmp_path):
    (copy.path / "notes.txt").write_text("mine")
    shutil.rmtree(copy.checkpoints)
    (tmp_path / "elsewhere").mkdir()
    copy.checkpoints.symlink_to(tmp_path / "elsewhere")
    run = pretrain(replace(RECIPE, budget=BudgetRecipe(steps=2)), data=data.folder, out=copy.path, overwrite=True)
    assert run.is_finished()
    assert (copy.path / "notes.txt").read_text() == "mine"


def test_a_recipe_of_the_user_alone_is_no_run(data, tmp_path):
    (tmp_path / "recipe.yaml").write_text(dump_recipe(RECIPE))
    with pytest.raises(UserError, match="is not empty and holds no run"):
        pretrain(RECIPE, data=data.folder, out=tmp_path, overwrite=True)


def test_a_run_is_not_overwritten_by_one_that_starts_from_it(data, copy):
    recipe = replace(RECIPE, encoder=replace(RECIPE.encoder, init=str(copy.encoder)))
    with pytest.raises(UserError, match="which --overwrite would remove"):
        pretrain(recipe, data=data.folder, out=copy.path, overwrite=True)
    assert (copy.encoder / "config.json").is_file()


def test_a_checkpoint_that_was_passed_over_takes_no_place_from_a_good_one(data, tmp_path):
    """One that cannot be read, of a later step, is there when the run goes on from an earlier one."""
    run = RunFolder(tmp_path / "run")
    with pytest.raises(TimeIsUp):
        pretrain(RECIPE, data=data.folder, out=run.path, stop_after="0s")
    (run.checkpoints / "checkpoint-39").mkdir()
    with pytest.raises(TimeIsUp):
        pretrain(RECIPE, data=data.folder, out=run.path, resume=True, stop_after="0s")
    assert [path.name for path in run.all_checkpoints()] == ["checkpoint-2", "checkpoint-1"]
