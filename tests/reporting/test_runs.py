"""Run folders as a page shows them."""

import json
import random
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from latemask.budget.flops import sequence_flops
from latemask.ground.errors import UserError
from latemask.recipe import MaskRecipe, dump_recipe, load_recipe
from latemask.reporting.comparing import _time
from latemask.reporting.runs import common_ground, read_run, read_runs, recipe_differences, short_names
from latemask.run_folder import RunFolder
from latemask.sweeping import nested
from tests.reporting.conftest import STEPS


@pytest.fixture
def copied(runs, tmp_path):
    """A run whose files a test may change."""
    return shutil.copytree(runs.late, tmp_path / "copied")


def test_a_run_is_read_with_its_losses_and_its_cost(runs):
    run = read_run(runs.late)
    assert run.name == "late"
    assert (run.done, run.steps, run.is_finished) == (STEPS, STEPS, True)
    assert run.tokens == STEPS * 8 * 32
    assert run.flops == STEPS * 8 * sequence_flops(run.recipe).training
    assert run.flops == pytest.approx(run.rows[-1]["flops"])
    assert len(run.points("loss")) == STEPS
    assert [row["step"] for row in run.points("eval_loss")] == [2, 4, 6]
    assert run.last_validation == run.points("eval_loss")[-1]["eval_loss"]
    assert run.problems == []
    assert run.seconds_left is None


def test_the_split_is_measured_against_mlm_at_15_per_cent(runs):
    fifteen, late = read_run(runs.fifteen), read_run(runs.late)
    assert sum(fifteen.split.values()) == pytest.approx(1)
    assert late.split["encoder"] < fifteen.split["encoder"]
    assert late.split["head"] > fifteen.split["head"]


def test_methods_in_words(runs):
    late = read_run(runs.late)
    assert late.method == "late 40% inside 2"
    assert read_run(runs.early).method == "early 40%"
    falling = replace(late, recipe=replace(late.recipe, mask=MaskRecipe(rate=0.5, rate_end=0.2)))
    assert falling.method == "late 50% to 20% inside 2"
    shaped = MaskRecipe("span", rate=0.5, rate_end=0.2, rate_schedule="cosine")
    assert replace(late, recipe=replace(late.recipe, mask=shaped)).method == "late 50% to 20% inside 2 cosine span"
    assert replace(late, recipe=replace(late.recipe, mask=MaskRecipe(rate=0.3, drop=0.25))).method == (
        "late 30% drop 25% inside 2"
    )


@pytest.mark.parametrize(
    ("recipe", "kept"), [({}, []), ({"mask.rate": 0.15, "mask.drop": 0.1}, []), ({"mask.rate": 0.15}, [2, 4, 6])]
)
def test_validations_of_an_earlier_latemask_count_only_if_they_had_the_same_masks(copied, recipe, kept):
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    older = [{name: value for name, value in line.items() if name != "eval_masked"} for line in lines]
    assert older != lines
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in older))
    file = copied / "recipe.yaml"
    file.write_text(dump_recipe(load_recipe(file, nested(recipe))))
    run = read_run(copied)
    assert [row["step"] for row in run.points("eval_loss")] == kept
    left_out = "3 validations of an earlier latemask, with the run's own masks, were left out"
    assert (left_out in run.problems) == (not kept)
    assert len(run.points("loss")) == 6


def test_a_finished_run_has_done_all_its_steps_whatever_was_logged(copied):
    whole = read_run(copied)
    (copied / "metrics.jsonl").unlink()
    run = read_run(copied)
    assert (run.done, run.flops, run.tokens) == (STEPS, whole.flops, whole.tokens)
    assert run.problems == [f"{copied / 'metrics.jsonl'} is missing or empty: there are no losses to show"]


def test_an_unfinished_run_says_how_far_it_is_and_how_long_it_will_take(copied):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "running"}))
    lines = (copied / "metrics.jsonl").read_text().splitlines()
    half = [line for line in lines if json.loads(line)["step"] <= 3]
    (copied / "metrics.jsonl").write_text("\n".join([*half, half[-1][:10]]))  # the last line is being written
    with RunFolder(copied).held():
        run = read_run(copied)
    assert run.done == 3
    assert run.problems == ["not finished (running): step 3 of 6, so its last numbers are not its end"]
    assert run.seconds_left > 0
    assert run.last_validation is None  # none at step 3


def test_a_run_that_was_killed_does_not_run_and_has_no_time_left(copied):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "running"}))
    run = read_run(copied)
    assert run.status == "interrupted"
    assert run.seconds_left is None
    assert run.problems[0].startswith("not finished (interrupted)")


def test_a_log_that_lacks_its_end_is_said_and_no_speed_is_made_up(copied):
    whole = read_run(copied)
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 3))
    run = read_run(copied)
    assert run.problems == ["its log ends at step 3: losses, time and speed are those up to there"]
    assert run.tokens_a_second == pytest.approx(whole.place(run.rows[-1], "tokens") / run.rows[-1]["seconds"])


def test_losses_that_are_no_numbers_are_counted(copied):
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    strange = {1: float("nan"), 2: 10**400}
    broken = [{**line, "loss": strange.get(line["step"], 1.0)} if "loss" in line else line for line in lines]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in broken))
    run = read_run(copied)
    assert run.problems == ["2 of its losses are no numbers, and not shown"]
    assert [row["step"] for row in run.points("loss")] == [3, 4, 5, 6]


def test_damage_in_the_middle_of_a_log_is_damage_also_while_it_runs(copied):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "stopped"}))
    first, second, *rest = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join([first, second[:9] + "\n", *rest]))
    assert "1 damaged log lines were left out" in read_run(copied).problems


def test_a_run_that_does_not_say_its_data_is_compared_with_nobody(runs, copied):
    record = json.loads((copied / "run.json").read_text())
    del record["data"]["fingerprint"]
    (copied / "run.json").write_text(json.dumps(record))
    unknown = read_run(copied)
    assert any("does not say what data it had" in problem for problem in unknown.problems)
    late = read_run(runs.late)
    assert late.validated_on != unknown.validated_on
    assert common_ground([late, unknown]) == []


def test_a_run_that_has_not_logged_anything_yet(copied):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "running"}))
    (copied / "metrics.jsonl").unlink()
    run = read_run(copied)
    assert (run.done, run.flops, run.seconds, run.last_validation) == (0, 0, 0, None)
    assert "no log lines yet" in run.problems


def test_damage_and_changes_are_said(copied):
    metrics = copied / "metrics.jsonl"
    metrics.write_text("what is this?\n" + metrics.read_text())
    record = json.loads((copied / "run.json").read_text())
    record |= {"changes": [["mask.rate: 0.3 -> 0.4"]], "left_out_batches": [3]}
    (copied / "run.json").write_text(json.dumps(record))
    said = " ".join(read_run(copied).problems)
    assert "1 damaged log lines" in said
    assert "changed while it ran: mask.rate: 0.3 -> 0.4" in said
    assert "1 batches were left out" in said


def test_a_run_that_goes_on_from_an_encoder_says_that_this_was_not_counted(runs):
    run = read_run(runs.late)
    again = replace(run, recipe=replace(run.recipe, encoder=replace(run.recipe.encoder, init="some/encoder")))
    assert again.problems == ["starts from some/encoder: what was spent on that before is not counted"]


def test_what_is_no_run_is_named_and_the_others_are_read(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    found, problems = read_runs([runs.late, tmp_path / "empty", tmp_path / "nowhere"])
    assert [run.name for run in found] == ["late"]
    assert ["not a latemask run" in problems[0], "no such folder" in problems[1]] == [True, True]
    (tmp_path / "file").write_text("")
    assert read_runs([tmp_path / "file"])[1] == [f"left out: {tmp_path / 'file'} is a file, not a run folder"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"data": 3}', '{"data": []}', '{"data": ""}'])
def test_a_damaged_run_json_is_named(copied, content):
    (copied / "run.json").write_text(content)
    with pytest.raises(UserError, match="run\\.json"):
        read_run(copied)


def test_whatever_is_done_to_its_files_a_run_is_read_or_refused_in_words(copied):
    chance, files = random.Random(0), [copied / name for name in ("run.json", "metrics.jsonl", "recipe.yaml")]
    contents = {file: file.read_bytes() for file in files}
    outcomes = Counter()
    for _ in range(300):
        file = chance.choice(files)
        content = bytearray(contents[file])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(content))
            content[place : place + chance.randrange(30)] = chance.choice(
                [b"", b"null", b"[]", b"NaN", b"1e999", b'"x"', b"\xff"]
            )
        file.write_bytes(content)
        try:
            run = read_run(copied)
            str([run.problems, run.flops, run.seconds_left, run.last_validation, run.split, _time(run.seconds)])
            outcomes["read"] += 1
        except UserError:
            outcomes["refused"] += 1
        file.write_bytes(contents[file])
    assert min(outcomes["read"], outcomes["refused"]) > 50


def test_a_recipe_that_cannot_be_counted_is_refused(copied):
    recipe = yaml.safe_load((copied / "recipe.yaml").read_text())
    recipe["encoder"]["vocab_size"] = None
    (copied / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    record = json.loads((copied / "run.json").read_text())
    del record["data"]["vocabulary"]
    (copied / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"encoder\.vocab_size"):
        read_run(copied)


def test_names_are_as_short_as_can_be(tmp_path):
    assert short_names([tmp_path / "a" / "x", tmp_path / "a" / "y"]) == ["x", "y"]
    assert short_names([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]
    assert short_names([tmp_path / "\x1b[31m"]) == ["\\x1b[31m"]
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for again in (tmp_path / "run", tmp_path / "a" / ".." / "run", tmp_path / "link"):
        with pytest.raises(UserError, match="twice"):
            short_names([tmp_path / "run", again])


def test_what_differs_between_recipes(runs):
    found = recipe_differences([read_run(path) for path in runs.all])
    assert found == {"objective": ["late", "early", "early"], "mask.rate": ["0.4", "0.4", "0.15"]}


def test_runs_on_other_data_or_with_another_tokenizer_are_not_comparable(runs, copied):
    record = json.loads((copied / "run.json").read_text())
    files = record["data"]["fingerprint"]
    assert any(name.endswith("tokenizer.json") for name in files)
    shards = {name: checksum if name.endswith("tokenizer.json") else "0" for name, checksum in files.items()}
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("seed: 0", "seed: 1"))
    for fingerprint, expected in ((files, []), (shards, ["data"]), (dict.fromkeys(files, "0"), ["data", "tokenizers"])):
        record["data"]["fingerprint"] = fingerprint
        (copied / "run.json").write_text(json.dumps(record))
        said = common_ground([read_run(runs.late), read_run(copied)])
        assert [f"different {what}," in line for what, line in zip(expected, said, strict=True)] == [True] * len(said)
        assert all("late / copied" in line for line in said)
