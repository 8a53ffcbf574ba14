"""A tiny checkpoint of every family, made by transformers alone and with its kind of tokenizer, is opened exactly,
trained further with its head, and given back whole."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

from latemask import UserError, export, load_recipe, prepare, pretrain
from latemask.budget.flops import sequence_flops
from latemask.filling import Filler
from latemask.ground.errors import TimeIsUp
from latemask.masking.batches import Collator
from latemask.model import build_model, complete_recipe
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe, MaskRecipe
from latemask.text.tokenizer import vocabulary_of
from tests.conftest import FAMILIES, tiny_recipe
from tests.text.kinds_of_tokenizers import LETTERS, TEXTS, make, save

LENGTH, LAYERS = 64, 4
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 48}
OWN = {
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 3},
    "electra": {"embedding_size": 12},
    "distilbert": {"dim": 32, "n_layers": LAYERS, "n_heads": 4, "hidden_dim": 48, "sinusoidal_pos_embds": True},
    "eurobert": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "nomic_bert": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "gte": {"type_vocab_size": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0}},
    "esm": {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
}
KINDS_OF_TOKENIZERS = {"roberta-prelayernorm": "roberta", "electra": "bert", "nomic_bert": "bert", "gte": "xlm-roberta"}


def kind_of(family: str) -> str:
    return KINDS_OF_TOKENIZERS.get(family, family)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def checkpoint(family, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / family
    save(kind_of(family), folder)
    words = vocabulary_of(make(kind_of(family)))
    ids = {"pad_token_id": words.pad, "bos_token_id": words.bos, "eos_token_id": words.eos}
    ids |= {"cls_token_id": words.bos, "sep_token_id": words.eos} if family == "modernbert" else {}
    ids |= {"mask_token_id": words.mask} if family in ("esm", "eurobert") else {}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = {"vocab_size": words.size + 3, "max_position_embeddings": 80, **ids}
    own = OWN.get(family, {})
    config = AutoConfig.for_model(family, **settings, **({} if family == "distilbert" else SIZES | dropout), **own)
    torch.manual_seed(0)
    stock = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for weight in stock.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    stock.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stock(checkpoint):
    return AutoModelForMaskedLM.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def words(family):
    return vocabulary_of(make(kind_of(family)))


def recipe_for(checkpoint, **changes):
    return tiny_recipe(length=LENGTH, encoder=EncoderRecipe(init=str(checkpoint)), **changes)


def opened(checkpoint, words, **changes):
    recipe = complete_recipe(recipe_for(checkpoint, **changes), words)
    return recipe, build_model(recipe, words).eval()


def batch_of(recipe, words, seed=0):
    ordinary = [number for number in range(words.size) if number not in words.special]
    chosen = torch.randint(len(ordinary), (4, LENGTH), generator=torch.Generator().manual_seed(seed))
    rows = torch.tensor(ordinary)[chosen]
    rows[:, 0] = words.bos
    samples = [{"ids": row, "index": index} for index, row in enumerate(rows.numpy())]
    how = {"objective": recipe.objective, "options": recipe.options}
    return rows, Collator(recipe.counts, words, 0, **how)(samples)


def test_states_are_the_stock_models_with_nothing_hidden_and_with_positions_hidden(checkpoint, stock, words):
    recipe, model = opened(checkpoint, words)
    rows, batch = batch_of(recipe, words)
    visible = batch["visible_positions"]
    present = torch.zeros(4, LENGTH, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        whole = model.encode(rows, torch.arange(LENGTH).expand(4, -1))
        ours = model.encode(batch["visible_ids"], visible)
        everything = torch.ones_like(rows)
        plain = stock.base_model(input_ids=rows, attention_mask=everything).last_hidden_state
        hidden = stock.base_model(input_ids=rows, attention_mask=present).last_hidden_state
    torch.testing.assert_close(whole, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, hidden.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)


def stock_loss(stock, rows, slots, labels, words):
    ids = rows.scatter(1, slots, words.mask)
    wanted = torch.full_like(rows, -100).scatter(1, slots, labels)
    with torch.no_grad():
        return stock(input_ids=ids, attention_mask=torch.ones_like(ids), labels=wanted).loss


def test_early_before_the_first_step_has_the_stock_models_loss(checkpoint, stock, words):
    recipe, model = opened(checkpoint, words, objective="early", mask=MaskRecipe(rate=0.15))
    rows, batch = batch_of(recipe, words)
    expected = stock_loss(stock, rows, batch["predicted_slots"], batch["labels"], words)
    assert model(**batch).loss.item() == pytest.approx(expected.item(), abs=1e-4)


def test_so_has_late_where_masks_join_the_first_layer_both_ways(family, checkpoint, stock, words):
    """Then a [MASK] is a word like any other, and the vector that it starts as is that of the mask token."""
    if family == "esm":
        pytest.skip("stock ESM with token_dropout scales words up by the share of <mask>s that it sees")
    join = Join(layers=LAYERS, two_way=True)
    recipe, model = opened(checkpoint, words, options=join, mask=MaskRecipe(rate=0.15))
    rows, batch = batch_of(recipe, words)
    expected = stock_loss(stock, rows, batch["masked_positions"], batch["labels"], words)
    assert model(**batch).loss.item() == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("kind", ["inside", "cross"])
def test_another_id_under_a_mask_changes_nothing(kind, checkpoint, words):
    recipe, model = opened(checkpoint, words, options=Join(kind))
    (rows, batch), (others, _) = batch_of(recipe, words), batch_of(recipe, words, seed=1)
    visible = batch["visible_positions"]
    other = others.scatter(1, visible, rows.gather(1, visible))
    samples = [{"ids": row, "index": index} for index, row in enumerate(other.numpy())]
    changed = Collator(recipe.counts, words, 0, objective="late", options=recipe.options)(samples)
    assert not torch.equal(other, rows)
    found = [model(**{k: v for k, v in one.items() if k != "labels"}).logits for one in (batch, changed)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "changes", [{"objective": "early"}, {}, {"options": Join("self")}], ids=["early", "late", "self"]
)
def test_flops_are_what_torch_counts(changes, checkpoint, words):
    train = replace(tiny_recipe().train, batch_size=4)
    recipe, model = opened(checkpoint, words, train=train, **changes)
    _, batch = batch_of(recipe, words)
    labels = batch.pop("labels")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model.train()(**batch).logits.flatten(0, 1), labels.flatten()).backward()
    assert sequence_flops(recipe).training == counter.get_total_flops() / 4


def text_for(family: str, folder: Path) -> Path:
    lines = [f"{text} Number {number}." for number, text in enumerate(TEXTS * 12)]
    if family == "esm":
        proteins = LETTERS[:20]
        lines = ["".join(proteins[(i * i + n * i) % 20] for i in range(90)) for n in range(150)]
    path = folder / "text.txt"
    path.write_text("\n\n".join(lines), "utf-8")
    return path


def test_it_is_trained_further_stopped_resumed_and_given_back_whole(family, checkpoint, tmp_path, monkeypatch, capsys):
    data = prepare([text_for(family, tmp_path)], out=tmp_path / "data", tokenizer=str(checkpoint), validation=0.1)
    train = {
        "batch_size": 8,
        "log_every": 10,
        "save_every": 10,
        "eval_rows": 8,
        "precision": "fp32",
        "finish_early": 0.2,
    }
    changes = {"length": 32, "encoder": {"init": str(checkpoint)}, "train": train, "budget": {"steps": 30}}
    recipe, count = load_recipe("adapt", changes), iter(range(1, 99))
    monkeypatch.setattr("latemask.ground.signals.StopRequest.is_asked", lambda self: next(count) == 17)
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")
    assert "its head is kept; learning rate 0.0024" in capsys.readouterr().err
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)
    first, *_, last = [row for row in run.metrics() if "eval_loss" in row]
    assert (first["step"], last["step"]) == (0, 30)
    assert last["eval_loss"] < first["eval_loss"]

    tokenizer = AutoTokenizer.from_pretrained(run.encoder)
    encoder, about = AutoModel.from_pretrained(run.encoder, output_loading_info=True)
    assert all("pooler" in name for name in about["missing_keys"])
    assert encoder.config.model_type == family
    folder = export(run.path, out=tmp_path / "mlm", mlm=True)
    _, about = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    text = "L A <mask> V" if family == "esm" else "the quick <mask> fox"
    (ours,) = Filler(run.path).predict(text, top=3)
    theirs = pipeline("fill-mask", model=str(folder))(text.replace("<mask>", tokenizer.mask_token), top_k=3)
    assert [one.probability for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-4)


def test_longer_rows_are_for_rotary_families_alone(family, checkpoint, words):
    recipe = replace(recipe_for(checkpoint), length=256)
    if family in ("modernbert", "eurobert", "nomic_bert", "gte", "esm"):
        longer = replace(recipe, encoder=replace(recipe.encoder, rotary_base=77_000.0))
        encoder = complete_recipe(longer, words).encoder
        assert (encoder.max_length, encoder.rotary_base) == (256, 77_000)
        model = build_model(complete_recipe(longer, words), words)
        assert model.encoder.config.max_position_embeddings == 256
        assert "77000" in model.encoder.config.to_json_string()
        places = model.family.places(model.encoder, torch.zeros(1, 4, 32), torch.arange(4)[None])
        (cosines, _), *_ = places.rotations.values()
        expected = torch.cos(3 * 77_000.0 ** (-torch.arange(0, 8, 2) / 8))
        torch.testing.assert_close(cosines[0, 3, :4], expected)
    else:
        with pytest.raises(UserError, match=r"takes \d+ tokens at most.*lower length"):
            complete_recipe(recipe, words)
