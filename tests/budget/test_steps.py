"""Budgets become steps before the run."""

from dataclasses import replace

import pytest

from latemask.budget.flops import planned_steps, sequence_flops, with_budget
from latemask.ground.errors import UserError
from latemask.model import complete_recipe
from latemask.recipe import BudgetRecipe
from tests.conftest import VOCABULARY, tiny_recipe


def planned(**budget) -> int:
    return planned_steps(complete_recipe(replace(tiny_recipe(), budget=BudgetRecipe(**budget)), VOCABULARY))


def test_each_kind_of_budget_becomes_steps():
    a_step = 8 * sequence_flops(complete_recipe(tiny_recipe(), VOCABULARY)).training
    assert planned(steps=7) == 7
    assert planned(tokens=8 * 32 * 5 + 100) == 5
    assert planned(flops=3.5 * a_step) == 3


def test_a_budget_on_the_command_line_replaces_the_recipes():
    recipe = replace(tiny_recipe(), budget=BudgetRecipe(steps=7))
    assert with_budget(recipe, None, 1e6, None).budget == BudgetRecipe(tokens=1e6)
    assert with_budget(recipe, None, None, None) == recipe


def test_no_budget_and_one_too_small_are_refused():
    with pytest.raises(UserError, match="no budget"):
        planned()
    with pytest.raises(UserError, match="does not pay for one step, which costs 256 tokens"):
        planned(tokens=100)
