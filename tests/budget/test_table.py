"""The cost table: the numbers of the method on paper, and ours below them."""

import pytest

from latemask.budget.flops import mlm_baseline, sequence_flops
from latemask.budget.table import PAPER, SIZES, VOCABULARY, cost_table
from latemask.objectives.late import Join
from latemask.recipe import MaskRecipe, Recipe, spelled_out

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


def _mask(cell) -> tuple[MaskRecipe, bool]:
    record = cell.record()
    return MaskRecipe(**{name: record[name] for name in ("rate", "random", "keep", "drop")}), True
