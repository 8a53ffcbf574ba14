"""The cost table: the numbers of the method on paper, and ours below them."""

import pytest

from latemask.budget.flops import mlm_baseline, sequence_flops
from latemask.budget.table import PAPER, PUBLISHED, SIZES, VOCABULARY, cost_table
from latemask.objectives.late import Join
from latemask.recipe import MaskRecipe, Recipe, load_recipe, spelled_out

HALF, BERTS, DROPPING = MaskRecipe(rate=0.5), MaskRecipe(rate=0.5, random=0.1, keep=0.1), MaskRecipe(rate=0.3, drop=0.3)
# On paper: FLOPs over MLM at 15 %, length 512, every layer computed whole.
METHOD = [
    (Join("inside", 1), HALF, 0.68, 0.57),
    (Join("inside", 2), HALF, 0.73, 0.59),
    (Join("inside", 2), BERTS, 0.80, 0.68),
    (Join("inside", 2), DROPPING, 0.52, 0.44),
    (Join("cross-only", 1), HALF, 0.68, 0.57),
    (Join("self", 1), HALF, 0.72, 0.59),
    (Join("self", 2), HALF, 0.80, 0.63),
    (Join("self", 3), HALF, 0.88, 0.67),
    (Join("self", 2), BERTS, 0.90, 0.73),
]


def ratio(size: str, join: Join, mask: MaskRecipe, pruned: bool) -> float:
    recipe = spelled_out(Recipe(length=512, encoder=SIZES[size], mask=mask, options=join), VOCABULARY)
    return sequence_flops(recipe, pruned).training / sequence_flops(mlm_baseline(recipe)).training


@pytest.mark.parametrize(("join", "mask", "base", "large"), METHOD, ids=str)
def test_unpruned_ratios_are_those_of_the_method(join, mask, base, large):
    assert ratio("base", join, mask, pruned=False) == pytest.approx(base, abs=0.01)
    assert ratio("large", join, mask, pruned=False) == pytest.approx(large, abs=0.01)


def test_a_pruned_self_layer_costs_what_the_method_says():
    assert ratio("base", Join("self", 1), HALF, pruned=True) == pytest.approx(0.69, abs=0.005)
    assert ratio("large", Join("self", 1), HALF, pruned=True) == pytest.approx(0.57, abs=0.005)


def test_every_cell_is_the_sum_of_its_parts_and_pruning_never_costs():
    for cell in cost_table():
        assert cell.ratio == pytest.approx(ratio(cell.size, Join(cell.kind, cell.layers), *_mask(cell)))
        assert cell.ratio <= cell.without_pruning + 1e-12
        assert cell.record()["paper"] == PAPER[cell.size]


LAYERS_ONLY = [  # kind, size, every layer whole, as computed: matrix products of layers, no head, length 512
    ("self", "base", 0.744, 0.709),
    ("self", "large", 0.667, 0.649),
    ("cross", "base", 0.794, 0.750),
    ("cross", "large", 0.691, 0.669),
]


@pytest.mark.parametrize(("kind", "size", "whole", "pruned"), LAYERS_ONLY)
def test_layers_alone_the_papers_recipes_cost_nearly_what_it_says(kind, size, whole, pruned):
    recipe = spelled_out(load_recipe(f"3ml-{kind}-{size}"), VOCABULARY)
    mlm = sequence_flops(mlm_baseline(recipe))
    found = [sequence_flops(recipe, one) for one in (False, True)]
    ratios = [(one.encoder + one.decoder) / mlm.encoder for one in found]
    assert ratios == pytest.approx([whole, pruned], abs=0.0006)
    assert ratios[0] == pytest.approx(PAPER[size], abs=0.04)
    (cell,) = (one for one in cost_table() if (one.kind, one.size, one.layers, one.masking) == (kind, size, *PUBLISHED))
    record = cell.record()
    assert [record["layers_only_without_pruning"], record["layers_only"]] == ratios
    assert record["ratio"] == pytest.approx(found[1].forward / mlm.forward)


@pytest.mark.parametrize(("size", "on_paper"), [("base", 0.767), ("large", 0.683)])
def test_without_the_products_of_attention_it_is_the_formula_on_paper(size, on_paper):
    """(1 - 0.8 x rate) + 2 / layers: as rows become short, scores and what they weigh cost nothing."""
    recipe = spelled_out(load_recipe(f"3ml-self-{size}", {"length": 20}), VOCABULARY)
    whole, mlm = sequence_flops(recipe, False), sequence_flops(mlm_baseline(recipe))
    assert whole.layers / mlm.layers == pytest.approx(on_paper, abs=0.002)


def _mask(cell) -> tuple[MaskRecipe, bool]:
    record = cell.record()
    return MaskRecipe(**{name: record[name] for name in ("rate", "random", "keep", "drop")}), True
