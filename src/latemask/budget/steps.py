"""Budget → steps, before the run: no clock inside the training state."""

from __future__ import annotations

from dataclasses import replace

from latemask.budget.flops import sequence_flops
from latemask.ground.errors import UserError
from latemask.recipe import MOST_STEPS, BudgetRecipe, Recipe


def with_budget(recipe: Recipe, steps: int | None, tokens: float | None, flops: float | None) -> Recipe:
    """Let a budget given on the command line replace the recipe's."""
    given = BudgetRecipe(steps=steps, tokens=tokens, flops=flops)
    if given == BudgetRecipe():
        return recipe
    return replace(recipe, budget=given)


def planned_steps(recipe: Recipe) -> int:
    """Return the steps that the budget of a recipe pays for; the recipe is spelled out."""
    budget, batch = recipe.budget, recipe.train.batch_size
    if budget.steps is not None:
        return budget.steps
    if budget.tokens is not None:
        steps = int(budget.tokens // (batch * recipe.length))
        price = f"{batch * recipe.length:,} tokens"
    elif budget.flops is not None:
        a_step = batch * sequence_flops(recipe).training
        steps = int(budget.flops // a_step)
        price = f"{a_step:.3g} FLOPs"
    else:
        raise UserError("no budget: give --max-steps, --tokens or --flops, or a budget in the recipe")
    if steps > MOST_STEPS:
        raise UserError(f"the budget pays for {steps:.3g} steps of {price}; {MOST_STEPS:,} at most")
    if steps < 1:
        raise UserError(f"the budget does not pay for one step, which costs {price}")
    return steps
