"""DeBERTa-v2: distances between original positions, by buckets."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig

from latemask.budget.flops import count_weights
from latemask.ground.errors import UserError
from latemask.model import EncoderForPreTraining, PreTrainingConfig, complete_recipe
from latemask.model.stock import family_of
from latemask.recipe import EncoderRecipe
from tests.conftest import VOCABULARY, make_batch, make_model, tiny_recipe
from tests.families.distances import assert_stock

ENCODER = EncoderRecipe(family="deberta-v2", layers=2, width=32, heads=2)


@pytest.mark.parametrize(("length", "buckets"), [(300, 16), (300, 256), (64, 256), (40, 40)], ids=str)
def test_rows_longer_and_shorter_than_the_part_that_is_told_apart_one_by_one(length, buckets):
    recipe = tiny_recipe(length=length, encoder=replace(ENCODER, buckets=buckets))
    assert_stock(make_model(recipe), recipe)


VARIANTS = [
    {"share_att_key": False},
    {"position_biased_input": True, "type_vocab_size": 2},
    {"norm_rel_ebd": "none"},
    {"position_buckets": -1},
    {"position_buckets": -1, "max_relative_positions": 10},
    {"max_relative_positions": 48},
    {"embedding_size": 12},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants_of_the_stock_model(changes):
    recipe = tiny_recipe(length=64, encoder=replace(ENCODER, buckets=16))
    config = make_model(recipe).config.encoder
    config.update(changes)
    torch.manual_seed(0)
    model = EncoderForPreTraining(PreTrainingConfig(encoder=config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    assert_stock(model, recipe)
    model.train()(**make_batch(recipe)).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_narrow_word_table_and_buckets_are_a_recipes():
    recipe = tiny_recipe(encoder=replace(ENCODER, embedding_width=12, buckets=8))
    model = make_model(recipe)
    weights = count_weights(complete_recipe(recipe, VOCABULARY))
    assert weights.total == sum(weight.numel() for weight in model.parameters())
    shape = model.family.shape(model.config.encoder)
    assert (shape["embedding_width"], shape["buckets"]) == (12, 8)


def test_what_reads_neighbours_or_cannot_be_counted_is_refused():
    ours = make_model(tiny_recipe(encoder=ENCODER)).config.encoder.to_dict()
    del ours["model_type"]
    for changes, reason in [
        ({"conv_kernel_size": 3}, "convolution .* neighbours"),
        ({"relative_attention": False}, "relative_attention"),
        ({"pos_att_type": ["c2p"]}, "both ways"),
    ]:
        with pytest.raises(UserError, match=reason):
            family_of(AutoConfig.for_model("deberta-v2", **{**ours, **changes}))
