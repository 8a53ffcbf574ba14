"""Scores go to the runs they belong to, and only like is put beside like."""

import json
import shutil
from dataclasses import replace

import pytest

from latemask.reporting.runs import read_run
from latemask.reporting.scores import read_scores
from tests.reporting.conftest import CONTROL, write_results


def plain(found):
    """Return scores by run and task, without how they were made."""
    return {name: {label: task.values for label, task in tasks.items()} for name, tasks in found.items()}


@pytest.fixture
def three(runs):
    return [read_run(path) for path in runs.all]


def test_every_seed_of_every_task_is_there_in_per_cent(three, results):
    found = read_scores([results], three)
    assert plain(found.by_run)["late"] == {"sst2": [80, 82], "mrpc": [70, 72]}
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
    assert plain(again.by_run)["late"] == {"sst2": [80]}
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
    assert found.of("late", "sst2") == [80, 82]


def test_a_never_trained_control_stands_beside_the_runs(runs, three, tmp_path):
    late, control = {"sst2": [0.8, 0.9], "mrpc": [0.6, 0.7]}, {"sst2": [0.5, 0.6], "mrpc": [0.7, 0.8]}
    found = read_scores([write_results(tmp_path / "one.json", {runs.late: late, CONTROL: control})], three)
    assert plain(found.by_run) == {"late": {"sst2": [80, 90], "mrpc": [60, 70]}, "early": {}, "fifteen": {}}
    assert plain(found.controls) == {CONTROL: {"sst2": [50, 60], "mrpc": [70, 80]}}
    assert found.control_averages == {CONTROL: pytest.approx([60, 70])}


def test_the_mean_of_a_floor_is_over_the_shared_tasks_and_only_where_all_have_it(runs, three, tmp_path):
    path = write_results(tmp_path / "one.json", {runs.late: {"sst2": [0.8], "mrpc": [0.6]}})
    record = json.loads(path.read_text())
    record["tasks"]["mrpc"]["constant"]["score"] = 0.7
    record["tasks"]["sst2"]["floors"] = [{"name": "counting", "words": "", "score": 0.6, "metrics": {}}]
    path.write_text(json.dumps(record))
    found = read_scores([path], three)
    assert found.contests[0].floors == {"majority class or mean": 50, "counting": 60}
    assert found.floor_averages == {"majority class or mean": pytest.approx(60)}


def test_two_controls_of_one_name_are_not_mixed(runs, three, tmp_path):
    paths = [
        write_results(tmp_path / f"{task}.json", {runs.late: {task: [0.8]}, CONTROL: {task: [0.5]}})
        for task in ("sst2", "mrpc")
    ]
    record = json.loads(paths[1].read_text())
    record["encoders"][CONTROL]["identity"] = "another shape"
    paths[1].write_text(json.dumps(record))
    found = read_scores(paths, three)
    assert plain(found.controls) == {CONTROL: {"sst2": [50]}}
    assert any(f"'{CONTROL}' is another encoder than the '{CONTROL}' before it" in said for said in found.problems)


def test_precisions_are_one_contest(runs, three, tmp_path):
    one = write_results(tmp_path / "one.json", {runs.late: {"sst2": [0.8]}}, precision="fp32")
    two = write_results(tmp_path / "two.json", {runs.early: {"sst2": [0.7]}}, precision="auto")
    assert read_scores([one, two], three).shared == ["sst2"]


def test_ways_to_fine_tune_are_contests_of_their_own_and_less_memory_is_none(runs, three, tmp_path):
    full = write_results(tmp_path / "full.json", {runs.late: {"sst2": [0.8]}})
    again = write_results(tmp_path / "again.json", {runs.early: {"sst2": [0.7]}}, checkpointing=True)
    lora = write_results(
        tmp_path / "lora.json", {runs.late: {"sst2": [0.9]}, runs.early: {"sst2": [0.6]}}, method="lora"
    )
    rank = write_results(tmp_path / "rank.json", {runs.late: {"sst2": [0.5]}}, method="lora", options={"rank": 2})
    found = read_scores([full, again, lora, rank], three)
    assert [contest.label for contest in found.contests] == ["sst2", "sst2, lora", "sst2, lora (2)"]
    assert plain(found.by_run)["late"] == {"sst2": [80], "sst2, lora": [90], "sst2, lora (2)": [50]}
    assert plain(found.by_run)["early"] == {"sst2": [70], "sst2, lora": [60]}


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


def without(path, drop):
    """Take cells out of a file of results."""
    record = json.loads(path.read_text())
    record["cells"] = [cell for cell in record["cells"] if not drop(cell)]
    path.write_text(json.dumps(record))


def test_means_are_over_the_same_seed_of_each_task_and_a_seed_that_lacks_one_is_named(three, results):
    without(
        results, lambda cell: (cell["encoder"], cell["task"], cell["seed"]) == (str(three[0].folder.path), "mrpc", 0)
    )
    found = read_scores([results], three)
    assert found.averages("late") == [pytest.approx((82 + 72) / 2)]
    assert found.problems == [
        "late: not in its mean, for they were not run on every shared task: fine-tuning seeds 0",
    ]


def test_other_learning_rates_are_said(three, results):
    record = json.loads(results.read_text())
    late = [cell for cell in record["cells"] if (cell["encoder"], cell["task"]) == (str(three[0].folder.path), "sst2")]
    record["cells"] += [{**cell, "learning_rate": 1e-3, "score": 0.9} for cell in late]
    results.write_text(json.dumps(record))
    found = read_scores([results], three)
    assert found.of("late", "sst2") == [90, 90]
    assert found.problems == [
        "sst2: not fine-tuned at the same learning rates: late at 0.0001, 0.001 / early, fifteen at 0.0001"
    ]


def test_finetunings_that_collapsed_are_said(three, results):
    record = json.loads(results.read_text())
    record["cells"][0]["collapsed"] = True
    results.write_text(json.dumps(record))
    assert read_scores([results], three).problems == ["late: 1 of 2 fine-tunings on sst2 say the same of everything"]


def test_scores_of_a_run_that_is_not_finished_are_kept_apart_and_take_no_task_from_the_others(runs, three, results):
    unfinished = replace(three[2], record={**three[2].record, "status": "stopped"})
    without(results, lambda cell: cell["encoder"] == str(runs.fifteen) and cell["task"] == "mrpc")
    found = read_scores([results], [*three[:2], unfinished])
    assert found.shared == ["sst2", "mrpc"]
    assert plain(found.unfinished) == {"fifteen": {"sst2": [70, 71]}}
    assert "fifteen is not finished: its scores are shown, and not judged" in found.problems


def test_a_damaged_encoder_is_said_and_the_others_are_read(runs, three, results, tmp_path):
    copied = shutil.copytree(runs.late, tmp_path / "copied")
    (copied / "encoder" / "model.safetensors").unlink()
    found = read_scores([results], [read_run(copied), *three[1:]])
    assert any(problem.startswith("copied: ") and "no safetensors" in problem for problem in found.problems)
    assert found.of("early", "sst2") == [79, 81]
    assert read_scores([], [read_run(copied)]).problems == []


def test_results_that_are_a_folder_are_named(three, results, tmp_path):
    (tmp_path / "folder" / "results.json").mkdir(parents=True)
    found = read_scores([tmp_path / "folder", results], three)
    assert "results.json is damaged" in found.problems[0]
    assert found.of("late", "sst2") == [80, 82]
