"""Calibration: real steps of the recipe, on this machine, before a run."""

import json
from dataclasses import replace

import pytest
import torch

from latemask.budget.flops import sequence_flops
from latemask.cli import main
from latemask.recipe import BudgetRecipe, MaskRecipe, dump_recipe, spelled_out
from latemask.training import calibration
from latemask.training.calibration import RandomSteps, calibrated
from latemask.training.loop import Loop
from tests.conftest import tiny_recipe


@pytest.fixture
def clock(monkeypatch):
    """Steps take what the test says; the machine multiplies 10^9 a second."""

    def set_to(a_row: float, update: float) -> None:
        monkeypatch.setattr(RandomSteps, "seconds", lambda steps, batches: batches * a_row * steps.rows + update)
        monkeypatch.setattr(calibration, "measured_peak", lambda *_: 1e9)

    return set_to


def tiny(batch: int, micro: int | None = None, **changes):
    recipe = tiny_recipe(budget=BudgetRecipe(steps=10), **changes)
    train = replace(recipe.train, batch_size=batch, micro_batch_size=micro)
    return spelled_out(replace(recipe, train=train), 300)


@pytest.mark.parametrize(("batch", "micro"), [(8, None), (32, 8), (512, None)])
def test_a_step_is_its_rows_and_one_update_however_few_rows_were_timed(clock, batch, micro):
    clock(a_row=0.01, update=0.5)
    recipe = tiny(batch, micro)
    found = calibrated(recipe, since=0.0)
    seconds = batch * 0.01 + 0.5
    assert found.share == pytest.approx(batch * sequence_flops(recipe).training / seconds / 1e9)


def test_a_recipe_too_large_to_time_whole_is_timed_with_fewer_rows(monkeypatch):
    timed = []
    monkeypatch.setattr(calibration, "measured_peak", lambda *_: 1e8)
    monkeypatch.setattr(calibration, "_timed", lambda steps: (timed.append(steps.rows), (1.0, 2.0))[1])
    calibrated(tiny(4096), since=0.0)
    assert 1 <= timed[0] < 4096


@pytest.mark.parametrize("pattern", ["word", "span", "pmi"])
def test_masks_with_a_shape_are_timed_without_data(pattern):
    steps = RandomSteps(tiny(4, mask=MaskRecipe(pattern)), 4, torch.device("cpu"))
    assert steps.batch()["labels"].shape == (4, steps.recipe.counts.predicted)


@pytest.mark.parametrize("objective", ["late", "early"])
def test_what_is_timed_is_the_step_that_trains(objective):
    steps = RandomSteps(tiny(4, objective=objective), 4, torch.device("cpu"))
    before = [weight.clone() for weight in steps.loop.model.parameters()]
    assert steps.seconds(2) > 0
    assert steps.seconds() > 0  # the first step of a warm-up has no learning rate yet
    assert isinstance(steps.loop, Loop)
    assert steps.loop.done == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, steps.loop.model.parameters(), strict=True))


def test_plan_measures_this_machine(tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_recipe(tiny(8)))
    assert main(["plan", str(path), "--calibrate", "--hours", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    time = found["time"]
    assert time["assumed"]["measured"]
    assert time["seconds"] <= 360
    parts = time["start_seconds"] + time["validation_seconds"] + found["steps"] * time["seconds_per_step"]
    assert time["seconds"] == pytest.approx(parts)
