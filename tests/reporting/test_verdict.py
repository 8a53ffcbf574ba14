"""The verdict: what the numbers say, how sure that is, and what they do not say."""

import json
import shutil
from dataclasses import replace

import pytest

from latemask.reporting.runs import common_ground, read_run
from latemask.reporting.scores import Scores, read_scores
from latemask.reporting.verdict import arms_of, baselines_of, verdict
from tests.reporting.conftest import CONTROL, write_results

LABELS = ("late 40% inside 2", "early 40%", "early 15%")
ONE_RUN = "one run has no range, so seeds alone could make this difference"


@pytest.fixture
def judged(runs, tmp_path):
    """Say what the verdict is when runs have these scores on one task."""

    def judge(late, early, fifteen, control=None):
        found = {runs.late: late, runs.early: early, runs.fifteen: fifteen, CONTROL: control}
        path = write_results(tmp_path / "results.json", {run: {"sst2": s} for run, s in found.items() if s})
        read = [read_run(run) for run in runs.all]
        scores = read_scores([path], read)
        return verdict(arms_of(read, scores), scores)

    return judge


def flops_ratio(runs, base):
    return f"{read_run(runs.late).flops / read_run(base).flops:.0%}"


def test_it_says_at_what_share_of_the_flops_late_reaches_early(judged, runs):
    said = judged([0.80, 0.82], [0.79, 0.83], [0.70, 0.71])
    assert said[0].startswith("Scores are means over 1 task (sst2)")
    assert "reaches the median of early 40% (81.0; 79.0 to 83.0, n = 2 from 1 pre-training run)" in said[1]
    assert f" at {flops_ratio(runs, runs.early)} of its FLOPs" in said[1]
    assert "81.0 (+0.0; 80.0 to 82.0, n = 2 from 1 pre-training run)" in said[1]
    assert "the ranges overlap, so seeds alone could make this difference" in said[1]
    assert "reaches the median of early 15% (70.5" in said[2]
    assert "the ranges do not overlap, but of one pre-training run they say nothing about other seeds" in said[2]


def test_of_one_number_no_range_is_claimed(judged):
    line = said_of(judged([0.90], [0.50, 0.52], [0.40]), "reaches the median of early 40%")
    assert line.endswith(f": 90.0 (+39.0; n = 1 from 1 pre-training run); {ONE_RUN}.")


def said_of(said, what):
    (line,) = (line for line in said if what in line)
    return line


def test_what_looks_the_same_is_the_same(judged):
    said = judged([0.80001], [0.80004], [0.70])
    assert said[1].startswith("late 40% inside 2 reaches the median of early 40% (80.0")


def test_without_scores_of_early_the_others_are_still_compared(runs, tmp_path):
    longer = shutil.copytree(runs.late, tmp_path / "longer")
    recipe = (longer / "recipe.yaml").read_text()
    (longer / "recipe.yaml").write_text(recipe.replace("rate: 0.4", "rate: 0.5"))
    config = longer / "encoder" / "config.json"
    config.write_text(config.read_text() + "\n")  # another encoder
    path = write_results(tmp_path / "results.json", {runs.late: {"sst2": [0.8]}, longer: {"sst2": [0.7]}})
    read = [read_run(run) for run in (runs.late, longer, runs.early)]
    scores = read_scores([path], read)
    said = verdict(arms_of(read, scores), scores)
    assert "None of the others reaches the median of late 40% inside 2 (80.0" in said[1]
    assert "Without scores, and not judged: early 40%." in said


def test_it_says_so_when_late_does_not_reach_early(judged):
    said = judged([0.75], [0.80], [0.70])
    assert said[1].startswith("None of the others reaches the median of early 40% (80.0")
    assert "75.0 (-5.0;" in said[1]
    assert "late 40% inside 2 reaches the median of early 15%" in said[2]


def test_it_says_who_is_better_than_an_encoder_that_was_never_trained(judged):
    said = judged([0.80, 0.82], [0.75, 0.79], [0.70, 0.71], control=[0.70, 0.72, 0.76])
    assert said[3] == (
        "Never trained, random:<tiny> has 72.0 (70.0 to 76.0, n = 3); above all of that: late 40% inside 2; "
        "above by the median only: early 40%; no better, so that pre-training shows nothing here: early 15%."
    )


def test_every_arm_is_named_beside_its_baseline(runs, tmp_path):
    """Not the best alone: one that comes behind it has its own sentence."""
    worse = shutil.copytree(runs.late, tmp_path / "worse")
    (worse / "recipe.yaml").write_text((worse / "recipe.yaml").read_text().replace("rate: 0.4", "rate: 0.5"))
    config = worse / "encoder" / "config.json"
    config.write_text(config.read_text() + "\n")  # another encoder
    found = {runs.late: [0.80, 0.82], worse: [0.71, 0.73], runs.early: [0.75, 0.77]}
    path = write_results(tmp_path / "results.json", {run: {"sst2": scores} for run, scores in found.items()})
    read = [read_run(run) for run in found]
    scores = read_scores([path], read)
    said = verdict(arms_of(read, scores), scores)
    line = said_of(said, "of the FLOPs of early 40%, late 50% inside 2 has 72.0 (-4.0;")
    assert line.startswith(f"At {read[1].flops / read[2].flops:.0%} of the FLOPs")


def test_arms_at_or_below_a_floor_are_named(judged):
    said = judged([0.80], [0.50], [0.49])
    floor = "Without an encoder, majority class or mean has 50.0"
    assert f"{floor}; above it: late 40% inside 2; AT OR BELOW it: early 40%, early 15%." in said


def test_runs_without_scores_are_not_judged(judged):
    said = judged([0.75], None, [0.70])
    assert "Without scores, and not judged: early 40%." in said


def test_without_scores_only_losses_are_compared(runs):
    read = [read_run(run) for run in runs.all]
    nothing = Scores([], {run.name: {} for run in read}, [])
    said = verdict(arms_of(read, nothing), nothing)
    assert said[0].startswith("No downstream scores")
    assert len(said) == 4
    for line, base in zip(said[1:3], (runs.early, runs.fifteen), strict=True):
        assert "late 40% inside 2" in line
        assert f"{read_run(runs.late).last_validation:.3f}" in line
        assert f"{read_run(base).last_validation:.3f}" in line
        assert line.endswith(f"{ONE_RUN}.")
    ends = (f"{name}: {run.last_validation:.3f} (one run)" for name, run in zip(LABELS, read, strict=True))
    assert said[3] == f"Validation losses at the end: {'; '.join(ends)}."


def with_losses(run, losses):
    """Return a run as if these had been its validation losses."""
    steps = [2, 4, 6]
    rows = [{"step": step, "eval_loss": loss, "seconds": 1.0} for step, loss in zip(steps, losses, strict=True)]
    return replace(run, rows=rows)


def said_of_losses(runs, late):
    """Return what is said when late had these losses, and early 9, 8 and 7."""
    read = [with_losses(read_run(runs.late), late), with_losses(read_run(runs.early), [9, 8, 7])]
    nothing = Scores([], {run.name: {} for run in read}, [])
    return verdict(arms_of(read, nothing), nothing)[1]


def test_it_says_at_what_share_of_the_flops_the_loss_of_early_is_reached(runs):
    share = 4 / 6 * read_run(runs.late).flops / read_run(runs.early).flops
    assert said_of_losses(runs, [9, 7, 6]) == (
        f"late 40% inside 2 reaches the last validation loss of early 40% (7.000) at {share:.0%} of its FLOPs, "
        f"and ends at 6.000 with {flops_ratio(runs, runs.early)} of its FLOPs; {ONE_RUN}."
    )


def test_it_says_so_when_the_loss_of_early_is_not_reached(runs):
    assert said_of_losses(runs, [9, 8, 8]) == (
        "None of the others reaches the last validation loss of early 40% (7.000); the best of them is "
        f"late 40% inside 2: 8.000 with {flops_ratio(runs, runs.early)} of its FLOPs; {ONE_RUN}."
    )


def test_a_loss_that_is_reached_at_the_end_has_no_share_of_its_own(runs):
    assert said_of_losses(runs, [9, 8, 6]) == (
        "late 40% inside 2 reaches the last validation loss of early 40% (7.000): it ends at 6.000 with "
        f"{flops_ratio(runs, runs.early)} of its FLOPs; {ONE_RUN}."
    )


def test_losses_on_other_rows_are_not_compared(runs):
    early = read_run(runs.early)
    longer = replace(early.recipe, train=replace(early.recipe.train, eval_rows=9))
    read = [read_run(runs.late), replace(early, recipe=longer)]
    nothing = Scores([], {run.name: {} for run in read}, [])
    said = verdict(arms_of(read, nothing), nothing)
    assert any(line.startswith("The losses of early 40% and of late 40% inside 2 are not comparable") for line in said)
    assert not any("validation loss" in line for line in said)


def test_one_finished_run_is_nothing_to_compare(runs):
    read = [read_run(runs.late)]
    nothing = Scores([], {"late": {}}, [])
    assert "nothing to compare" in verdict(arms_of(read, nothing), nothing)[0]


def test_unfinished_runs_are_in_no_arm(runs, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "copied")
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "running"}))
    assert arms_of([read_run(copied)], Scores([], {}, [])) == []


def test_repeats_with_other_seeds_are_one_arm(runs, results, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "again")
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("seed: 0", "seed: 1"))
    read = [*(read_run(run) for run in runs.all), read_run(copied)]
    scores = Scores([], {run.name: {} for run in read}, [])
    arms = arms_of(read, scores)
    assert [[run.name for run in arm.runs] for arm in arms] == [["late", "again"], ["early"], ["fifteen"]]
    assert [arm.label for arm in arms] == ["late 40% inside 2", "early 40%", "early 15%"]
    assert [arm.label for arm in baselines_of(arms)] == ["early 40%", "early 15%"]


def test_the_number_of_pretraining_runs_is_of_those_with_scores(runs, results, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "again")
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("seed: 0", "seed: 1"))
    config = copied / "encoder" / "config.json"
    config.write_text(config.read_text() + "\n")  # another encoder
    read = [*(read_run(run) for run in runs.all), read_run(copied)]
    scores = read_scores([results], read)
    late = arms_of(read, scores)[0]
    assert (len(late.runs), late.scored_runs) == (2, 1)
    assert late.spread.endswith("n = 2 from 1 pre-training run")


def test_a_copy_is_no_repeat(runs, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "copied")
    read = [read_run(runs.late), read_run(copied), read_run(runs.early)]
    arms = arms_of(read, Scores([], {}))
    assert [[run.name for run in arm.runs] for arm in arms] == [["late"], ["early"]]
    assert common_ground(read) == [
        "these have the same recipe, data and seed, so they are no repeats; late alone is judged: late, copied"
    ]


def test_losses_of_several_runs_have_a_range(runs):
    def repeats(path, losses):
        run = read_run(path)
        return [
            replace(with_losses(run, [9, 9, loss]), recipe=replace(run.recipe, seed=seed))
            for seed, loss in enumerate(losses)
        ]

    for late, sure in (([5, 6], "the ranges do not overlap"), ([5, 7.5], "the ranges overlap, so seeds alone")):
        read = [*repeats(runs.late, late), *repeats(runs.early, [7, 8])]
        said = verdict(arms_of(read, Scores([], {})), Scores([], {}))
        assert sure in said[1]
        assert f"late 40% inside 2: {sum(late) / 2:.3f} (5.000 to {late[1]:.3f}, 2 runs)" in said[2]


def test_arms_that_differ_in_their_budget_alone_are_told_apart(runs, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "longer")
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("steps: 6", "steps: 5"))
    read = [read_run(runs.late), read_run(copied)]
    arms = arms_of(read, Scores([], {run.name: {} for run in read}, []))
    assert len({arm.label for arm in arms}) == 2
    assert baselines_of(arms) == arms[:1]  # there is no early one: the first
