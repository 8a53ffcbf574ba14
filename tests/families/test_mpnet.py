"""MPNet: a bias by the distance between original positions."""

from latemask.recipe import EncoderRecipe
from tests.conftest import make_model, tiny_recipe
from tests.families.distances import assert_stock

ENCODER = EncoderRecipe(family="mpnet", layers=2, width=32, heads=2)


def test_distances_beyond_the_last_bucket():
    recipe = tiny_recipe(length=300, encoder=ENCODER)
    assert_stock(make_model(recipe), recipe)


def test_positions_begin_behind_row_1_whatever_the_id_of_padding():
    model = make_model(tiny_recipe(encoder=ENCODER))
    for pad in (0, 1, None):
        model.config.encoder.pad_token_id = pad
        model.family.check(model.config.encoder)
        assert model.family.longest(model.config.encoder) == 32
