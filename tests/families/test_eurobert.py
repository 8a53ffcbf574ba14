"""EuroBERT's heads may share keys and values."""

from dataclasses import replace

import pytest
import torch

from latemask.budget.flops import count_weights
from latemask.ground.errors import UserError
from latemask.model import complete_recipe
from latemask.model.pretraining import EarlyMaskForPreTraining
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe, check_recipe
from tests.budget.test_flops import assert_exact
from tests.budget.test_weights import counted
from tests.conftest import VOCABULARY, make_batch, make_model, make_rows, tiny_recipe
from tests.families.stock import stock_of

SHARED = EncoderRecipe("eurobert", layers=3, width=32, heads=4, key_value_heads=2)


def test_shared_keys_and_values_are_the_stock_ones():
    model = make_model(tiny_recipe(encoder=SHARED))
    assert model.encoder.layers[0].self_attn.k_proj.out_features == 16
    rows, visible = torch.from_numpy(make_rows()), make_batch(tiny_recipe())["visible_positions"]
    present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        stock = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
        places = model.family.places(model.encoder, ours, visible)
        layer = model.encoder.layers[1]
        pieces, whole = (run(layer, ours, places) for run in (model.family.in_pieces, model.family.stock))
    torch.testing.assert_close(ours, stock.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("join", [Join("inside", 2), Join("inside", 2, two_way=True), Join("cross", 1), None], ids=str)
def test_shared_keys_and_values_cost_and_weigh_what_is_counted(join):
    recipe = tiny_recipe(encoder=SHARED)
    recipe = replace(recipe, options=join) if join else replace(recipe, objective="early")
    assert_exact(recipe)
    weights, real = count_weights(complete_recipe(recipe, VOCABULARY)), counted(recipe)
    assert {name: getattr(weights, name) for name in real} == real


def test_a_number_of_shared_heads_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match="key_value_heads 3 does not divide"):
        check_recipe(tiny_recipe(encoder=replace(SHARED, key_value_heads=3)))


def test_the_shape_of_a_checkpoint_says_what_is_shared():
    model = make_model(tiny_recipe(encoder=replace(SHARED, rotary_base=500.0)))
    shape = model.family.shape(model.encoder.config)
    assert (shape["key_value_heads"], shape["rotary_base"], shape["tied"]) == (2, 500.0, True)
    unshared = make_model(tiny_recipe(encoder=replace(SHARED, key_value_heads=None)))
    assert unshared.family.shape(unshared.encoder.config)["key_value_heads"] is None


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_a_start_from_the_corpus_attends_to_itself_whatever_is_shared(shared):
    model = make_model(tiny_recipe(encoder=replace(SHARED, key_value_heads=shared)))
    layer, turn = model.encoder.layers[0], torch.linalg.qr(torch.randn(32, 32))[0]
    with torch.no_grad():
        model.family.start_near(layer)
        model.family.start_passing(layer, turn)
        states = torch.randn(2, 8, 32)
        still = model.family.places(model.encoder, states, torch.zeros(2, 8, dtype=torch.long))
        queries, (keys, values) = (
            ask(layer, states, still) for ask in (model.family.queries, model.family.keys_values)
        )
        passed = layer.self_attn.o_proj(values.transpose(1, 2).flatten(2))
    scores = queries @ keys.transpose(-1, -2)
    assert scores.diagonal(dim1=-2, dim2=-1).mean() > scores.mean() + scores.std() / 2
    kept = turn[: 8 * shared]
    torch.testing.assert_close(passed, states @ kept.T @ kept, rtol=1e-4, atol=1e-5)


def test_a_bias_of_the_head_is_read_where_the_layers_have_biases(tmp_path):
    stock = stock_of("eurobert", True, mlp_bias=True)
    stock.save_pretrained(tmp_path)
    model = EarlyMaskForPreTraining.from_encoder(str(tmp_path))
    assert torch.equal(model.head.bias, stock.lm_head.bias)
