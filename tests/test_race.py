"""The race's benchmark: opponents are tuned, ours run until they are as good, seconds may be those of another race."""

import json

import pytest
from benchmarks.time_to_loss import RATES, UNIT, Contender, Curve, paced, race, tuned


def curve(contender: str, flops: float, *losses: float, start: float = 0.0, pace: float = 1e-12) -> Curve:
    """A run whose validations have these losses, evenly spread."""
    spent = [flops * (number + 1) / len(losses) for number in range(len(losses))]
    points = [(at, start + pace * at, loss) for at, loss in zip(spent, losses, strict=True)]
    return Curve(contender, flops, start, points)


def ours_that_learn(contender: Contender, flops: float) -> Curve:
    """The more it may spend, the lower the loss; early needs twice as much."""
    share = flops / UNIT / (2 if contender.name == "early" else 1)
    return curve(str(contender), flops, 9.0, 8.0 - 4 * share, start=10.0)


def test_a_contender_has_our_settings_where_none_are_given():
    assert str(Contender.of("hf-modernbert")) == "hf-modernbert:0.001:16"
    assert str(Contender.of("hf-roberta:5e-4:8")) == "hf-roberta:0.0005:8"


@pytest.mark.parametrize(("best", "beyond"), [(5e-4, 2.5e-4), (1e-3, None), (2e-3, 4e-3)])
def test_the_better_opponent_gets_half_the_batch_and_a_rate_beyond_those_that_were_tried(best, beyond):
    def run(contender: Contender, flops: float) -> Curve:
        is_best = (contender.name, contender.rate) == ("hf-modernbert", best)
        return curve(str(contender), flops, 6.0 if is_best else 7.0)

    tried = [found.contender for found in tuned(run, UNIT)]
    assert len(tried) == sum(map(len, RATES.values())) + (1 if beyond is None else 2)
    assert f"hf-modernbert:{best:g}:8" in tried
    assert beyond is None or f"hf-modernbert:{beyond:g}:16" in tried


def test_ours_are_timed_by_the_shortest_run_that_is_as_good_as_the_best_of_theirs():
    theirs = [curve("hf-modernbert:0.001:16", UNIT, 7.0, 6.5), curve("hf-roberta:0.0005:16", UNIT, 7.3, 7.1)]
    found = race(ours_that_learn, UNIT, theirs)
    assert (found["run_mlm"], found["loss"]) == ("hf-modernbert:0.001:16", 6.5)
    assert found["flops_over_run_mlm"] == pytest.approx(0.5)  # 8 - 4 x 0.375 is 6.5, and the next part is a half
    assert found["seconds_over_run_mlm"] == pytest.approx((10 + 0.5 * 75) / 75, abs=1e-4)  # the start is paid for
    assert found["early_seconds_over_run_mlm"] == pytest.approx((10 + 75) / 75, abs=1e-4)
    ends = found["at_the_budget"]
    assert {name: end["loss"] for name, end in ends.items()} == {
        "hf-modernbert:0.001:16": 6.5,
        "hf-roberta:0.0005:16": 7.1,
        "late:0.001:16": 4.0,
        "early:0.001:16": 6.0,
    }


def test_what_is_never_as_good_has_no_time():
    found = race(ours_that_learn, UNIT, [curve("hf-modernbert:0.001:16", UNIT, 1.0)])
    assert found["seconds_over_run_mlm"] is None


def test_a_long_race_takes_its_seconds_from_one_that_had_the_machine_for_itself(tmp_path):
    theirs = [curve("hf-modernbert:0.001:16", UNIT, 6.5)]
    (tmp_path / "race.json").write_text(json.dumps(race(ours_that_learn, UNIT, theirs)))

    def slow(contender: Contender, flops: float) -> Curve:
        return curve(str(contender), flops, 5.0, start=77.0, pace=1e-9)

    run = paced(slow, tmp_path / "race.json")
    assert run(Contender.of("hf-modernbert"), 8 * UNIT).points == [(8 * UNIT, pytest.approx(8 * 75), 5.0)]
    assert run(Contender.of("late"), 2 * UNIT).points == [(2 * UNIT, pytest.approx(10 + 2 * 75), 5.0)]
