"""Scores go to the runs they belong to, and only like is put beside like."""

import json
import shutil

import pytest

from latemask.reporting.runs import read_run
from latemask.reporting.scores import read_scores
from tests.reporting.conftest import CONTROL, write_results


@pytest.fixture
def three(runs):
    return [read_run(path) for path in runs.all]


def test_every_seed_of_every_task_is_there_in_per_cent(three, results):
    found = read_scores([results], three)
    assert found.by_run["late"] == {"sst2": [80, 82], "mrpc": [70, 72]}
    assert found.shared == ["sst2", "mrpc"]
    assert found.averages("late") == pytest.approx([75, 77])
    assert found.problems == []


def test_a_folder_with_results_in_it_will_do(three, results):
    assert read_scores([results.parent], three).by_run == read_scores([results], three).by_run


def test_averages_are_over_tasks_that_all_took_part_in(runs, three, tmp_path):
    path = write_results(
        tmp_path / "results.json",
        {
            runs.late: {"sst2": [0.8], "mrpc": [0.9]},
            runs.early: {"sst2": [0.7]},
        },
    )
    found = read_scores([path], three)
    assert found.shared == ["sst2"]
    assert found.averages("late") == [80]
    assert any("has no mrpc yet" in problem for problem in found.problems)
    assert "fifteen: no downstream results were given" in found.problems


def test_another_protocol_is_another_contest(runs, three, tmp_path):
    one = write_results(tmp_path / "one.json", {runs.late: {"sst2": [0.8]}}, epochs=1)
    two = write_results(tmp_path / "two.json", {runs.early: {"sst2": [0.7]}}, epochs=2)
    found = read_scores([one, two], three)
    assert [contest.label for contest in found.contests] == ["sst2", "sst2 (2)"]
    assert found.shared == []
    assert any("no average to compare" in problem for problem in found.problems)


def test_the_same_protocol_in_two_files_is_one_contest(runs, three, tmp_path):
    one = write_results(tmp_path / "one.json", {runs.late: {"sst2": [0.8]}})
    two = write_results(tmp_path / "two.json", {runs.early: {"sst2": [0.7]}})
    assert read_scores([one, two], three).shared == ["sst2"]
    again = read_scores([one, two, one], three)
    assert again.by_run["late"] == {"sst2": [80]}
    assert any("already" in problem for problem in again.problems)


def test_scores_of_other_weights_or_of_strangers_are_left_out(runs, three, tmp_path):
    path = write_results(tmp_path / "results.json", {runs.late: {"sst2": [0.8]}, runs.early: {"sst2": [0.7]}})
    record = json.loads(path.read_text())
    record["encoders"][str(runs.late)]["identity"] = "0" * 64
    path.write_text(json.dumps(record))
    found = read_scores([path], three)
    assert found.by_run["late"] == {}
    assert any("other weights than late has now" in problem for problem in found.problems)
    only_early = read_scores([path], three[2:])
    assert any("none of the runs given" in problem for problem in only_early.problems)


def test_a_run_whose_encoder_is_gone_is_known_by_its_name(runs, three, results, tmp_path):
    shutil.move(runs.late / "encoder", tmp_path / "encoder")
    try:
        found = read_scores([results], three)
    finally:
        shutil.move(tmp_path / "encoder", runs.late / "encoder")
    assert found.by_run["late"]["sst2"] == [80, 82]


def test_a_never_trained_control_stands_beside_the_runs(runs, three, tmp_path):
    late, control = {"sst2": [0.8, 0.9], "mrpc": [0.6, 0.7]}, {"sst2": [0.5, 0.6], "mrpc": [0.7, 0.8]}
    found = read_scores([write_results(tmp_path / "one.json", {runs.late: late, CONTROL: control})], three)
    assert found.by_run == {"late": {"sst2": [80, 90], "mrpc": [60, 70]}, "early": {}, "fifteen": {}}
    assert found.controls == {CONTROL: {"sst2": [50, 60], "mrpc": [70, 80]}}
    assert found.control_averages == {CONTROL: pytest.approx([60, 70])}


def test_two_controls_of_one_name_are_not_mixed(runs, three, tmp_path):
    paths = [
        write_results(tmp_path / f"{task}.json", {runs.late: {task: [0.8]}, CONTROL: {task: [0.5]}})
        for task in ("sst2", "mrpc")
    ]
    record = json.loads(paths[1].read_text())
    record["encoders"][CONTROL]["identity"] = "another shape"
    paths[1].write_text(json.dumps(record))
    found = read_scores(paths, three)
    assert found.controls == {CONTROL: {"sst2": [50]}}
    assert any(f"'{CONTROL}' is another encoder than the '{CONTROL}' before it" in said for said in found.problems)


def test_precisions_are_one_contest(runs, three, tmp_path):
    one = write_results(tmp_path / "one.json", {runs.late: {"sst2": [0.8]}}, precision="fp32")
    two = write_results(tmp_path / "two.json", {runs.early: {"sst2": [0.7]}}, precision="auto")
    assert read_scores([one, two], three).shared == ["sst2"]


def test_a_control_without_all_tasks_has_no_average_and_takes_none_from_the_runs(runs, three, tmp_path):
    late = {"sst2": [0.8], "mrpc": [0.6]}
    found = read_scores([write_results(tmp_path / "one.json", {runs.late: late, CONTROL: {"sst2": [0.5]}})], three)
    assert found.averages("late") == [70]
    assert found.control_averages == {}
    assert f"{CONTROL} was not run on all shared tasks: it has no mean" in found.problems


def test_a_damaged_or_missing_file_is_named_and_the_others_are_read(three, results, tmp_path):
    (tmp_path / "damaged.json").write_text("{")
    found = read_scores([tmp_path / "damaged.json", tmp_path / "nowhere.json", results], three)
    assert found.by_run["late"]
    assert ["damaged.json" in found.problems[0], "nowhere.json" in found.problems[1]] == [True, True]
