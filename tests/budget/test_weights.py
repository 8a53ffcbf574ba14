"""The closed form counts the weights of the real model, all of them."""

from dataclasses import replace

import pytest

from latemask.budget.flops import count_weights
from latemask.model import build_model, complete_recipe
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe
from tests.conftest import FAMILIES, KINDS, VOCABULARY, tiny_recipe

JOINS = [Join(kind, layers) for kind in KINDS for layers in (1, 2)] + [Join("self", positions="absolute")]
EVERY_KIND = [Join("inside"), Join("cross"), None]
CASES = [(family, join) for family in FAMILIES for join in ([*JOINS, None] if family == "modernbert" else EVERY_KIND)]


def counted(recipe) -> dict[str, int]:
    model = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY)
    sizes = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    return {
        "total": sum(sizes.values()),
        "encoder": sum(size for name, size in sizes.items() if name.startswith("encoder.")),
        "words": model.words.numel(),
        "head": sum(size for name, size in sizes.items() if name.startswith("head.")),
    }


@pytest.mark.parametrize(("family", "join"), CASES, ids=str)
def test_every_weight_is_counted(family, join):
    recipe = tiny_recipe(encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2))
    recipe = replace(recipe, options=join) if join else replace(recipe, objective="early")
    weights = count_weights(complete_recipe(recipe, VOCABULARY))
    real = counted(recipe)
    assert {name: getattr(weights, name) for name in real} == real
