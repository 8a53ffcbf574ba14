"""Records: what they hold, what they say, and that a damaged or a foreign one is noticed."""

import json
import subprocess
import sys

import pytest

from latemask import UserError
from latemask.evaluation.display import as_csv, as_markdown, notes, show
from latemask.evaluation.floors import CONSTANT, TFIDF
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results, Trial, summarised

TASK = {"identity": "t", "kind": "classification", "part": "", "cut": {}, "headline": ["accuracy"],
        "constant": {"score": 0.5, "metrics": {"accuracy": 0.5}}}  # fmt: skip


def trial(score, seed=0, rate=1e-4, encoder="a", task="sst2", **changes):
    return Trial(encoder, task, rate, seed, score, {"accuracy": score}, 2, **{"collapsed": False, **changes})


def make_results(path, *trials, tasks=("sst2",), encoders=("a",), part=""):
    results = Results.begin(path, Protocol(epochs=2))
    for encoder in encoders:
        for task in tasks:
            results.enter({"name": encoder, "identity": encoder}, {**TASK, "name": task, "part": part})
    for one in trials:
        results.add(one)
    return results


def test_what_is_written_is_what_is_read(tmp_path):
    results = make_results(tmp_path / "r.json", trial(0.8), trial(0.9, seed=1))
    again = Results.read(tmp_path / "r.json")
    assert again.trials == results.trials
    assert (again.protocol, again.encoders, again.tasks) == (results.protocol, results.encoders, results.tasks)
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["made_by"][0]["command"] == sys.argv
    assert {"torch", "transformers", "scikit-learn", "scipy", "latemask"} < set(record["made_by"][0]["versions"])


def test_trials_of_an_earlier_latemask_do_not_say_their_precision(tmp_path):
    make_results(tmp_path / "r.json", trial(0.8, precision="bf16"))
    record = json.loads((tmp_path / "r.json").read_text())
    del record["cells"][0]["precision"], record["protocol"]["precision"]
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert Results.read(tmp_path / "r.json").trials[0].precision == "unknown"
    assert Results.begin(tmp_path / "r.json", Protocol(epochs=2)).trials  # and they can be gone on with


def test_different_precisions_are_noted(tmp_path):
    same = make_results(tmp_path / "one.json", trial(0.8, precision="bf16"), trial(0.7, 1, precision="bf16"))
    mixed = make_results(tmp_path / "two.json", trial(0.8, precision="bf16"), trial(0.7, 1, precision="fp32"))
    said = "the runs were trained in different precisions: 1 in bf16, 1 in fp32 (results.csv says which)"
    assert said in notes(mixed)
    assert not any("precision" in note for note in notes(same))
    assert [line.split(",")[-1] for line in as_csv(mixed).splitlines()] == ["precision", "bf16", "fp32", ""]


def test_median_mean_spread_and_every_seed():
    summary = summarised([trial(0.7, 0), trial(0.9, 1), trial(0.74, 2)], constant=0.5)
    assert (summary.median, summary.lowest, summary.highest) == (0.74, 0.7, 0.9)
    assert summary.mean == pytest.approx(0.78)
    assert summary.deviation == pytest.approx(0.10583, abs=1e-5)
    assert summary.scores == [0.7, 0.9, 0.74]
    assert summary.constant == 0.5


def test_the_learning_rate_with_the_best_median_is_taken_and_all_are_told():
    trials = [trial(0.99, 0, 1e-4), trial(0.1, 1, 1e-4), trial(0.6, 0, 3e-4), trial(0.7, 1, 3e-4)]
    summary = summarised(trials, 0.5)
    assert summary.learning_rate == 3e-4
    assert summary.tried == {"0.0001": pytest.approx(0.545), "0.0003": pytest.approx(0.65)}


def test_one_seed_has_no_deviation():
    assert summarised([trial(0.7)], 0.5).deviation is None


def test_the_average_says_over_which_tasks_and_which_are_parts(tmp_path):
    trials = [trial(0.8, task="sst2"), trial(0.6, task="rte")]
    results = make_results(tmp_path / "r.json", *trials, tasks=("sst2", "rte", "wnli"))
    results.tasks["rte"]["part"] = "10 of 2,490 training rows"
    average = results.average("a")
    assert average["score"] == pytest.approx(0.7)
    assert (average["tasks"], average["parts"]) == (["sst2", "rte"], ["rte"])
    assert any("the average is over sst2, rte, wnli; of rte only a part" in note for note in notes(results))
    assert results.average("b") is None
    assert "| a | 80.0 | 60.0 | – | – |" in as_markdown(results)  # no mean over other tasks than the column says


def test_a_collapsed_run_is_flagged_and_counted(tmp_path, capsys):
    trials = [trial(0.5, 0, collapsed=True), trial(0.8, 1), trial(0.81, 2)]
    results = make_results(tmp_path / "r.json", *trials)
    assert results.summary("a", "sst2").collapsed == 1
    show(results)
    out = capsys.readouterr().out
    assert "80.0 (50.0–81.0) !1" in out
    assert "sst2, a, lr 0.0001, seed 0" in out
    assert "| a | sst2 | 0.0001 | 0 | 50.0 | accuracy 50.0 | 2 | collapsed |" in as_markdown(results)


def with_floor(results, task, score=0.7):
    results.tasks[task]["floors"] = [
        {"name": TFIDF, "words": "strength 3", "score": score, "metrics": {"accuracy": score}}
    ]
    return results


def test_floors_stand_below_the_scores_and_only_one_that_all_tasks_have_has_an_average(tmp_path):
    results = with_floor(make_results(tmp_path / "r.json", trial(0.8), tasks=("sst2", "rte")), "sst2")
    lines = as_markdown(results).splitlines()
    assert lines[0] == "| encoder | sst2 | rte | average |"
    assert lines[2:5] == [
        "| a | 80.0 | – | – |",
        "| majority class or mean | 50.0 | 50.0 | 50.0 |",
        "| TF-IDF + linear model | 70.0 | – | – |",
    ]
    assert "sst2, TF-IDF + linear model: accuracy 70.0; strength 3" in notes(results)


def test_floors_are_read_back_and_older_records_have_the_constant_answer_alone(tmp_path):
    results = with_floor(make_results(tmp_path / "r.json", trial(0.8)), "sst2")
    assert [floor.name for floor in results.floors("sst2")] == [CONSTANT, TFIDF]
    results.write()
    assert Results.read(tmp_path / "r.json").floors("sst2") == results.floors("sst2")
    del results.tasks["sst2"]["floors"]
    results.write()
    assert [floor.score for floor in Results.read(tmp_path / "r.json").floors("sst2")] == [0.5]


def test_csv_has_a_line_for_every_trial_and_every_floor(tmp_path):
    lines = as_csv(make_results(tmp_path / "r.json", trial(0.8, 1), trial(0.7, 0), part="a part")).splitlines()
    assert lines[0] == "encoder,task,part,learning_rate,seed,score,accuracy,constant,epoch,collapsed,precision"
    assert lines[1:-1] == [f"a,sst2,a part,0.0001,{row},0.5,2,0,unknown" for row in ("0,0.7,0.7", "1,0.8,0.8")]
    assert lines[-1] == "majority class or mean,sst2,a part,,,0.5,0.5,0.5,,,"


def test_the_order_of_running_does_not_show(tmp_path):
    trials = [trial(0.8), trial(0.7, 1), trial(0.6, encoder="b"), trial(0.5, task="rte")]
    known = {"tasks": ("sst2", "rte"), "encoders": ("a", "b")}
    one = make_results(tmp_path / "1.json", *trials, **known)
    other = make_results(tmp_path / "2.json", *reversed(trials), **known)
    assert as_markdown(one) == as_markdown(other)
    assert as_csv(one) == as_csv(other)


def test_names_from_outside_are_escaped(tmp_path, capsys):
    name = "<b>|\x1b[31m"
    results = make_results(tmp_path / "r.json", trial(0.8, encoder=name), encoders=(name,))
    text = as_markdown(results)
    assert "<b>" not in text
    assert "\x1b" not in text
    assert "| &#60;b&#62;&#124;" in text
    show(results)
    assert "\x1b" not in capsys.readouterr().out


def test_going_on_needs_the_same_protocol_and_the_same_things(tmp_path):
    path = tmp_path / "r.json"
    make_results(path, trial(0.8))
    assert Results.begin(path, Protocol(epochs=2)).has(("a", "sst2", 1e-4, 0))
    with pytest.raises(UserError, match=r"another protocol \(epochs: 2 -> 3\); choose another --out or pass --overwr"):
        Results.begin(path, Protocol(epochs=3))
    with pytest.raises(UserError, match="'a' is not what it was"):
        Results.begin(path, Protocol(epochs=2)).enter({"name": "a", "identity": "other"}, {**TASK, "name": "sst2"})


def test_nothing_is_mixed_where_there_is_nothing(tmp_path):
    make_results(tmp_path / "r.json").write()
    assert Results.begin(tmp_path / "r.json", Protocol(epochs=9)).protocol.epochs == 9


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("encoders",), []),
        (("made_by",), None),
        (("tasks", "sst2"), {"name": "sst2"}),
        (("tasks", "sst2", "constant"), None),
        (("tasks", "sst2", "cut"), {"a": None}),
        (("tasks", "sst2", "floors"), [{"name": "x"}]),
        (("tasks", "sst2", "floors"), [{"name": "x", "words": "", "score": "high", "metrics": {}}]),
        (("cells", 0, "score"), "x"),
        (("cells", 0, "score"), None),
        (("cells", 0, "metrics"), None),
        (("cells", 0, "task"), "unknown"),
        (("protocol",), {"epoch": 3}),
    ],
)
def test_a_damaged_entry_is_noticed(tmp_path, path, value):
    make_results(tmp_path / "r.json", trial(0.8)).write()
    record = json.loads((tmp_path / "r.json").read_text())
    *way, last = path
    target = record
    for step in way:
        target = target[step]
    target[last] = value
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"r.json is damaged"):
        Results.read(tmp_path / "r.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "cells": [{}]}', "[" * 100_000])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UserError, match=r"r.json is damaged, or no results of latemask"):
        Results.read(tmp_path / "r.json")


def test_another_format_and_no_file(tmp_path):
    (tmp_path / "r.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="format 99, this latemask reads 1"):
        Results.read(tmp_path / "r.json")
    with pytest.raises(UserError, match="no such file"):
        Results.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "module",
    ["results", "finetuning", "tabulating", "probing", "predicting", "display", "identity", "floors", "verdicts"],
)
def test_help_and_reports_load_neither_torch_nor_scikit_learn(module):
    code = f"import sys, latemask.evaluation.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert f"latemask.evaluation.{module}" in loaded
    assert not {"torch", "transformers", "sklearn"} & set(loaded)
