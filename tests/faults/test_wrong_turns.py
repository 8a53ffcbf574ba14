"""A run that goes wrong is caught: gradients that are no number, losses that explode or stall, changed inputs."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from latemask import UserError, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.recipe import BudgetRecipe, dump_recipe, load_recipe
from latemask.run_folder import RunFolder
from latemask.training.logs import LossWatch
from latemask.training.loop import Loop
from tests.faults.tormenting import RECIPE, log_lines, same_end
from tests.launching import launch

STEPS = 12
SHORT = replace(RECIPE, budget=BudgetRecipe(steps=STEPS))


class Poison:
    """Spoils the gradient of given batches, and keeps a list of all that were trained on."""

    def __init__(self, monkeypatch):
        self.seen, self.bad = [], []
        clip = torch.nn.utils.clip_grad_norm_
        step = Loop.step

        def seen(loop, batches):
            self.seen += [batch["labels"].clone() for batch in batches]
            step(loop, batches)

        def spoiled(weights, *given):
            weights = list(weights)
            if any(torch.equal(self.seen[-1], other) for other in self.bad):
                weights[0].grad.fill_(float("nan"))
            return clip(weights, *given)

        monkeypatch.setattr(Loop, "step", seen)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoiled)

    def order(self, batches) -> list[int]:
        """Return the seen batches by their number among `batches`."""
        return [next(n for n, other in enumerate(batches) if torch.equal(labels, other)) for labels in self.seen]


@pytest.fixture
def poison(monkeypatch):
    return Poison(monkeypatch)


@pytest.fixture
def batches(data, tmp_path, poison):
    """The labels of 15 batches, in order."""
    pretrain(replace(RECIPE, budget=BudgetRecipe(steps=15)), data=data.folder, out=tmp_path / "all")
    found, poison.seen = poison.seen, []
    return found


def test_a_bad_gradient_stops_the_run_before_it_is_applied(data, tmp_path, poison, batches):
    poison.bad = [batches[5]]
    with pytest.raises(UserError, match=r"the gradient is nan at step 6(.|\n)*--on-nan rewind"):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run")
    assert RunFolder(tmp_path / "run").last_checkpoint().name == "checkpoint-4"
    poison.bad = []
    resumed = pretrain(SHORT, data=data.folder, out=tmp_path / "run", resume=True)
    whole = pretrain(SHORT, data=data.folder, out=tmp_path / "whole")
    assert same_end(resumed, whole)


def test_a_rewind_goes_back_and_leaves_the_samples_out(data, tmp_path, poison, batches, capsys):
    poison.bad = [batches[5], batches[7]]
    run = pretrain(SHORT, data=data.folder, out=tmp_path / "run", on_nan="rewind")
    assert run.record["left_out_batches"] == [5, 7]
    assert poison.order(batches) == [0, 1, 2, 3, 4, 5, 4, 6, 7, 4, 6, 8, 9, 10, 11, 12, 13]
    assert [row["step"] for row in run.metrics() if "loss" in row] == [1, 3, 6, 9, 12]
    assert "going back, and leaving out samples 20 to 23" in capsys.readouterr().err


def test_what_was_left_out_stays_out_after_a_resume(data, tmp_path, poison, batches):
    poison.bad = [batches[1]]
    whole = pretrain(SHORT, data=data.folder, out=tmp_path / "whole", on_nan="rewind")
    with pytest.raises(TimeIsUp):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", on_nan="rewind", stop_after="0s")
    with pytest.raises(UserError, match="gradient is nan at step 2"):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", resume=True)
    run = pretrain(SHORT, data=data.folder, out=tmp_path / "run", resume=True, on_nan="rewind")
    assert same_end(run, whole)


def test_when_every_batch_is_bad_it_is_not_the_samples(data, tmp_path, poison, batches):
    poison.bad = batches
    with pytest.raises(UserError, match="it is not the samples"):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", on_nan="rewind")


def watched(losses, capsys, max_steps=1000) -> str:
    watch = LossWatch(max_steps)
    for number, loss in enumerate(losses, 1):
        watch(number, {"loss": loss})
    return capsys.readouterr().err


def test_an_exploding_loss_is_said_once_with_the_likely_reason(capsys):
    said = watched([7.0, 6.0, 5.0, 6.5, 6.6, 6.7], capsys)
    assert said.count("the loss rose from 5.00 at step 3 to 6.50 at step 4") == 1
    assert said.count("rose") == 1
    assert "train.learning_rate is too high" in said


def test_a_loss_that_does_not_fall_is_said(capsys):
    assert "the loss does not fall" in watched([7.0] * 30, capsys)


def test_a_loss_that_falls_is_left_alone(capsys):
    assert watched([7.0 - 0.01 * n for n in range(200)], capsys) == ""


def test_changes_are_refused_unless_they_are_allowed(data, tmp_path, capsys):
    with pytest.raises(TimeIsUp):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", stop_after="0s")
    changed = replace(SHORT, train=replace(SHORT.train, learning_rate=1e-3, weight_decay=0.5))
    with pytest.raises(UserError, match=r"train\.learning_rate: 0\.003 -> 0\.001.*--allow-changes"):
        pretrain(changed, data=data.folder, out=tmp_path / "run", resume=True)
    run = pretrain(changed, data=data.folder, out=tmp_path / "run", resume=True, allow_changes=True)
    assert "going on with changes: train.learning_rate: 0.003 -> 0.001" in capsys.readouterr().err
    assert load_recipe(run.recipe_file).train.learning_rate == 1e-3
    rates = {row["step"]: row["learning_rate"] for row in log_lines(run) if "learning_rate" in row}
    plain = pretrain(changed, data=data.folder, out=tmp_path / "plain")
    expected = {row["step"]: row["learning_rate"] for row in log_lines(plain) if "learning_rate" in row}
    assert {step: rate for step, rate in rates.items() if step > 1} == {
        step: rate for step, rate in expected.items() if step > 1
    }


def test_the_shape_of_the_model_and_the_batch_cannot_change(data, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", stop_after="0s")
    for changed in (
        replace(SHORT, options=replace(SHORT.options, layers=1)),
        replace(SHORT, train=replace(SHORT.train, batch_size=8)),
    ):
        with pytest.raises(UserError, match="a run keeps its model's shape, and its batch"):
            pretrain(changed, data=data.folder, out=tmp_path / "run", resume=True, allow_changes=True)


def test_allowing_changes_is_about_resuming(data, tmp_path):
    with pytest.raises(UserError, match="add --resume"):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", allow_changes=True)


def test_allowed_changes_of_how_often_we_log_validate_and_save_count(data, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(SHORT, data=data.folder, out=tmp_path / "run", stop_after="0s")
    often = replace(SHORT, train=replace(SHORT.train, log_every=2, eval_every=6, save_every=7))
    run = pretrain(often, data=data.folder, out=tmp_path / "run", resume=True, allow_changes=True)
    assert [row["step"] for row in run.metrics() if "loss" in row] == [1, 2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in run.metrics() if "eval_loss" in row] == [6, 12]
    assert [path.name for path in run.all_checkpoints()] == ["checkpoint-12", "checkpoint-7"]


def test_a_finished_run_can_be_made_longer_and_never_shorter(data, tmp_path):
    run = pretrain(SHORT, data=data.folder, out=tmp_path / "run")
    longer, shorter = (replace(SHORT, budget=BudgetRecipe(steps=n)) for n in (16, 8))
    with pytest.raises(UserError, match="has done 12 steps, and the budget is 8"):
        pretrain(shorter, data=data.folder, out=run.path, resume=True, allow_changes=True)
    pretrain(longer, data=data.folder, out=run.path, resume=True, allow_changes=True)
    assert run.metrics()[-1]["step"] == 16
    assert run.is_finished()


def test_a_signal_to_the_whole_group_reaches_no_loading_process(data, tmp_path):
    """As systemd and Slurm send it: to every process at once."""
    number = signal.SIGTERM
    recipe, run = tmp_path / "recipe.yaml", RunFolder(tmp_path / "run")
    many = replace(RECIPE, train=replace(RECIPE.train, workers=2, log_every=1, save_every=1000))
    recipe.write_text(dump_recipe(replace(many, budget=BudgetRecipe(steps=100_000))))
    words = ("pretrain", recipe, "--data", data.folder, "--out", run.path)
    one = launch(tmp_path / "says", *words, session=True)
    one.wait_for("step 5/")
    os.killpg(one.pid, number)
    assert one.wait() == 128 + number, one.stderr
    assert "Traceback" not in one.stderr
    assert one.stderr.count("stopping after this step") == 1
    assert run.last_checkpoint() is not None
