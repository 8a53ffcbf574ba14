"""Families that turn queries and keys by their positions: what of a checkpoint's config they follow, or refuse."""

import pytest
import torch
from transformers import AutoConfig

from latemask.families import FAMILIES
from latemask.ground.errors import UserError
from latemask.model.pretraining import EarlyMaskForPreTraining
from latemask.model.stock import family_of
from latemask.recipe import EncoderRecipe, check_recipe
from tests.conftest import make_batch, make_model, make_rows, tiny_recipe
from tests.families.stock import masked_rows, stock_of

FLAT = ("eurobert", "nomic_bert", "gte")
ROTARY = (*FLAT, "esm", "modernbert")


@pytest.mark.parametrize("family", ROTARY)
def test_the_base_is_the_recipes_and_said_of_a_checkpoint(family):
    model = make_model(tiny_recipe(encoder=EncoderRecipe(family, layers=1, width=32, heads=2, rotary_base=500.0)))
    rotary = getattr(model.encoder, "rotary_emb", None) or model.encoder.rotary_embeddings
    found = [buffer for name, buffer in rotary.named_buffers() if name.endswith("inv_freq")]
    assert torch.allclose(found[0], 500.0 ** (-torch.arange(0, 16, 2) / 16))
    assert model.family.shape(model.encoder.config)["rotary_base"] == 500.0


@pytest.mark.parametrize("family", FLAT)
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_refused(family, kind):
    config = AutoConfig.for_model(family)
    config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UserError, match=f"'{kind}'.*how long the input is"):
        family_of(config)


def test_so_are_modernberts():
    config = AutoConfig.for_model("modernbert")
    config.rope_parameters["full_attention"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UserError, match=r"'dynamic'.*how long the input is"):
        family_of(config)


@pytest.mark.parametrize("family", FLAT)
def test_positions_that_are_stretched_evenly_are_the_stock_ones(family, tmp_path):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
    stock = stock_of(family, True, rope_parameters=rope)
    stock.save_pretrained(tmp_path)
    model = EarlyMaskForPreTraining.from_encoder(str(tmp_path)).eval()
    rows, visible = torch.from_numpy(make_rows()), make_batch(tiny_recipe())["visible_positions"]
    present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        theirs = stock.base_model(input_ids=rows, attention_mask=present).last_hidden_state
    torch.testing.assert_close(ours, theirs.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["eurobert", "nomic_bert"])
def test_heads_wider_than_their_share_are_refused(family):
    with pytest.raises(UserError, match="heads are 128 wide"):
        family_of(AutoConfig.for_model(family, head_dim=128))


@pytest.mark.parametrize("family", ROTARY)
def test_heads_of_an_odd_width_are_refused(family):
    with pytest.raises(UserError, match="rotary positions need it even"):
        check_recipe(tiny_recipe(encoder=EncoderRecipe(family, width=33, heads=3)))


def test_a_gte_without_segments_is_the_stock_one(tmp_path):
    stock = stock_of("gte", True, type_vocab_size=0)
    assert stock.gte.embeddings.token_type_embeddings is None
    stock.save_pretrained(tmp_path)
    batch, ids, labels = masked_rows()
    with torch.no_grad():
        ours = EarlyMaskForPreTraining.from_encoder(str(tmp_path)).eval()(**batch).loss
        assert ours.item() == pytest.approx(stock(input_ids=ids, labels=labels).loss.item(), abs=1e-4)


@pytest.mark.parametrize(("family", "activation"), [("nomic_bert", "relu"), ("gte", "gelu")])
def test_the_head_has_the_layers_activation_where_the_stock_one_has(family, activation):
    config = AutoConfig.for_model(family, hidden_act="relu")
    assert FAMILIES[family].head_shape(config).activation == activation
