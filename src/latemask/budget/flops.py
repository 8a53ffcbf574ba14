"""What a run costs: objectives say what a sequence does, here it becomes a run. No torch.

The terms are those of docs/method.md; a test holds them against torch's own counter.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import fields, replace
from itertools import pairwise

from latemask.ground.errors import UserError
from latemask.objectives import Flops, Weights
from latemask.recipe import (
    MLM_RATE,
    MOST_STEPS,
    OBJECTIVES,
    OPTIMIZERS,
    ROOT,
    BudgetRecipe,
    MaskRecipe,
    Recipe,
    SelectRecipe,
    Stem,
)

_MOST_STAGES = 1000
_ROUNDING = 1e-6  # of a step: a branch that changes nothing has as many as its stem, whatever the sums are rounded to


def sequence_flops(recipe: Recipe, pruned: bool = True) -> Flops:
    """Count one sequence of a recipe that is spelled out (`encoder.ffn_width` and `encoder.vocab_size` known).

    Where the mask rate changes, it is the mean over the run. `pruned` is what latemask does: the last layer works only
    where something is predicted. Without it this is what the paper's shape costs when every layer is computed whole,
    docs/planning.md has both.
    """
    found = [(share, OBJECTIVES[stage.objective].flops(stage, pruned)) for share, stage in _stages(recipe)]
    if len(found) == 1:
        return found[0][1]
    return Flops(*(sum(share * getattr(flops, part.name) for share, flops in found) for part in fields(Flops)))


def update_flops(recipe: Recipe) -> float:
    """Return the matrix products of one update by the optimizer, whatever the rows: AdamW has none."""
    count = getattr(OPTIMIZERS[recipe.train.optimizer], "flops", None)
    return float(count(recipe)) if count else 0.0


def step_flops(recipe: Recipe) -> float:
    """Return the FLOPs of a step, choosing its rows, forward, backward and update.

    Where the mask rate changes, the mean over the run.
    """
    return _rows_flops(recipe, sequence_flops(recipe)) + update_flops(recipe)


def scoring_flops(recipe: Recipe, sequence: Flops | None = None) -> float:
    """Return the FLOPs of choosing the rows of a step: of all that it reads, both models' forward pass."""
    if recipe.select.reference is None:
        return 0.0
    assert recipe.select.reference_flops is not None, "what the reference costs must be spelled out"
    return recipe.rows_read * ((sequence or sequence_flops(recipe)).forward + recipe.select.reference_flops)


def _rows_flops(recipe: Recipe, sequence: Flops) -> float:
    """Return the FLOPs of a step but for the update, where a sequence costs so much."""
    return recipe.train.batch_size * sequence.training + scoring_flops(recipe, sequence)


def spent(recipe: Recipe, steps: int, done: int, stem: Stem = ROOT) -> float:
    """Return the FLOPs of the first `done` of `steps` steps, updates and all; those of a stem included."""
    return stem.flops + (_own(recipe, steps, done) - _own(recipe, steps, stem.step))


def _own(recipe: Recipe, steps: int, done: int) -> float:
    """The same of a run that did all of its steps itself."""
    left, total = float(done), done * update_flops(recipe)
    for share, stage in _stages(recipe):
        here = min(share * steps, left)
        total += here * _rows_flops(recipe, OBJECTIVES[stage.objective].flops(stage))
        left -= here
    return total


def _stages(recipe: Recipe) -> list[tuple[float, Recipe]]:
    """Split a run into parts in which the number of predicted positions stays: (share of the run, recipe)."""
    cuts = _changes_of_rate(recipe) + ([1 - recipe.train.finish_early] if recipe.train.finish_early else [])
    edges = [0.0, *sorted(cut for cut in cuts if 0 < cut < 1), 1.0]
    return [(end - start, recipe.at((start + end) / 2)) for start, end in pairwise(edges)]


def _changes_of_rate(recipe: Recipe) -> list[float]:
    """Return where in a run the number of predicted positions changes."""
    mask, length = recipe.mask, recipe.length
    if mask.rate_end is None or mask.rate_end == mask.rate:
        return []
    if mask.rate_schedule == "step":
        return [mask.point_of(1)]
    first, last = mask.rate * length, mask.rate_end * length
    halves = range(math.floor(min(first, last)), math.ceil(max(first, last)) + 1)
    if len(halves) > _MOST_STAGES:  # of very long rows: near enough
        return [number / _MOST_STAGES for number in range(1, _MOST_STAGES)]
    return [mask.point_of((half + 0.5 - first) / (last - first)) for half in halves]


def _branch_steps(recipe: Recipe, flops: float, stem: Stem) -> int:
    """Return the steps that a budget pays for behind a stem: what is left of a run may be its dear part."""
    prices = [_rows_flops(recipe, OBJECTIVES[stage.objective].flops(stage)) for _, stage in _stages(recipe)]
    cheapest = min(prices) + update_flops(recipe)
    most = min(stem.step + max(0, int((flops - stem.flops) // cheapest)) + 1, 2 * MOST_STEPS)
    longer = range(stem.step + 1, most + 1)
    limit = flops + _ROUNDING * cheapest
    return stem.step + bisect_right(longer, limit, key=lambda steps: spent(recipe, steps, steps, stem))


def mlm_baseline(recipe: Recipe) -> Recipe:
    """Return what a recipe is measured against: the same encoder by masked language modelling at 15 %, on every row."""
    return replace(recipe, objective="early", mask=MaskRecipe(rate=MLM_RATE), select=SelectRecipe())


def count_weights(recipe: Recipe) -> Weights:
    """Count the weights of a recipe that is spelled out."""
    return OBJECTIVES[recipe.objective].weights(recipe)


def with_budget(recipe: Recipe, steps: int | None, tokens: float | None, flops: float | None) -> Recipe:
    """Let a budget given on the command line replace the recipe's."""
    given = BudgetRecipe(steps=steps, tokens=tokens, flops=flops)
    return recipe if given == BudgetRecipe() else replace(recipe, budget=given)


def planned_steps(recipe: Recipe, stem: Stem = ROOT) -> int:
    """Return the steps that the budget of a recipe, spelled out, pays for; a branch's with those of its stem."""
    budget, batch = recipe.budget, recipe.train.batch_size
    if budget.steps is not None:
        return budget.steps
    if budget.tokens is not None:
        seen = batch * recipe.length
        steps, price = stem.step + int((budget.tokens - stem.tokens) // seen), f"{seen:,} tokens"
    elif budget.flops is not None:
        a_step = step_flops(recipe)
        steps = _branch_steps(recipe, budget.flops, stem) if stem.step else int(budget.flops // a_step)
        price = f"{a_step:.3g} FLOPs"
    else:
        raise UserError("no budget: give --max-steps, --tokens or --flops, or a budget in the recipe")
    if steps > MOST_STEPS:
        raise UserError(f"the budget pays for {steps:.3g} steps of {price}; {MOST_STEPS:,} at most")
    if steps < 1:
        raise UserError(f"the budget does not pay for one step, which costs {price}")
    return steps
