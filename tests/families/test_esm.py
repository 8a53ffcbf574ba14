"""ESM rescales words by how many <mask>s it sees, and may have a table of positions."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from latemask import pretrain
from latemask.ground.errors import TimeIsUp, UserError
from latemask.model.pretraining import EarlyMaskForPreTraining, LateMaskForPreTraining
from latemask.model.stock import family_of, open_stock
from latemask.recipe import BudgetRecipe, EncoderRecipe, MaskRecipe
from tests.conftest import VOCABULARY, make_batch, make_rows, tiny_recipe
from tests.families.stock import masked_rows, stock_of

POSITIONS = {"rotary": {}, "table": {"position_embedding_type": "absolute", "max_position_embeddings": 34}}


def opened(folder, kind="rotary", **settings):
    """Save a stock ESM and return it with ours around it, late."""
    stock = stock_of("esm", True, **POSITIONS[kind], **settings)
    stock.save_pretrained(folder)
    return stock, LateMaskForPreTraining.from_encoder(str(folder), join="inside", length=32).eval()


@pytest.mark.parametrize("before", [False, True], ids=["", "norm before"])
@pytest.mark.parametrize("rescaled", [False, True], ids=["plain", "token_dropout"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_every_variant_is_the_stock_one_with_positions_hidden(kind, rescaled, before, tmp_path):
    """The stock model's attention mask leaves the hidden out of the share of <mask>s, too: both see none."""
    stock, model = opened(tmp_path, kind, token_dropout=rescaled, emb_layer_norm_before=before)
    rows, visible = torch.from_numpy(make_rows()), make_batch(tiny_recipe())["visible_positions"]
    present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        theirs = stock.esm(input_ids=rows, attention_mask=present).last_hidden_state
    torch.testing.assert_close(ours, theirs.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)
    assert model.family.longest(model.encoder.config) == 32


@pytest.mark.parametrize("rescaled", [False, True], ids=["plain", "token_dropout"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_with_masks_in_the_input_words_are_rescaled_as_the_stock_model_does(kind, rescaled, tmp_path):
    stock, _ = opened(tmp_path, kind, token_dropout=rescaled)
    batch, ids, labels = masked_rows()
    model = EarlyMaskForPreTraining.from_encoder(str(tmp_path)).eval()
    with torch.no_grad():
        assert model(**batch).loss.item() == pytest.approx(stock(input_ids=ids, labels=labels).loss.item(), abs=1e-4)


@pytest.mark.parametrize("rescaled", [False, True], ids=["plain", "token_dropout"])
def test_a_mask_is_what_the_stock_embeddings_make_of_it(rescaled, tmp_path):
    _, model = opened(tmp_path, "table", token_dropout=rescaled)
    encoder, mask = model.encoder, VOCABULARY.mask
    positions = torch.arange(3)[None]
    vectors = model.family.mask_input(encoder, mask).expand(1, 3, -1)
    ids = torch.tensor([[7, mask, 7]])
    ours = model.family.embed(encoder, positions, vectors=vectors)[:, 1]
    torch.testing.assert_close(ours, model.family.embed(encoder, positions, ids=ids)[:, 1])


def test_the_head_for_contacts_is_not_trained_and_shortened_with_the_layers(tmp_path):
    _, model = opened(tmp_path)
    contacts = model.encoder.contact_head.regression
    assert not any(weight.requires_grad for weight in model.encoder.contact_head.parameters())
    first = contacts.weight[:, :2].clone()
    model.family.shorten(model.encoder, 1)
    assert torch.equal(contacts.weight, first)
    assert not contacts.weight.requires_grad
    model.encoder.save_pretrained(tmp_path / "short")
    assert len(open_stock(str(tmp_path / "short")).encoder.encoder.layer) == 1


@pytest.mark.parametrize("names", [[], ["esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq"]], ids=len)
def test_a_checkpoint_without_the_frequencies_of_the_rotation_is_whole(names, tmp_path):
    """The ones on the Hub have them in every layer, as they once were, or not at all."""
    stock, _ = opened(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (saved,) = [name for name in weights if name.endswith("inv_freq")]
    frequencies = weights.pop(saved)
    save_file(weights | dict.fromkeys(names, frequencies), tmp_path / "model.safetensors", {"format": "pt"})
    found = open_stock(str(tmp_path))
    torch.testing.assert_close(found.encoder.rotary_embeddings.inv_freq, stock.esm.rotary_embeddings.inv_freq)
    assert found.head


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"is_folding_model": True}, "ESMFold"),
        ({"pad_token_id": None}, "no pad_token_id"),
        ({"token_dropout": True, "mask_token_id": None}, "no mask_token_id"),
    ],
    ids=str,
)
def test_what_cannot_be_opened_is_refused_with_the_reason(settings, reason):
    with pytest.raises(UserError, match=reason):
        family_of(AutoConfig.for_model("esm", **{"vocab_size": 33, "pad_token_id": 1, **settings}))


def test_an_average_of_its_weights_is_gone_on_with(data, tmp_path):
    """Its frequencies are saved with the weights, and are no weights."""
    base = tiny_recipe(encoder=EncoderRecipe(family="esm", layers=2, width=32, heads=2), mask=MaskRecipe(rate=0.3))
    recipe = replace(base, train=replace(base.train, average=0.5, save_every=2), budget=BudgetRecipe(steps=4))
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)
    assert run.is_finished()
