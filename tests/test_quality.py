"""The study's benchmark: what is missing is done, what is done is kept, and every number comes from the records."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmarks import quality, quality_summary
from benchmarks.quality_arms import ARMS, BASELINE, CHEAPER, CONTROL, EQUAL, MAIN, TASKS, Arm
from benchmarks.quality_summary import read_records, summary
from benchmarks.quality_tables import DOCUMENTS, blocks, up_to_date

from latemask import pretrain
from latemask.budget.flops import planned_steps, sequence_flops, spent
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results, Trial
from latemask.recipe import BudgetRecipe, flat, load_recipe, spelled_out
from latemask.sweeping import nested
from tests.conftest import tiny_recipe


def record(arm: Arm, seed: int, scores: list[float]) -> dict:
    keys = {**arm.keys, "seed": seed, "budget.flops": arm.share * quality.UNIT}
    recipe = spelled_out(load_recipe("mini-base", nested(keys)), quality.VOCABULARY)
    steps = planned_steps(recipe)
    return {
        "arm": asdict(arm),
        "seed": seed,
        "recipe": flat(recipe),
        "data": {"train/0.npy": "abc"},
        "commit": "abcdef0",
        "steps": steps,
        "tokens": 1000,
        "flops": spent(recipe, steps, steps),
        "seconds": 3600,
        "validation_loss": 5.0,
        "validation": [[10, 6.0]],
        "scores": dict.fromkeys(arm.tasks, scores),
    }


@pytest.fixture
def records(tmp_path):
    by_name = {arm.name: arm for arm in ARMS}

    def write(name: str, seed: int, scores: list[float]) -> None:
        (tmp_path / f"{name}-{seed}.json").write_text(json.dumps(record(by_name[name], seed, scores)))

    return write


def test_the_summary_is_made_from_the_records_alone(records, tmp_path):
    records(BASELINE, 0, [0.50, 0.52, 0.54])
    records(BASELINE, 1, [0.56, 0.58, 0.60])
    records(CHEAPER, 0, [0.55, 0.56, 0.57])
    records(CHEAPER, 1, [0.58, 0.59, 0.60])
    records(EQUAL, 0, [0.60, 0.61, 0.62])
    found = summary(read_records(tmp_path))
    assert found["late_flops_over_early"] == pytest.approx(0.72, abs=1e-3)
    assert found["late_minus_early_at_that_budget"] == pytest.approx(57.5 - 55)
    assert found["late_minus_early_at_equal_flops"] == pytest.approx(61 - 55)
    assert found["tasks"] == list(TASKS)
    assert found["pretraining_seeds"] == 2
    made = blocks(read_records(tmp_path))
    assert "| `early-15` | 1.00 | 2 | 5.000 | 55.0 (50.0–60.0) |" in made["scores"]
    assert "| late, 40% masked | 0.72 | 5.000 | 57.5 (55.0–60.0) | +2.5 | 2 |" in made["headline"]


@pytest.mark.parametrize("begun", [False, True])
def test_what_has_not_been_run_is_not_made_up(records, tmp_path, begun):
    if begun:
        records(BASELINE, 0, [0.5, 0.5, 0.5])
    found = summary(read_records(tmp_path))
    assert found["late_flops_over_early"] is None
    assert found["late_minus_early_at_that_budget"] is None
    assert found["late_minus_early_at_equal_flops"] is None
    assert found["pretraining_seeds"] == begun
    assert "| 0.001 | 8 | – | – |" in blocks(read_records(tmp_path))["tuning"]


def test_what_sentences_rest_on_is_made_from_the_records_too(records, tmp_path):
    records(BASELINE, 0, [0.50, 0.52, 0.54])
    records(CHEAPER, 0, [0.55, 0.56, 0.57])
    path = tmp_path / f"{CHEAPER}-0.json"
    kept = json.loads(path.read_text())
    kept |= {"seconds": 2700, "collapsed": {"cola": 2}, "validation_loss": 4.5}
    kept["scores"]["cola"] = [0.0, 0.0, 0.1]
    path.write_text(json.dumps(kept))
    found = read_records(tmp_path)
    facts = blocks(found)["facts"]
    assert "`early-15` 5.000; `late-40` 4.500." in facts
    assert "`early-15` none; `late-40` 2 of 3 on CoLA." in facts
    assert "Mean without CoLA: `early-15` 52.0 (50.0–54.0); `late-40` 56.0 (55.0–57.0)." in facts
    assert "FLOPs 0.72, or 0.76 if the last layer of both worked at every position" in facts
    assert "in pairs as they ran: 0.75." in facts
    assert summary(found)["the_same_without_pruning"] == pytest.approx(0.76, abs=5e-3)


def test_the_constant_answer_stands_below_the_scores(records, tmp_path):
    records(BASELINE, 0, [0.50, 0.52, 0.54])
    path = tmp_path / f"{BASELINE}-0.json"
    constant = dict(zip(TASKS, (0.5, 0.4, 0.3, 0.7, 0.0, 0.0, 0.5, 0.6), strict=True))
    path.write_text(json.dumps({**json.loads(path.read_text()), "constant": constant}))
    last = blocks(read_records(tmp_path))["scores"].splitlines()[-1]
    assert last.startswith("| always the same answer | – | – | – | 37.5 | 50.0 | 40.0 | 30.0 | 70.0 | 0.0 |")


def test_short_runs_are_told_apart_by_what_is_masked_and_where_it_joins(records, tmp_path):
    records("short-late-50-20", 0, [])
    shown = blocks(read_records(tmp_path))["short"].splitlines()
    assert any(row.startswith("| late | `inside` 2 | 50% to 20% | – |") and row.endswith("5.000 |") for row in shown)
    assert "| late | `inside` 2 | 30% | 30% | – | – |" in shown
    assert "| early | – | 40% | – | – | – |" in shown
    assert len(set(shown)) == len(shown)


def test_the_study_is_said_and_drawn_as_compare_does(records, tmp_path):
    records(BASELINE, 0, [0.50, 0.52, 0.54])
    records(CHEAPER, 0, [0.55, 0.56, 0.57])
    found = read_records(tmp_path)
    said = blocks(found)["verdict"]
    assert "late-40 reaches the median of early-15 (52.0; 50.0 to 54.0, n = 3 from 1 pre-training run)" in said
    assert "the ranges do not overlap" in said
    assert (
        "late-40 reaches the last validation loss of early-15 (5.000): it ends at 5.000 with 72% of its FLOPs" in said
    )
    quality_summary.draw(found, tmp_path / "figures")
    assert "late-40" in (tmp_path / "figures" / "scores.svg").read_text()
    for name in ("scores", "tasks", "loss-end"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_control_is_finetuned_like_the_others_and_shown_beside_them(records, tmp_path):
    study = quality.Study(tmp_path, tmp_path / "work", tmp_path)
    jobs = quality.jobs_of(study, CONTROL, 0)
    assert [job.what for job in jobs] == list(TASKS)
    assert jobs[0].words[:4] == ["glue", "random:mini-base", "--tokenizer", str(study.data)]
    trained = quality._finetuning(study, replace(CONTROL, share=1.0), "some-0", TASKS[0])
    assert jobs[0].words[8:] == trained.words[6:]  # apart from the encoder and where the results go
    rates = {job.words[job.words.index("--lrs") + 1] for job in jobs}
    assert rates == {"0.0003"}
    assert {arm.learning_rate for arm in MAIN} == {1e-3}
    for task in TASKS:
        write_scores(study, f"{CONTROL.name}-0", task, [0.4, 0.41, 0.42])
    quality.write_record(study, CONTROL, 0)
    records(BASELINE, 0, [0.50, 0.52, 0.54])
    records(CHEAPER, 0, [0.55, 0.56, 0.57])
    found = read_records(tmp_path)
    made = blocks(found)
    assert "| never trained | 0.00 | – | 41.0 (40.0–42.0) | -11.0 | – |" in made["headline"]
    assert "| `untrained` | 0.00 | – | – | 41.0 (40.0–42.0) |" in made["scores"]
    assert (
        "Never trained, random:mini-base has 41.0 (40.0 to 42.0, n = 3); above all of that: early-15" in made["verdict"]
    )
    assert summary(found)["arms"][CONTROL.name]["validation_loss"] is None


def test_the_documents_show_what_the_records_say():
    made = blocks(read_records())
    for path in DOCUMENTS:
        assert path.read_text("utf-8") == up_to_date(path.read_text("utf-8"), made), "quality.py --summarise --write"


def test_only_the_block_of_a_document_is_replaced():
    text = "before\n<!-- study: runs -->\nold\n<!-- study: end -->\nafter\n<!-- study: short -->\n<!-- study: end -->\n"
    new = up_to_date(text, {"runs": "new", "short": "other"})
    assert new.startswith(
        "before\n<!-- study: runs -->\nnew\n<!-- study: end -->\nafter\n<!-- study: short -->\nother\n"
    )
    with pytest.raises(KeyError):
        up_to_date(text, {"runs": "new"})


def test_the_committed_records_belong_to_the_arms():
    for path in (Path(quality.__file__).parent / "quality").glob("*.json"):
        kept = json.loads(path.read_text())
        arm = next(arm for arm in ARMS if arm.name == kept["arm"]["name"])
        assert Arm(**{**kept["arm"], "tasks": tuple(kept["arm"]["tasks"])}) == arm, path.name
        assert set(kept["scores"]) == set(arm.tasks)


def test_every_arm_is_a_recipe_that_runs_and_names_are_unique():
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    for arm in (arm for arm in ARMS if arm is not CONTROL):
        recipe = spelled_out(load_recipe("mini-base", nested(arm.keys)), quality.VOCABULARY)
        a_step = recipe.train.batch_size * sequence_flops(recipe).training
        assert arm.share * quality.UNIT > 500 * a_step


@pytest.mark.parametrize(
    ("name", "rows"), [("train.tsv", 3000), ("dev.tsv", 1000), ("dev_matched.tsv", 1000), ("test.tsv", 4000)]
)
def test_rows_are_drawn_once_and_for_ever(tmp_path, name, rows):
    file = tmp_path / "glue" / "QNLI" / name
    file.parent.mkdir(parents=True)
    file.write_text("header\n" + "".join(f"row {n}\n" for n in range(4000)))
    for copy in ("one", "two"):
        quality._copy_rows(file, tmp_path / copy / name)
    one, two = ((tmp_path / copy / name).read_text() for copy in ("one", "two"))
    assert one == two
    assert one.startswith("header\nrow ")
    assert len(set(one.splitlines())) == 1 + rows


def test_a_run_is_pretrained_then_finetuned_task_by_task_then_done(tmp_path):
    study = quality.Study(tmp_path, tmp_path / "work", tmp_path / "records")
    arm = Arm("some", {"mask.rate": 0.3}, share=0.5, tasks=("sst2", "rte"))
    (first,) = quality.jobs_of(study, arm, 1)
    assert first.words[:2] == ["pretrain", "mini-base"]
    assert first.words[-6:] == ["--mask.rate", "0.3", "--seed", "1", "--budget.flops", str(0.5 * quality.UNIT)]
    assert "--resume" not in first.words
    run = study.run("some-1")
    run.path.mkdir(parents=True)
    run.recipe_file.write_text("{}")
    run.update(status="running")
    assert "--resume" in quality.jobs_of(study, arm, 1)[0].words
    run.update(status="finished")
    assert [job.name for job in quality.jobs_of(study, arm, 1)] == ["some-1 sst2", "some-1 rte"]
    write_scores(study, "some-1", "sst2", [0.7, 0.8])
    assert [job.name for job in quality.jobs_of(study, arm, 1)] == ["some-1 sst2", "some-1 rte"]  # one seed is missing
    write_scores(study, "some-1", "sst2", [0.7, 0.8, 0.9])
    assert [job.name for job in quality.jobs_of(study, arm, 1)] == ["some-1 rte"]
    write_scores(study, "some-1", "rte", [0.5, 0.5, 0.5])
    assert quality.jobs_of(study, arm, 1) == []


def test_a_run_with_a_record_is_not_run_again(tmp_path):
    study, arm = quality.Study(tmp_path, tmp_path / "work", tmp_path), Arm("some", {})
    assert quality.jobs_of(study, arm, 0)
    study.record("some-0").write_text("{}")
    assert quality.jobs_of(study, arm, 0) == []


def write_scores(study: quality.Study, run: str, task: str, scores: list[float]) -> None:
    results = Results(study.results(run, task), Protocol())
    results.encoders["e"] = {"name": "e", "identity": "e", "random": False}
    constant = {"score": 0.5, "metrics": {}}
    results.tasks[task] = {"name": task, "identity": "t", "part": "part", "constant": constant}
    results.tasks[task] |= {"headline": ["accuracy"], "cut": {}}
    results.trials = [Trial("e", task, 3e-4, seed, score, {}, 2, False) for seed, score in enumerate(scores)]
    results.write()


def test_a_record_is_written_once_and_names_every_commit_that_worked_on_it(tmp_path, monkeypatch):
    study = quality.Study(tmp_path, tmp_path / "work", tmp_path / "records")
    arm = Arm("some", {}, tasks=("sst2", "rte"))
    for commit in ("aaaaaaa", "aaaaaaa", "bbbbbbb"):
        monkeypatch.setattr(quality, "_commit", lambda commit=commit: commit)
        study.note_commit("some-0")
    run = study.run("some-0")
    run.path.mkdir(parents=True)
    run.recipe_file.write_text("{}")
    run.metrics_file.write_text('{"step": 5, "eval_loss": 5.0, "seconds": 9.0}\n')
    quality.write_record(study, arm, 0)
    assert not (tmp_path / "records" / "some-0.json").exists()  # it is not finished
    monkeypatch.setattr(quality, "validation_loss", lambda study, run: 4.5)
    run.update(
        status="finished", data={"fingerprint": {}}, steps=5, tokens=50, flops=500.0, precision=["bf16"], versions={}
    )
    write_scores(study, "some-0", "sst2", [0.7, 0.8, 0.9])
    quality.write_record(study, arm, 0)
    assert not study.record("some-0").exists()  # a task is missing
    write_scores(study, "some-0", "rte", [0.5, 0.6, 0.4])
    quality.write_record(study, arm, 0)
    kept = (tmp_path / "records" / "some-0.json").read_text()
    assert json.loads(kept)["commit"] == "aaaaaaa, bbbbbbb"
    assert json.loads(kept)["validation_loss"] == 4.5
    assert json.loads(kept)["scores"] == {"sst2": [0.7, 0.8, 0.9], "rte": [0.5, 0.6, 0.4]}
    run.update(steps=6)
    quality.write_record(study, arm, 0)
    assert (tmp_path / "records" / "some-0.json").read_text() == kept


def test_the_validation_loss_of_a_record_is_that_of_the_run(data, tmp_path):
    study = quality.Study(tmp_path, tmp_path)
    study.data.symlink_to(data.folder)
    recipe = tiny_recipe(budget=BudgetRecipe(steps=2))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    assert quality.validation_loss(study, run) == pytest.approx(run.metrics()[-1]["eval_loss"], rel=1e-3)


def test_runs_are_chosen_by_the_name_of_their_arm_or_their_own_and_in_that_order():
    def names(*only: str) -> list[str]:
        return [f"{arm.name}-{seed}" for arm, seed in quality.wanted_runs(only)]

    assert names(BASELINE) == [f"{BASELINE}-0", f"{BASELINE}-1"]
    assert names(f"{CHEAPER}-1", BASELINE) == [f"{CHEAPER}-1", f"{BASELINE}-0", f"{BASELINE}-1"]
    assert names(f"{BASELINE}-1", BASELINE) == [f"{BASELINE}-1", f"{BASELINE}-0"]  # each once
    assert len(quality.wanted_runs(None)) == sum(arm.seeds for arm in ARMS)
    with pytest.raises(SystemExit, match="no such arm or run: nothing"):
        names("nothing")
