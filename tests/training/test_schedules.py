"""Schedules: pure functions of the step and the phases of the run."""

import math
from dataclasses import replace

import pytest

from latemask import UserError
from latemask.recipe import SCHEDULES, TrainRecipe
from latemask.training.schedules import Phases, cosine, linear, wsd


def rates(schedule, phases):
    return [schedule(done, phases) for done in range(phases.steps + 1)]


def test_linear_rises_and_falls_in_straight_lines():
    assert rates(linear, Phases(2, 0, 6)) == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert linear(0, Phases(0, 0, 4)) == 1.0


def test_cosine_falls_along_half_a_cosine():
    found = rates(cosine, Phases(2, 0, 6))
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0])


def test_wsd_stays_at_the_peak_until_the_decay_and_ends_at_0():
    assert rates(wsd, Phases(2, 4, 10)) == [0.0, 0.5, 1, 1, 1, 1, 1, 0.5, 1 - math.sqrt(0.5), 1 - math.sqrt(0.75), 0.0]


def test_until_its_decay_wsd_does_not_know_how_long_the_run_is():
    assert rates(wsd, Phases(3, 5, 20))[:16] == rates(wsd, Phases(3, 5, 2000))[:16]


@pytest.mark.parametrize("name", SCHEDULES.names())
@pytest.mark.parametrize("phases", [Phases(0, 1, 1), Phases(1, 1, 2), Phases(7, 3, 10), Phases(0, 5, 10)])
def test_every_rate_is_a_share_of_the_peak(name, phases):
    assert all(0 <= rate <= 1 for rate in rates(SCHEDULES[name], phases))


def test_below_1_a_phase_is_a_share_of_the_run_and_from_1_on_a_number_of_steps():
    train = TrainRecipe(warmup=0.25, decay=30)
    assert Phases.of(train, 200) == Phases(50, 30, 200)
    assert Phases.of(replace(train, warmup=1), 200).warmup == 1


@pytest.mark.parametrize(
    ("train", "match"),
    [
        ({"warmup": 300}, "train.warmup is 300 steps, and the run has 200"),
        ({"schedule": "wsd", "warmup": 0.6, "decay": 0.5}, "120 and 100 steps, and the run has 200"),
    ],
)
def test_phases_that_do_not_fit_into_the_run_are_refused(train, match):
    with pytest.raises(UserError, match=match):
        Phases.of(TrainRecipe(**train), 200)
