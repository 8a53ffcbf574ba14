"""Stock models made on the spot, by transformers alone."""

import torch
from transformers import AutoModelForMaskedLM

from latemask.families import FAMILIES
from latemask.recipe import EncoderRecipe, MaskRecipe, spelled_out
from tests.conftest import VOCABULARY, make_batch, make_rows, tiny_recipe

RECIPE = tiny_recipe(objective="early", mask=MaskRecipe(rate=0.4, random=0.1, keep=0.1))


def stock_of(family: str, tied: bool = True, **settings):
    """Make a stock …ForMaskedLM in which every weight matters, head and all."""
    encoder = EncoderRecipe(family, layers=2, width=32, heads=2, tied=tied, max_length=32)
    config = FAMILIES[family].config(spelled_out(tiny_recipe(encoder=encoder), VOCABULARY.size).encoder, VOCABULARY)
    config.update(settings)
    torch.manual_seed(0)
    stock = AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for weight in stock.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return stock


def masked_rows():
    """Return the batch, and the same as a stock model takes it: ids [B, S], labels [B, S] with -100 elsewhere."""
    batch = make_batch(RECIPE, make_rows())
    labels = torch.full_like(batch["input_ids"], -100).scatter(1, batch["predicted_slots"], batch["labels"])
    return batch, batch["input_ids"], labels
