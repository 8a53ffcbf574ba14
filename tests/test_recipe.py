"""Recipes: YAML in and out, overrides, and what cannot run is refused with its key."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from latemask.ground.errors import UserError
from latemask.recipe import (
    BudgetRecipe,
    EncoderRecipe,
    MaskCounts,
    MaskRecipe,
    Recipe,
    batch_split,
    bundled_recipes,
    check_recipe,
    differences,
    dump_recipe,
    load_recipe,
)
from tests.conftest import tiny_recipe


def recipe_file(tmp_path, text: str):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return path


def test_a_recipe_survives_yaml(tmp_path):
    recipe = load_recipe("late-base", {"mask": {"rate": 0.3, "drop": 0.25}})
    assert load_recipe(recipe_file(tmp_path, dump_recipe(recipe))) == recipe


def test_overrides_win_and_the_rest_stays(tmp_path):
    path = recipe_file(tmp_path, "length: 64\nmask: {rate: 0.3, drop: 0.1}\n")
    recipe = load_recipe(path, {"mask": {"rate": 0.5}})
    assert (recipe.length, recipe.mask.rate, recipe.mask.drop) == (64, 0.5, 0.1)


def test_an_override_of_the_budget_replaces_it(tmp_path):
    path = recipe_file(tmp_path, "budget: {tokens: 1000000}\n")
    assert load_recipe(path, {"budget": {"steps": 7}}).budget == BudgetRecipe(steps=7)


def test_random_and_keep_together_never_exceed_what_is_predicted():
    counts = MaskCounts.of(MaskRecipe(rate=0.4, random=0.5, keep=0.5), 128)
    assert counts.masked == 0
    assert counts.corrupted == counts.predicted == 51


def test_an_empty_recipe_is_all_defaults(tmp_path):
    assert load_recipe(recipe_file(tmp_path, "")) == Recipe()


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_loads_and_has_a_budget(name):
    recipe = load_recipe(name)
    check_recipe(recipe)
    assert (recipe.budget.steps or recipe.budget.tokens or recipe.budget.flops) is not None


def test_the_recipes_that_were_promised_are_there():
    promised = {
        "demo",
        "small",
        "late-base",
        "late-large",
        "3ml-self-base",
        "3ml-self-large",
        "3ml-cross-base",
        "3ml-cross-large",
        "mae-lm-base",
        "mini-mae-lm",
        "mlm-base",
        "mlm-large",
        "mini-base",
        "mini-base-early",
    }
    assert promised <= set(bundled_recipes())


@pytest.mark.parametrize(("former", "name"), [("3ml-base", "late-base"), ("3ml-large", "late-large")])
def test_a_former_name_still_opens_and_says_what_it_is_called_now(former, name, capsys):
    assert load_recipe(former, {"mask": {"rate": 0.3}}) == load_recipe(name, {"mask": {"rate": 0.3}})
    assert capsys.readouterr().err == f"the recipe {former} is now called {name}\n"
    assert former not in bundled_recipes()


def test_a_file_of_ones_own_may_have_a_former_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3ml-base").write_text("length: 64")
    assert load_recipe("3ml-base").length == 64
    assert not capsys.readouterr().err


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("kind", ["self", "cross"])
def test_the_papers_recipes_are_ours_in_its_shape(kind, size):
    paper, ours = load_recipe(f"3ml-{kind}-{size}"), load_recipe(f"late-{size}")
    changed = {line.split(":")[0] for line in differences(ours, paper)}
    assert changed == {"mask.random", "mask.keep", "join.kind", "join.positions"}
    assert (paper.mask.rate, paper.mask.random, paper.mask.keep) == (0.5, 0.1, 0.1)
    assert (paper.options.kind, paper.options.layers, paper.options.positions) == (kind, 2, "absolute")


def test_mini_base_and_its_early_form_differ_in_the_masks_only():
    changed = {line.split(":")[0] for line in differences(load_recipe("mini-base"), load_recipe("mini-base-early"))}
    assert {key for key in changed if not key.startswith("join.")} == {"objective", "mask.rate"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mask: {rat: 0.4}", r"unknown key 'mask\.rat' \(did you mean 'mask\.rate'\?\)"),
        ("lenght: 64", r"unknown key 'lenght' \(did you mean 'length'\?\)"),
        ("length: long", "length must be int, not 'long'"),
        ("encoder: {ffn_width: wide}", "encoder.ffn_width must be int or null"),
        ("objective: later", "unknown objective 'later' \\(did you mean 'late'\\?\\)"),
        ("objective: [1]", "objective must be str, not '.1.'"),
        ("objective: {late: 1}", "objective must be str"),
        ("join: {kind: outside}", "join.kind must be one of 'inside', 'self', 'cross', 'cross-only', not 'outside'"),
        ("join: {kinds: self}", r"unknown key 'join.kinds' \(did you mean 'join.kind'\?\)"),
        ("options: {kind: self}", "unknown key 'options'"),
        ("mask: {pattern: stripes}", "unknown masking pattern 'stripes'"),
        ("train: {optimizer: adam}", r"unknown optimizer 'adam' \(did you mean 'adamw'\?\)"),
        ("train: {schedule: 3}", "train.schedule must be str, not '3'"),
        ("mask: 0.4", "'mask' must be a mapping"),
        ("[1, 2]", "must be a mapping"),
        ("mask: {", "is not a YAML recipe"),
        ("mask: !!python/object/apply:os.system ['true']", "is not a YAML recipe"),
        ("mask: {rate: 1.5}", "mask.rate is 1.5"),
        ("mask: {rate: 0}", "mask.rate is 0"),
        ("mask: {rate: .nan}", "mask.rate is nan"),
        ("mask: {rate: 0.99}", "leaves nothing visible in a row of 128"),
        ("mask: {rate: 0.5, drop: 0.49}", "leaves nothing visible"),
        ("mask: {rate_end: 0}", "mask.rate_end is 0"),
        ("mask: {rate_end: 0.99}", "mask.rate 0.99 \\+ mask.drop 0.0 leaves nothing visible"),
        ("mask: {rate_end: 0.2, rate_schedule: steps}", "must be one of 'linear', 'cosine', 'step', not 'steps'"),
        (
            "mask: {rate_schedule: cosine}",
            "mask.rate_schedule cosine says how the rate goes to mask.rate_end; give that",
        ),
        ("mask: {rate: 0.001}", "predicts nothing in a row of 128"),
        ("mask: {random: 0.5, keep: 0.5}", "leave no position masked"),
        ("encoder: {width: 100, heads: 3}", "encoder.heads 3 does not divide encoder.width 100"),
        ("encoder: {layers: 0}", "encoder.layers is 0"),
        ("encoder: {init_std: 0}", "encoder.init_std is 0"),
        ("encoder: {rotary_base: 1}", "encoder.rotary_base is 1"),
        ("encoder: {rotary_base: .inf}", "encoder.rotary_base is inf"),
        ("encoder: {max_length: 64}", "shorter than length 128"),
        ("join: {layers: 13}", "join.layers 13 is more than encoder.layers 12"),
        ("join: {kind: self, two_way: true}", "join.two_way is for"),
        ("train: {learning_rate: -1}", "train.learning_rate is -1"),
        ("train: {learning_rate: 5}", r"train.learning_rate is 5.0; it must be in \(0, 1\]"),
        ("train: {warmup: 1.5}", "train.warmup is 1.5; below 1 it is a share of the steps, from 1 on a whole number"),
        ("train: {decay: 0}", "train.decay is 0"),
        ("{train: {compile: true}, mask: {rate_end: 0.2}}", "train.compile needs shapes that stay the same"),
        ("train: {compile: true, sharded: true}", "train.compile and train.sharded do not go together"),
        ("train: {keep_at: [10, 0]}", "train.keep_at is 0"),
        ("train: {keep_at: often}", "train.keep_at must be one or more: int, not 'often'"),
        ("budget: {steps: 10, tokens: 100}", "budget has steps and tokens"),
        ("budget: {flops: 0}", "budget.flops is 0"),
        ("seed: -1", "seed is -1"),
        ("seed: 4294967296", "seed is 4294967296"),
        ("encoder: {ffn_width: -3}", "encoder.ffn_width is -3"),
        ("encoder: {max_length: 0}", "encoder.max_length is 0"),
        ("budget: {steps: 99999999999999999999}", "budget.steps is 99999999999999999999"),
        ("[" * 3000, "is not a YAML recipe"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        load_recipe(recipe_file(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_not_there_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"no recipe at 'smal' \(did you mean 'small'\?\)"):
        load_recipe("smal")
    with pytest.raises(UserError, match="is a folder"):
        load_recipe(tmp_path)


def test_a_recipe_that_was_spelled_out_before_there_were_starts_means_a_random_one(tmp_path):
    """Else a run of an older version could not go on, and its card would say what is not true."""
    lines = dump_recipe(replace(tiny_recipe(), encoder=EncoderRecipe(start="random"))).splitlines()
    (tmp_path / "old.yaml").write_text("\n".join(line for line in lines if not line.strip().startswith("start:")))
    (tmp_path / "own.yaml").write_text("encoder: {layers: 3}")
    assert load_recipe(tmp_path / "old.yaml").encoder.start == "random"
    assert load_recipe(tmp_path / "old.yaml", {"encoder": {"start": "words"}}).encoder.start == "words"
    assert load_recipe(tmp_path / "own.yaml").encoder.start == EncoderRecipe().start


def test_differences_name_the_keys():
    old = tiny_recipe()
    new = replace(old, length=64, mask=replace(old.mask, rate=0.5))
    assert differences(old, new) == ["length: 32 -> 64", "mask.rate: 0.4 -> 0.5"]


def test_a_batch_splits_over_processes_and_micro_batches_or_says_why_not():
    train = replace(tiny_recipe().train, batch_size=64, micro_batch_size=8)
    assert batch_split(train, 1) == (8, 8)
    assert batch_split(train, 4) == (8, 2)
    assert batch_split(replace(train, micro_batch_size=None), 4) == (16, 1)
    with pytest.raises(UserError, match="batch_size 64 does not split"):
        batch_split(replace(train, micro_batch_size=24), 1)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "step"])
def test_a_rate_begins_and_ends_exactly_as_the_recipe_says(schedule):
    assert 0.3 + 1 * (0.05 - 0.3) != 0.05  # floats
    recipe = tiny_recipe(mask=MaskRecipe("span", rate=0.3, rate_end=0.05, rate_schedule=schedule, drop=0.1))
    assert recipe.at(0).mask == MaskRecipe("span", 0.3, drop=0.1)
    assert recipe.at(1).mask == MaskRecipe("span", 0.05, drop=0.1)
    rates = [recipe.at(progress / 100).mask.rate for progress in range(101)]
    assert all(one >= other for one, other in pairwise(rates))


def test_a_rate_goes_in_a_line_as_half_a_cosine_or_in_one_step():
    def rates(schedule):
        mask = MaskRecipe(rate=0.5, rate_end=0.1, rate_schedule=schedule)
        return [tiny_recipe(mask=mask).at(progress).mask.rate for progress in (0.25, 0.499, 0.5, 0.75)]

    assert rates("linear") == pytest.approx([0.4, 0.3004, 0.3, 0.2])
    assert rates("cosine") == pytest.approx([0.3 + 0.2 * math.cos(p * math.pi) for p in (0.25, 0.499, 0.5, 0.75)])
    assert rates("step") == [0.5, 0.5, 0.1, 0.1]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_way_of_a_rate_goes_back_to_its_points(schedule):
    mask = MaskRecipe(rate=0.0, rate_end=1.0, rate_schedule=schedule)
    for progress in (0.0, 0.1, 0.5, 0.77, 1.0):
        assert mask.point_of(mask.rate_at(progress)) == pytest.approx(progress)


def test_recipes_from_before_there_were_shapes_and_schedules_mean_the_plain_ones(tmp_path):
    lines = dump_recipe(tiny_recipe()).splitlines()
    (tmp_path / "old.yaml").write_text("\n".join(line for line in lines if "rate_schedule" not in line))
    assert load_recipe(tmp_path / "old.yaml").mask == MaskRecipe("uniform", 0.4, rate_schedule="linear")
