"""DistilBERT: the same in names of its own."""

import torch

from latemask.model import EncoderForPreTraining, PreTrainingConfig
from latemask.recipe import EncoderRecipe
from tests.conftest import make_model, make_rows, tiny_recipe

ENCODER = EncoderRecipe(family="distilbert", layers=3, width=32, heads=2, ffn_width=48, dropout=0.1)


def test_positions_that_begin_as_sines_are_the_stock_models():
    config = make_model(tiny_recipe(encoder=ENCODER)).config.encoder
    config.sinusoidal_pos_embds = True
    model = EncoderForPreTraining(PreTrainingConfig(encoder=config)).eval()
    table = model.encoder.embeddings.position_embeddings.weight
    torch.testing.assert_close(table[:, 0], torch.arange(32).sin())
    rows = torch.from_numpy(make_rows())
    with torch.no_grad():
        ours = model.encode(rows, torch.arange(32).expand(4, -1))
        torch.testing.assert_close(ours, model.encoder(input_ids=rows).last_hidden_state)


def test_its_shape_is_a_recipes():
    model = make_model(tiny_recipe(encoder=ENCODER))
    shape = model.family.shape(model.config.encoder)
    assert {name: getattr(ENCODER, name) for name in ("layers", "width", "heads", "ffn_width", "dropout")}.items() <= (
        shape.items()
    )


def test_it_can_be_shortened():
    model = make_model(tiny_recipe(encoder=ENCODER))
    model.family.shorten(model.encoder, 2)
    assert (model.encoder.config.n_layers, len(model.encoder.transformer.layer)) == (2, 2)
