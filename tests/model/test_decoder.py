"""The separate decoders: pruning is exact, the relative bias starts local."""

from dataclasses import replace

import pytest
import torch

from latemask.objectives.decoder import RelativeBias
from latemask.recipe import MaskRecipe
from tests.conftest import VOCABULARY, joining, make_batch, make_model


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("positions", ["relative", "absolute"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_pruned_last_layer_equals_the_unpruned_one(kind, positions, layers):
    recipe = replace(joining(kind, positions=positions, layers=layers), mask=MaskRecipe(rate=0.4, random=0.2, keep=0.1))
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        visible = model.encode(batch["visible_ids"], batch["visible_positions"])
        arguments = (visible, model.mask_vector, batch["visible_positions"], batch["masked_positions"])
        pruned, whole = (model.decoder(*arguments, batch["corrupted_slots"], prune=prune) for prune in (True, False))
    assert pruned.shape == (4, recipe.counts.predicted, 32)
    torch.testing.assert_close(pruned, whole, rtol=1e-4, atol=1e-5)


def test_the_relative_bias_is_a_function_of_head_and_signed_distance():
    bias = RelativeBias(heads=2, length=8)
    bias.weight.data = torch.arange(30.0).reshape(15, 2)
    queries, keys = torch.tensor([[0, 5]]), torch.tensor([[1, 7, 0]])
    found = bias(queries, keys)
    for head in range(2):
        for q, query in enumerate(queries[0]):
            for k, key in enumerate(keys[0]):
                assert found[0, head, q, k] == bias.weight[key - query + 7, head]


def test_the_relative_bias_starts_local_like_alibi():
    recipe = joining("self")
    torch.manual_seed(0)
    from latemask.model import build_model, complete_recipe

    table = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY).decoder.relative_bias.weight.detach()
    middle = len(table) // 2
    assert (table[middle] == 0).all()
    assert (table[middle + 1 :].diff(dim=0) < 0).all()
    torch.testing.assert_close(table, table.flip(0))
    torch.testing.assert_close(table[middle + 1], torch.tensor([-(2.0**-4), -(2.0**-8)]))
