"""ELECTRA: a word table narrower than the layers."""

import pytest
import torch

from latemask.budget.flops import count_weights
from latemask.model import complete_recipe
from latemask.model.stock import family_of
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe, check_recipe
from tests.conftest import VOCABULARY, make_batch, make_model, make_rows, tiny_recipe

NARROW = EncoderRecipe(family="electra", layers=3, width=32, heads=2, embedding_width=12)


@pytest.mark.parametrize("join", [Join("inside", 2), Join("cross", 1)], ids=str)
def test_words_and_masks_are_projected_and_every_weight_is_trained_and_counted(join):
    recipe = tiny_recipe(encoder=NARROW, options=join)
    check_recipe(recipe)
    model = make_model(recipe).train()
    model(**make_batch(recipe)).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert model.mask_vector.shape == ((12,) if join.kind == "inside" else (32,))
    weights = count_weights(complete_recipe(recipe, VOCABULARY))
    assert weights.total == sum(weight.numel() for weight in model.parameters())
    assert weights.encoder == sum(weight.numel() for weight in model.encoder.parameters())


def test_states_are_the_stock_models():
    model, rows = make_model(tiny_recipe(encoder=NARROW)), torch.from_numpy(make_rows())
    with torch.no_grad():
        ours = model.encode(rows, torch.arange(32).expand(4, -1))
        torch.testing.assert_close(ours, model.encoder(input_ids=rows).last_hidden_state)


def test_a_word_widens_as_the_encoder_does_it():
    model = make_model(tiny_recipe(encoder=NARROW))
    word = model.words[7]
    assert torch.equal(model.family.widened(model.encoder, word), model.encoder.embeddings_project(word))


def test_its_shape_is_a_recipes():
    model = make_model(tiny_recipe(encoder=NARROW))
    shape = family_of(model.config.encoder).shape(model.config.encoder)
    assert (shape["embedding_width"], shape["width"], shape["max_length"]) == (12, 32, 32)
