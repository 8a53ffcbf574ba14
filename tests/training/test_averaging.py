"""A moving average of the weights: followed exactly, judged and kept in their place, resumed and branched."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from latemask import UserError, pretrain
from latemask.ground.errors import Interrupted
from latemask.model import load_model
from latemask.recipe import BudgetRecipe
from latemask.text import Mixture
from latemask.training.job import plan_job
from latemask.training.loop import Loop
from tests.conftest import tiny_recipe
from tests.training.test_pretraining import press_ctrl_c_in_step_three


def averaged(steps: int = 6, average: float = 0.6, **train):
    base = tiny_recipe()
    train = {"optimizer": "adamw", "save_every": 2, "average": average, **train}
    return replace(base, budget=BudgetRecipe(steps=steps), train=replace(base.train, **train))


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_what_is_kept_is_the_average_of_all_weights_so_far(data, tmp_path, monkeypatch):
    step, trace = Loop.step, []

    def traced(loop, batches):
        if not trace:
            trace.append([weight.detach().clone() for weight in loop.model.parameters()])
        step(loop, batches)
        trace.append([weight.detach().clone() for weight in loop.model.parameters()])

    monkeypatch.setattr(Loop, "step", traced)
    run = pretrain(averaged(), data=data.folder, out=tmp_path / "run")
    expected = trace[0]
    for done, now in enumerate(trace[1:], 1):
        rate = min(0.6, done / (done + 10))
        expected = [rate * old + (1 - rate) * new for old, new in zip(expected, now, strict=True)]
    kept = weights(run.model)
    names = [name for name, _ in load_model(run.model).named_parameters()]
    assert len(names) == len(expected)
    for name, tensor in zip(names, expected, strict=True):
        torch.testing.assert_close(kept[name], tensor)
    last = load_file(run.last_checkpoint() / "unaveraged.safetensors")
    assert all(torch.equal(last[name], tensor) for name, tensor in zip(names, trace[-1], strict=True))


def test_without_it_the_same_weights_are_trained(data, tmp_path):
    run = pretrain(averaged(), data=data.folder, out=tmp_path / "run")
    plain = pretrain(averaged(average=0.0), data=data.folder, out=tmp_path / "plain")
    last = load_file(run.last_checkpoint() / "unaveraged.safetensors")
    assert all(torch.equal(last[name], tensor) for name, tensor in weights(plain.model).items())
    assert not (plain.last_checkpoint() / "unaveraged.safetensors").exists()


def test_the_average_is_what_is_validated_and_exported(data, tmp_path):
    run = pretrain(averaged(eval_every=3), data=data.folder, out=tmp_path / "run")
    job = plan_job(averaged(), Mixture.open(data.folder))
    loop = Loop(averaged(average=0.0), 6, load_model(run.model), torch.device("cpu"))
    loss = loop.validate(job.validation_batches(job.validation_samples()))
    assert run.metrics()[-1]["eval_loss"] == pytest.approx(loss, abs=1e-6)
    words = "embeddings.tok_embeddings.weight"
    assert torch.equal(load_file(run.encoder / "model.safetensors")[words], weights(run.model)[f"encoder.{words}"])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_every_dial_resumes_to_the_same_bits(data, tmp_path, monkeypatch, optimizer, schedule):
    recipe = averaged(optimizer=optimizer, schedule=schedule, decay=2, eval_every=2)
    with monkeypatch.context() as patch:
        press_ctrl_c_in_step_three(patch)
        with pytest.raises(Interrupted):
            pretrain(recipe, data=data.folder, out=tmp_path / "stopped")
    stopped = pretrain(recipe, data=data.folder, out=tmp_path / "stopped", resume=True)
    whole = pretrain(recipe, data=data.folder, out=tmp_path / "whole")
    assert all(torch.equal(weights(stopped.model)[name], tensor) for name, tensor in weights(whole.model).items())
    lines = [[{**row, "seconds": 0} for row in run.metrics()] for run in (stopped, whole)]
    assert lines[0] == lines[1]


def test_a_branch_may_begin_to_average_and_end_it(data, tmp_path):
    stem = pretrain(averaged(average=0.0, keep_at=(2,)), data=data.folder, out=tmp_path / "stem")
    branch = pretrain(averaged(), data=data.folder, out=tmp_path / "branch", branch=f"{stem.path}@2")
    assert (branch.last_checkpoint() / "unaveraged.safetensors").is_file()
    back = pretrain(averaged(average=0.0), data=data.folder, out=tmp_path / "back", branch=f"{branch.path}@4")
    assert all(torch.equal(weights(back.model)[name], tensor) for name, tensor in weights(stem.model).items())


def test_a_branch_does_not_change_the_optimizer(data, tmp_path):
    stem = pretrain(averaged(keep_at=(2,)), data=data.folder, out=tmp_path / "stem")
    with pytest.raises(UserError, match=r"another train.optimizer: adamw -> muon"):
        pretrain(averaged(optimizer="muon"), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
