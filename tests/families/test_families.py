"""Every encoder family, opened, is the stock Hugging Face model."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModel

from latemask.families import FAMILIES
from latemask.ground.errors import UserError
from latemask.model import build_model, complete_recipe
from latemask.model.stock import family_of
from latemask.recipe import EncoderRecipe
from tests.conftest import FAMILIES as NAMES
from tests.conftest import VOCABULARY, make_batch, make_model, make_rows, tiny_recipe


def model_of(family: str):
    return make_model(tiny_recipe(encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2)))


@pytest.mark.parametrize("family", NAMES)
def test_with_nothing_hidden_the_output_is_the_plain_models(family):
    model = model_of(family)
    rows = torch.from_numpy(make_rows())
    positions = torch.arange(32).expand(4, -1)
    with torch.no_grad():
        ours = model.encode(rows, positions)
        plain = model.encoder(input_ids=rows).last_hidden_state
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("family", NAMES)
def test_with_positions_hidden_the_output_is_the_plain_models_with_an_attention_mask_over_them(family):
    model = model_of(family)
    rows = torch.from_numpy(make_rows())
    visible = make_batch(tiny_recipe())["visible_positions"]
    present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
    torch.testing.assert_close(ours, plain.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", NAMES)
def test_the_pieces_of_an_opened_layer_make_the_stock_layer(family):
    model = model_of(family)
    opened, encoder = model.family, model.encoder
    positions = torch.arange(32).expand(4, -1)
    states = opened.embed(encoder, positions, ids=torch.from_numpy(make_rows()))
    places = opened.places(encoder, states, positions)
    layer = opened.layers(encoder)[1]
    ours = opened.in_pieces(layer, states, places)
    torch.testing.assert_close(ours, opened.stock(layer, states, places), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", NAMES)
def test_the_longest_input_is_what_the_recipe_asked_for(family):
    model = model_of(family)
    assert model.family.longest(model.encoder.config) == 32


@pytest.mark.parametrize("family", NAMES)
def test_first_weights_are_as_wide_as_the_recipe_says(family):
    found = []
    for std in (0.02, 0.06):
        torch.manual_seed(0)
        recipe = tiny_recipe(encoder=EncoderRecipe(family, layers=1, width=32, heads=2, init_std=std))
        model = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY)
        weights = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "bias" not in name]
        found.append([weight.std().item() for weight in weights])
    assert found[1] == pytest.approx([3 * std for std in found[0]], rel=1e-4)


def test_the_rotary_base_is_the_recipes_also_after_saving_and_loading(tmp_path):
    recipe = tiny_recipe(encoder=EncoderRecipe(layers=3, width=32, heads=2, rotary_base=500.0))
    encoder = make_model(recipe).encoder
    encoder.save_pretrained(tmp_path)
    expected = 500.0 ** (-torch.arange(0, 16, 2) / 16)
    for one in (encoder, AutoModel.from_pretrained(tmp_path)):
        assert torch.allclose(one.rotary_emb.full_attention_inv_freq, expected)
    assert json.loads((tmp_path / "config.json").read_text())["global_rope_theta"] == 500  # what transformers 4 reads


def test_an_unknown_family_is_refused_with_the_ones_there_are():
    with pytest.raises(UserError, match=r"gpt2.*modernbert"):
        family_of(AutoConfig.for_model("gpt2"))
    assert set(NAMES) == set(FAMILIES)
