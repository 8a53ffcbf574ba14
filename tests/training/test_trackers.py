"""Trackers: every point of metrics.jsonl once, whatever was killed, and nothing is imported that is not named.

The stores of others are tested where they are installed (`make trackers`).
"""

import json
import os
import shutil
import signal
import sqlite3
import struct
import sys
from collections import Counter
from dataclasses import replace

import pytest

from latemask import UserError, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.recipe import TRACKERS, BudgetRecipe
from latemask.run_folder import RunFolder
from latemask.training.loop import Loop
from latemask.training.trackers import Tracker, tags
from tests.conftest import tiny_recipe
from tests.launching import forked


def reporting(*names: str, steps: int = 8, **train):
    base = tiny_recipe()
    train = {"report_to": names, "eval_every": 4, "save_every": 3, **train}
    return replace(base, budget=BudgetRecipe(steps=steps), train=replace(base.train, **train))


def points_of(run: RunFolder) -> dict[tuple[int, str], float]:
    return {(row["step"], name): value for row in run.metrics() for name, value in tags(row).items()}


class Diary(Tracker):
    """A store in a file: what was written is there, unless a test tears it."""

    name, package = "diary", "json"

    def open(self, known):
        self.file = self.run.path.parent / "diary.jsonl"
        self.remember(id=known.get("id", "diary"))
        return [(step, name) for step, name, _ in self.lines()]

    def lines(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.is_file() else []

    def send(self, step, values):
        with self.file.open("a") as file:
            file.writelines(json.dumps([step, name, value]) + "\n" for name, value in values.items())


@pytest.fixture
def diary(monkeypatch, tmp_path):
    monkeypatch.setitem(TRACKERS, "diary", Diary)
    return tmp_path / "diary.jsonl"


def written(diary) -> Counter:
    return Counter((step, name, value) for step, name, value in map(json.loads, diary.read_text().splitlines()))


def killed_in_step(number: int, monkeypatch):
    step = Loop.step

    def dies(loop, batches):
        if loop.done == number:
            raise KeyboardInterrupt
        step(loop, batches)

    monkeypatch.setattr(Loop, "step", dies)


@pytest.mark.parametrize("lost", [0, 3])
def test_every_point_is_told_once_though_the_run_was_killed_and_the_store_lost_some(
    data, tmp_path, monkeypatch, diary, lost
):
    with monkeypatch.context() as patch:
        killed_in_step(5, patch)  # after the checkpoint of step 3: two steps come again
        with pytest.raises(KeyboardInterrupt):
            pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run")
    lines = diary.read_text().splitlines()
    diary.write_text("".join(f"{line}\n" for line in lines[: len(lines) - lost]))
    run = pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run", resume=True)
    assert written(diary) == Counter((*place, value) for place, value in points_of(run).items())
    assert run.record["trackers"]["diary"]["id"] == "diary"


def test_a_tracker_that_joins_later_is_told_all_that_was(data, tmp_path, diary):
    with pytest.raises(TimeIsUp):
        pretrain(reporting(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    run = pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run", resume=True)
    assert written(diary) == Counter((*place, value) for place, value in points_of(run).items())


def test_a_store_that_fails_does_not_end_the_run(data, tmp_path, diary, monkeypatch, capsys):
    def full(self, step, values):
        raise OSError("the disk is full")

    monkeypatch.setattr(Diary, "send", full)
    assert pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run").is_finished()
    assert capsys.readouterr().err.count("diary is told nothing more: the disk is full") == 1


def test_a_store_that_cannot_be_opened_is_said_in_a_line(data, tmp_path, diary, monkeypatch):
    def refuses(self, known):
        raise RuntimeError("not logged in")

    monkeypatch.setattr(Diary, "open", refuses)
    with pytest.raises(UserError, match=r"train\.report_to diary: not logged in\. Leave it out"):
        pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run")


def test_a_tracker_that_is_not_installed_is_said_before_there_is_a_run(data, tmp_path, diary, monkeypatch):
    monkeypatch.setattr(Diary, "package", "no_such_package")
    with pytest.raises(UserError, match="not installed: pip install no_such_package"):
        pretrain(reporting("diary"), data=data.folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_one_is_told_with_the_nearest(data, tmp_path):
    with pytest.raises(UserError, match=r"unknown tracker 'wandbb' \(did you mean 'wandb'\?\)"):
        pretrain(reporting("wandbb"), data=data.folder, out=tmp_path / "run")


def import_counted(recipe, data, out, seen) -> None:
    pretrain(recipe, data=data, out=out)
    names = ("tensorboard", "wandb", "mlflow", "trackio")
    seen.write_text(json.dumps([name for name in names if name in sys.modules]))


@pytest.mark.parametrize("names", [(), ("tensorboard",)])
def test_nothing_is_imported_that_is_not_named(data, tmp_path, names):
    process = forked(import_counted, reporting(*names), data.folder, tmp_path / "run", tmp_path / "seen")
    process.start()
    process.join()
    assert json.loads((tmp_path / "seen").read_text()) == list(names)


def test_tensorboard_has_every_point_once(data, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with monkeypatch.context() as patch:
        killed_in_step(5, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(reporting("tensorboard"), data=data.folder, out=tmp_path / "run")
    run = pretrain(reporting("tensorboard"), data=data.folder, out=tmp_path / "run", resume=True)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    found = [((point.step, name), point.value) for name in events.Tags()["scalars"] for point in events.Scalars(name)]
    assert len(found) == len(points_of(run))
    assert dict(found) == pytest.approx(points_of(run), rel=1e-6)


@pytest.mark.parametrize("train", [{"log_every": 1}, {"log_every": 1000, "eval_every": 1000}])
def test_a_run_folder_that_is_removed_under_a_run_is_said_in_a_line(data, tmp_path, monkeypatch, train):
    step = Loop.step

    def removed(loop, batches):
        if loop.done == 5:
            shutil.rmtree(tmp_path / "run")
        step(loop, batches)

    monkeypatch.setattr(Loop, "step", removed)
    with pytest.raises(UserError, match="was removed while the run was in it"):
        pretrain(reporting("tensorboard", **train), data=data.folder, out=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


# The stores of others, killed for real


def dying(recipe, data, out, at: int | None) -> None:
    """Be a process that is killed after a step."""
    store = str(out.parent)
    os.environ.update(WANDB_MODE="offline", MLFLOW_TRACKING_URI=f"sqlite:///{store}/mlflow.db", TRACKIO_DIR=store)
    step = Loop.step

    def dies(loop, batches):
        step(loop, batches)
        if loop.done == at:
            os.kill(os.getpid(), signal.SIGKILL)

    Loop.step = dies
    pretrain(recipe, data=data, out=out, resume=(out / "recipe.yaml").is_file())


def live(recipe, data, out, *ends: int | None) -> RunFolder:
    for at in ends:
        process = forked(dying, recipe, data.folder, out, at)
        process.start()
        process.join()
        assert process.exitcode == (0 if at is None else -signal.SIGKILL)
    return RunFolder(out)


def wandb_points(log) -> list[tuple[tuple[int, str], float]]:
    """Read the log of an offline segment: records of LevelDB's format, in them protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, held, place, data = [], b"", 7, log.read_bytes()
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        held += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            history = Record.FromString(held).history
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
            found += [((history.step.num, n), v) for n, v in values.items() if n.startswith(("train/", "eval/"))]
            held = b""
    return found


def exactly(run: RunFolder, found) -> None:
    assert len(found) == len(points_of(run))
    assert dict(found) == pytest.approx(points_of(run))


KILLS = (5, 7, 13, None)


def test_wandb_offline_goes_on_under_one_id(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run = live(reporting("wandb", steps=16), data, tmp_path / "run", *KILLS)
    logs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert {log.name for log in logs} == {f"run-{run.record['id']}.wandb"}
    exactly(run, [point for log in logs for point in wandb_points(log)])


def test_wandb_goes_on_after_a_stop_without_telling_anything_twice(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(TimeIsUp):
        pretrain(reporting("wandb"), data=data.folder, out=tmp_path / "run", stop_after="0s")
    run = live(reporting("wandb"), data, tmp_path / "run", 5, None)
    logs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(logs) == 2
    exactly(run, [point for log in logs for point in wandb_points(log)])


def test_wandb_says_that_nobody_is_logged_in(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UserError, match="wandb login"):
        pretrain(reporting("wandb"), data=data.folder, out=tmp_path / "run")


def test_mlflow_goes_on_under_one_id(data, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    run = live(reporting("mlflow", steps=16), data, tmp_path / "run", *KILLS)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("latemask").experiment_id])
    assert found.info.run_id == run.record["trackers"]["mlflow"]["id"]
    assert found.info.status == "FINISHED"
    assert found.data.params["mask.rate"] == "0.4"
    names = {name for _, name in points_of(run)}
    exactly(run, [((p.step, n), p.value) for n in names for p in client.get_metric_history(found.info.run_id, n)])


def test_trackio_goes_on_under_one_id(data, tmp_path):
    pytest.importorskip("trackio")
    run = live(reporting("trackio", steps=16), data, tmp_path / "run", *KILLS)
    with sqlite3.connect(tmp_path / "latemask.db") as store:
        rows = store.execute("select run_id, step, metrics from metrics").fetchall()
    assert len({who for who, _, _ in rows}) == 1
    exactly(run, [((step, name), value) for _, step, text in rows for name, value in json.loads(text).items()])
