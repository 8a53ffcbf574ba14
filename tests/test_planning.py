"""`latemask plan`: what a run will cost, before it runs; and backwards."""

import dataclasses
import json
import math

import pytest

from latemask import plan
from latemask.budget.flops import count_weights, planned_steps, sequence_flops
from latemask.cli import main
from latemask.ground.errors import UserError
from latemask.model import complete_recipe
from latemask.recipe import load_recipe, spelled_out
from latemask.text import PreparedData
from latemask.text.tokenizer import DEFAULT_VOCABULARY


def planned(capsys, *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    return next(line for line in lines if line.startswith("latemask:"))


def test_the_parts_add_up_and_stand_beside_mlm(capsys):
    found = planned(capsys, "late-base")
    assert found["encoder_flops"] + found["decoder_flops"] + found["head_flops"] == found["flops_per_sequence"]
    assert found["ratio"] == found["flops_per_sequence"] / found["mlm_flops_per_sequence"]
    assert found["training_flops"] == 125_000 * 256 * found["flops_per_sequence"]
    assert found["ratio"] < found["ratio_without_pruning"]
    assert found["time"] is None  # nobody said where


def test_a_key_of_the_recipe_can_be_changed(capsys):
    assert planned(capsys, "late-base", "--join.layers", "1")["ratio"] < planned(capsys, "late-base")["ratio"]


def test_a_named_device_gives_time_energy_and_co2_with_what_was_assumed(capsys):
    one = planned(capsys, "late-base", "--device", "h100", "--mfu", "0.5", "--co2", "100")["time"]
    assert one["hours"] == pytest.approx(planned(capsys, "late-base")["total_flops"] / (989e12 * 0.5) / 3600)
    assert one["kwh"] == pytest.approx(one["hours"] * 0.7 * 1.2)
    assert one["kg_co2"] == pytest.approx(one["kwh"] * 0.1)
    assert one["assumed"]["watts"] == 700
    eight = planned(capsys, "late-base", "--device", "H100", "--devices", "8", "--mfu", "0.5")["time"]
    assert eight["hours"] == pytest.approx(one["hours"] / 8)
    assert eight["kwh"] == pytest.approx(one["kwh"])


def test_a_run_that_does_not_fit_the_device_says_what_to_lower(capsys):
    words = ("late-large", "--device", "t4", "--train.micro-batch-size")
    assert planned(capsys, *words, "8")["memory_missing_bytes"] is None
    assert planned(capsys, *words, "64")["memory_missing_bytes"] > 1e9
    assert main(["plan", *words, "64"]) == 0
    assert "does not fit" in capsys.readouterr().out


def test_a_device_by_its_peak_has_no_energy_without_watts(capsys):
    found = planned(capsys, "small", "--peak-tflops", "10")["time"]
    assert found["kwh"] is None
    assert planned(capsys, "small", "--peak-tflops", "10", "--watts", "100")["time"]["kwh"] > 0


@pytest.mark.parametrize("budget", [("--hours", "0.2"), ("--kwh", "0.05")], ids=lambda words: words[0])
def test_backwards_a_budget_of_the_machine_becomes_the_most_steps_that_fit(capsys, budget):
    name, most = budget[0][2:], float(budget[1])
    words = ("mini-base", "--device", "t4")
    steps = planned(capsys, *words, *budget)["steps"]
    fitting, more = (planned(capsys, *words, "--max-steps", str(n))["time"][name] for n in (steps, steps + 1))
    assert fitting <= most < more


def test_tokens_and_flops_become_the_steps_that_pretrain_would_take(capsys):
    recipe = spelled_out(load_recipe("mini-base", {"budget": {"flops": 1e14}}), 12544)
    assert planned(capsys, "mini-base", "--flops", "1e14")["steps"] == planned_steps(recipe)
    assert planned(capsys, "mini-base", "--tokens", "1e6")["steps"] == 1_000_000 // (16 * 128)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["mini-base"], "latemask pretrain mini-base --data DATA --max-steps 488"),
        (["mini-base", "--mask.rate", "0.5"], "latemask pretrain RECIPE-AND-ITS-OPTIONS --data DATA --max-steps 488"),
    ],
    ids=["as it is", "changed"],
)
def test_the_page_ends_with_the_command_that_spends_the_budget(capsys, words, command):
    assert main(["plan", *words, "--tokens", "1e6"]) == 0
    assert command in " ".join(capsys.readouterr().out.split())


def test_without_a_recipe_the_largest_that_sees_enough_text_is_named(capsys):
    days = planned(capsys, "--hours", "48", "--device", "h100", "--devices", "8")
    night = planned(capsys, "--hours", "8", "--peak-tflops", "0.2")
    assert days["chosen"] == "late-large"
    assert night["chosen"] in ("mini-base", "small")
    weights = [candidate["tokens_per_weight"] for candidate in days["candidates"]]
    assert weights == sorted(weights, reverse=True)


def test_the_rule_is_kept_to_the_token(capsys):
    """One step less than 20 tokens for each weight of `small` outside its word table, and `mini-base` it is."""
    recipe = spelled_out(load_recipe("small"), DEFAULT_VOCABULARY)
    batch = recipe.train.batch_size * recipe.length
    steps = math.ceil(20 * count_weights(recipe).layers / batch)
    assert planned(capsys, "--tokens", str(steps * batch))["chosen"] == "small"
    assert planned(capsys, "--tokens", str((steps - 1) * batch))["chosen"] == "mini-base"


def test_a_budget_too_small_for_any_recipe_says_so(capsys):
    assert main(["plan", "--tokens", "1e6"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "at least 20 tokens for each weight" in shown
    assert "'mini-base' is the smallest, and will be trained short" in shown


def test_the_data_says_the_vocabulary_and_how_often_it_is_seen(capsys, data):
    found = planned(capsys, "small", "--data", str(data.folder), "--tokens", "1e6")
    assert found["recipe"]["encoder"]["vocab_size"] == data.vocabulary.size
    assert found["passes_over_data"] == pytest.approx(found["tokens"] / data.tokens("train"))


def test_the_page_shows_every_part(capsys):
    assert main(["plan", "late-base", "--device", "a100"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "weights",
        "encoder",
        "decoder",
        "head",
        "optimizer",
        "activations",
        "time",
        "energy",
        "CO2",
        "assumed",
    ):
        assert part in shown
    assert "\n" + "Traceback" not in shown


def test_the_table_marks_what_costs_more_than_the_paper(capsys):
    assert main(["plan", "--table"]) == 0
    shown = capsys.readouterr().out
    assert "base: 12 x 768, layers only; the paper's 3ML: 0.78" in shown
    assert "large: 24 x 1024, layers only; the paper's 3ML: 0.68" in shown
    rows = [line.split()[3:] for line in shown.splitlines() if line.strip().startswith("self, 3 layers")]
    with_head, layers_only, *_ = rows
    assert len(rows) == 4
    assert with_head == ["0.89", "0.84", "0.94", "0.67", "0.60"]  # the paper's number is none of these
    assert layers_only == ["0.78+", "0.69", "0.79+", "0.54", "0.52"]
    assert "3ml-self-base 0.74, 3ml-cross-base 0.79, 3ml-self-large 0.67, 3ml-cross-large 0.69" in shown


def test_the_table_is_drawn(capsys, tmp_path):
    for name in ("costs.png", "costs.svg"):
        assert main(["plan", "--plot", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mini-base", "--hours", "1", "--kwh", "2"], "--hours and --kwh are 2 budgets; give one"),
        (["mini-base", "--hours", "1"], "--hours needs a speed: add --calibrate"),
        (["mini-base", "--hours", "-1", "--device", "a100"], "--hours is -1; a budget must be positive"),
        (["mini-base", "--hours", "1e-9", "--device", "t4"], "does not pay for one step"),
        (["mini-base", "--tokens", "100"], "does not pay for one step"),
        (["mini-base", "--hours", "1e9", "--device", "b200"], "steps; 1,000,000,000 at most"),
        (["mini-base", "--kwh", "1", "--peak-tflops", "10"], "add --watts"),
        (["mini-base", "--calibrate", "--device", "a100"], "--calibrate measures this machine"),
        (["mini-base", "--calibrate", "--mfu", "0.5"], "leave out --mfu"),
        (["mini-base", "--mfu", "0.5"], "--mfu says nothing without"),
        (["mini-base", "--mfu", "40", "--device", "a100"], "it is a share of the peak"),
        (["mini-base", "--pue", "0.5", "--device", "a100"], "1 or more"),
        (["mini-base", "--device", "h10"], "unknown device 'h10' (did you mean 'h100'?)"),
        (["mini-base", "--device", "a100", "--devices", "64"], "less than one row for each of 64 processes"),
        (["mini-base", "--device", "a100", "--devices", "3"], "does not split into 3 process(es)"),
        (["--tokens", "1e9", "--device", "h100", "--devices", "7"], "does not split into 7 process(es)"),
        (
            ["mini-base", "--max-steps", "1000000001"],
            "steps is 1000000001; it must be between 1 and 1,000,000,000",
        ),
        (["mini-base", "--encoder.layers", "1" + "0" * 400], "it must be between 1 and 10,000"),
        (["mini-base", "--peak-tflops", "1e308"], "--peak-tflops is 1e+308; it must be positive, between"),
        (["mini-base", "--device", "a100", "--watts", "inf"], "--watts is inf; it must be positive"),
        (["mini-base", "--device", "a100", "--train.precision", "fp32"], "give the peak in that with --peak-tflops"),
        (["mini-base", "--hours=", "--device", "a100"], "hours must be float or null, not ''"),
        (["mini-base", "--mask", "5"], "unknown option '--mask' (did you mean '--mask.rate'?)"),
        (["mini-base", "--encoder.heads", "5"], "encoder.heads 5 does not divide"),
        (["mini-base", "--data", "nowhere"], "nowhere: no such folder"),
        (["minibase"], "did you mean 'mini-base'?"),
        (["--mask.rate", "0.5", "--tokens", "1e9"], "--mask.rate changes a recipe, and none was given"),
        (["--max-steps", "5"], "--max-steps says nothing without a recipe"),
        (["mini-base", "--table"], "leave out the recipe"),
        (["--table", "--device", "a100"], "leave out the recipe"),
        (["--plot", "costs.pgf"], "the name must end in one of .png, .svg, .pdf"),
        (["--plot", "costs.doc"], "the name must end in one of"),
        ([], "say what to plan"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line(capsys, words, message):
    assert message in refused(capsys, *words)


def test_from_python_it_returns_the_plan():
    found = plan("mini-base", tokens=1e6)
    assert found.steps == 488
    with pytest.raises(UserError, match="2 budgets"):
        plan("mini-base", tokens=1e6, flops=1e12)


def test_it_says_how_long_a_start_from_the_corpus_takes(capsys, data):
    words = ("small", "--data", str(data.folder))
    assert main(["plan", *words]) == 0
    assert "Start: corpus, counted in the data before the first step, once: about 1 s" in capsys.readouterr().out
    assert 0 < planned(capsys, *words)["counting_seconds"] < 1
    assert planned(capsys, *words, "--encoder.start", "random")["counting_seconds"] is None


def test_a_recipe_that_the_data_does_not_fit_is_not_chosen(capsys, data, monkeypatch):
    """mini-base has room for 12,544 pieces."""
    assert planned(capsys, "--tokens", "1e6", "--data", str(data.folder))["chosen"] == "mini-base"
    many = dataclasses.replace(data.vocabulary, size=12545)
    monkeypatch.setattr(PreparedData, "vocabulary", property(lambda self: many))
    assert planned(capsys, "--tokens", "1e6", "--data", str(data.folder))["chosen"] == "small"


def test_the_recorded_recipe_has_the_budget_that_was_planned(capsys):
    found = planned(capsys, "mini-base", "--hours", "1", "--device", "t4")
    assert found["recipe"]["budget"] == {"steps": found["steps"], "tokens": None, "flops": None}


def test_validation_costs_what_the_data_has_to_validate_on(capsys, data):
    words = ("small", "--data", str(data.folder), "--max-steps", "1", "--train.eval-rows")
    rows = len(data.rows("validation", load_recipe("small").length))
    has, asks_for_more = (planned(capsys, *words, str(n))["validation_flops"] for n in (rows, rows + 1000))
    assert has == asks_for_more > 0
    as_validated = complete_recipe(load_recipe("small", {"mask": {"rate": 0.15}}), data.vocabulary)
    assert has == pytest.approx(rows * sequence_flops(as_validated).forward)  # whatever the run's own rate


def test_fp32_halves_nothing(capsys):
    """With a peak that the user gives, precision decides what the activations take."""
    words = ("small", "--peak-tflops", "10", "--train.precision")
    fp32, bf16 = (planned(capsys, *words, kind)["memory_bytes"]["activations"] for kind in ("fp32", "bf16"))
    assert fp32 == 2 * bf16


def test_a_narrow_or_ascii_terminal_loses_no_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert main(["plan", "small", "--device", "a100"]) == 0
    shown = capsys.readouterr().out
    assert "activations" in shown
    assert shown.isascii() or not set("–…") & set(shown)


def test_a_picture_is_not_overwritten_unasked(tmp_path, capsys):
    picture = tmp_path / "costs.png"
    picture.write_bytes(b"mine")
    assert "is there already" in refused(capsys, "--plot", str(picture))
    assert picture.read_bytes() == b"mine"
    assert main(["plan", "--plot", str(picture), "--overwrite"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_grid_without_carbon_is_a_grid(capsys):
    assert planned(capsys, "small", "--device", "a100", "--co2", "0")["time"]["kg_co2"] == 0


def test_it_says_the_shape_of_masks_and_refuses_one_that_the_data_do_not_have(capsys, data):
    words = ("mini-base", "--mask.pattern", "span", "--mask.rate-end", "0.2", "--mask.rate-schedule", "cosine")
    assert main(["plan", *words, "--max-steps", "10", "--data", str(data.folder)]) == 0
    assert "to 20% (cosine) masked by span" in capsys.readouterr().out
    missing = ("mini-base", "--mask.pattern", "pmi", "--max-steps", "10", "--data", str(data.folder))
    assert "mask.pattern pmi needs units of words" in refused(capsys, *missing)
