"""What a recipe cannot be, said with the key and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from latemask.ground.errors import UserError
from latemask.recipe import FAMILIES, MOST_STEPS, OBJECTIVES, MaskRecipe, Recipe

_LARGEST = 2**31
# Intervals as mathematicians write them: ( and ) leave the end out.
_RANGES = {
    "length": "[4, 16777216]",
    "seed": "[0, 4294967295]",
    "encoder.layers": "[1, 10000]",
    "encoder.width": "[1, 1048576]",
    "encoder.heads": "[1, 1048576]",
    "encoder.ffn_width": f"[1, {_LARGEST}]",
    "encoder.max_length": f"[1, {_LARGEST}]",
    **{
        f"encoder.{key}": f"[1, {_LARGEST}]"
        for key in ("window", "global_every", "embedding_width", "key_value_heads", "buckets")
    },
    "encoder.vocab_size": f"[1, {_LARGEST}]",
    "encoder.init_std": "(0, 1]",
    "encoder.rotary_base": "(1, 1e9]",
    "encoder.dropout": "[0, 1)",
    "mask.rate": "(0, 1)",
    "mask.rate_end": "(0, 1)",
    "mask.random": "[0, 1)",
    "mask.keep": "[0, 1)",
    "mask.drop": "[0, 1)",
    **{
        f"train.{key}": f"[1, {_LARGEST}]"
        for key in ("batch_size", "micro_batch_size", "log_every", "eval_every", "eval_rows", "save_every")
    },
    "train.keep_checkpoints": f"[1, {_LARGEST}]",
    "train.learning_rate": "(0, 1]",
    "train.warmup": f"[0, {MOST_STEPS}]",
    "train.decay": f"(0, {MOST_STEPS}]",
    "train.beta1": "[0, 1)",
    "train.beta2": "[0, 1)",
    "train.weight_decay": "[0, inf)",
    "train.epsilon": "[0, inf)",
    "train.clip": "[0, inf)",
    "train.average": "[0, 1)",
    "train.finish_early": "[0, 1)",
    "train.workers": "[0, 1024]",
    "select.keep": "(0, 1]",
    "select.reference_flops": "[0, inf)",
    "select.reference_weights": "[0, inf)",
    "budget.steps": f"[1, {MOST_STEPS}]",
    "budget.tokens": "(0, inf)",
    "budget.flops": "(0, inf)",
}


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run."""
    for problem in _problems(recipe):
        if problem:
            raise UserError(f"recipe: {problem}")


def _problems(recipe: Recipe) -> Iterator[str | None]:
    """Yield what is wrong, the simplest first: what comes later may rely on it."""
    yield from _unknown_names(recipe)
    for key, interval in _RANGES.items():
        yield out_of_range(key, _value(recipe, key), interval)
    encoder, mask = recipe.encoder, recipe.mask
    if encoder.width % encoder.heads:
        yield f"encoder.heads {encoder.heads} does not divide encoder.width {encoder.width}"
    if recipe.max_length < recipe.length:
        yield f"encoder.max_length {encoder.max_length} is shorter than length {recipe.length}"
    yield FAMILIES[encoder.family].problem(encoder)
    if mask.random + mask.keep > 1:
        yield f"mask.random {mask.random} + mask.keep {mask.keep} is more than 1"
    if mask.rate_end is None and mask.rate_schedule != MaskRecipe.rate_schedule:
        yield f"mask.rate_schedule {mask.rate_schedule} says how the rate goes to mask.rate_end; give that, too"
    yield _count_problem(recipe.at(0))
    yield _count_problem(recipe.at(1))
    yield OBJECTIVES[recipe.objective].problem(recipe)
    yield from _training_problems(recipe)
    given = [key for key, value in asdict(recipe.budget).items() if value is not None]
    if len(given) > 1:
        yield f"budget has {' and '.join(given)}; give one of them"


def _training_problems(recipe: Recipe) -> Iterator[str | None]:
    """What can be said of a training before the number of steps is known."""
    train = recipe.train
    for key, value in (("train.warmup", train.warmup), ("train.decay", train.decay)):
        if value >= 1 and value != int(value):
            yield f"{key} is {value:g}; below 1 it is a share of the steps, from 1 on a whole number of them"
    if train.compile and recipe.mask.rate_end is not None:
        yield "train.compile needs shapes that stay the same, and mask.rate_end changes them; leave one out"
    if train.compile and train.sharded:
        yield "train.compile and train.sharded do not go together; leave one out"
    yield recipe.select.problem(train.batch_size)
    for step in train.keep_at:
        yield out_of_range("train.keep_at", step, f"[1, {MOST_STEPS}]")


def _unknown_names(section: Any) -> Iterator[str | None]:
    """Look every name up in its table, which refuses what it does not hold."""
    for field in fields(section):
        value = getattr(section, field.name)
        if "table" in field.metadata:
            for name in value if isinstance(value, tuple) else [value]:
                field.metadata["table"][name]
        elif is_dataclass(value):
            yield from _unknown_names(value)


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name)
    return value


def out_of_range(key: str, value: float | None, interval: str) -> str | None:
    """Say that a value is not in an interval such as `(0, 1]`; None is in all of them."""
    if value is None:
        return None
    low, high = map(float, interval[1:-1].split(","))
    above = value > low or (interval[0] == "[" and value == low)
    below = value < high or (interval[-1] == "]" and value == high)
    if above and below:
        return None
    if interval == "(0, inf)":
        return f"{key} is {value}; it must be positive"
    if interval[0] == "[" and interval[-1] == "]":
        return f"{key} is {value}; it must be between {low:,.0f} and {high:,.0f}"
    return f"{key} is {value}; it must be in {interval}" if high < math.inf else f"{key} is {value}; at least {low:g}"


def _count_problem(recipe: Recipe) -> str | None:
    mask, counts = recipe.mask, recipe.counts
    if counts.predicted < 1:
        return f"mask.rate {mask.rate} predicts nothing in a row of {recipe.length}; raise mask.rate or length"
    # <s> stays visible always; an encoder that sees only <s> has nothing to read.
    if counts.predicted + counts.dropped > recipe.length - 2:
        return (
            f"mask.rate {mask.rate} + mask.drop {mask.drop} leaves nothing visible in a row of {recipe.length}; "
            "lower one of them"
        )
    return None
