"""The head of a stock …ForMaskedLM is taken over whole, and given back."""

import pytest
import torch

from latemask.model import EncoderForPreTraining, masked_language_model
from tests.conftest import FAMILIES, VOCABULARY
from tests.families.stock import masked_rows, stock_of


def saved(folder, family, **changes):
    stock = stock_of(family, **changes)
    stock.save_pretrained(folder)
    return stock


def assert_taken_and_given_back(stock, folder):
    ours = EncoderForPreTraining.from_encoder(str(folder), objective="early").eval()
    batch, ids, labels = masked_rows()
    with torch.no_grad():
        theirs = stock(input_ids=ids, labels=labels)
        torch.testing.assert_close(ours(**batch).loss, theirs.loss, rtol=1e-4, atol=1e-4)
        back = masked_language_model(ours)(input_ids=ids)
    torch.testing.assert_close(back.logits, theirs.logits, rtol=1e-4, atol=1e-5)
    assert_given_back_after_training(ours, batch)
    return ours


def assert_given_back_after_training(ours, batch):
    """What the stock head has no place for, such as a bias of ModernBERT's norm, is not zero any more then."""
    with torch.no_grad():
        for weight in ours.head.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
        back = masked_language_model(ours)(input_ids=batch["input_ids"]).logits
        expected = ours(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
    slots = batch["predicted_slots"][..., None].expand(-1, -1, VOCABULARY.size)
    torch.testing.assert_close(back.gather(1, slots), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_stock_head_computes_what_it_did(family, tied, tmp_path):
    stock = saved(tmp_path, family, tied=tied)
    ours = assert_taken_and_given_back(stock, tmp_path)
    assert (ours.head.words is None) == tied


def test_an_activation_that_is_the_configs_is_taken_from_there(tmp_path):
    for family, changes in {"bert": {"hidden_act": "relu"}, "distilbert": {"activation": "relu"}}.items():
        stock = saved(tmp_path / family, family, **changes)
        assert_taken_and_given_back(stock, tmp_path / family)


def test_electras_narrow_head(tmp_path):
    stock = saved(tmp_path, "electra", embedding_size=12)
    assert assert_taken_and_given_back(stock, tmp_path).head.dense.weight.shape == (12, 32)


def test_debertas_narrow_head(tmp_path):
    stock = saved(tmp_path, "deberta-v2", embedding_size=12)
    assert assert_taken_and_given_back(stock, tmp_path).head.dense.weight.shape == (12, 32)


@pytest.mark.parametrize("says_so", [True, False])
def test_the_head_of_deberta_v3_is_found_even_where_the_config_does_not_speak_of_it(says_so, tmp_path):
    stock = saved(tmp_path, "deberta-v2", legacy=False)
    if not says_so:
        file = tmp_path / "config.json"
        file.write_text(file.read_text().replace('"legacy": false', '"legacy": true'))
    ours = assert_taken_and_given_back(stock, tmp_path)
    assert ours.config.encoder.legacy is False
