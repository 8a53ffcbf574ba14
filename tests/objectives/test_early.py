"""The baseline is RobertaForMaskedLM, only without logits nobody asked for."""

import pytest
import torch
from transformers import RobertaForMaskedLM

from latemask import EarlyMaskForPreTraining
from latemask.recipe import EncoderRecipe, MaskRecipe
from tests.conftest import FAMILIES, loss_after_fitting_one_batch, make_batch, make_model, tiny_recipe


def early_recipe(family: str = "roberta", **mask: float):
    encoder = EncoderRecipe(family=family, layers=3, width=32, heads=2)
    return tiny_recipe(objective="early", encoder=encoder, mask=MaskRecipe(rate=0.25, **mask))


def test_loss_and_logits_are_those_of_the_stock_masked_language_model():
    recipe = early_recipe(random=0.1, keep=0.1)
    model, batch = make_model(recipe), make_batch(recipe)
    stock = RobertaForMaskedLM(model.config.encoder).eval()
    stock.roberta.load_state_dict(model.encoder.state_dict())
    stock.lm_head.dense.load_state_dict(model.head.dense.state_dict())
    stock.lm_head.layer_norm.load_state_dict(model.head.norm.state_dict())
    stock.lm_head.bias.data.copy_(model.head.bias)
    labels = torch.full((4, 32), -100).scatter(1, batch["predicted_slots"], batch["labels"])
    with torch.no_grad():
        theirs = stock(input_ids=batch["input_ids"], labels=labels)
        torch.testing.assert_close(model(**batch).loss, theirs.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_over_fits_one_small_batch(family):
    assert loss_after_fitting_one_batch(early_recipe(family)) < 0.05


def test_dropped_positions_are_not_in_the_input_at_all():
    recipe = early_recipe(drop=0.25)
    model, batch = make_model(recipe), make_batch(recipe)
    assert batch["input_ids"].shape == (4, 24)
    assert torch.isfinite(model(**batch).loss)


def test_saving_and_loading_keeps_the_loss_to_the_bit(tmp_path):
    recipe = early_recipe()
    model, batch = make_model(recipe), make_batch(recipe)
    model.save_pretrained(tmp_path)
    assert torch.equal(EarlyMaskForPreTraining.from_pretrained(tmp_path).eval()(**batch).loss, model(**batch).loss)
