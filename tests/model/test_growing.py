"""Going on with new pieces: old words are what they were, new ones begin as the mean of what spelled them."""

import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from latemask import UserError, plan, prepare, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.model import build_model, load_model
from latemask.model.growing import grown
from latemask.model.stock import open_stock
from latemask.recipe import BudgetRecipe, EncoderRecipe, load_recipe
from latemask.text import Mixture
from latemask.text.tokenizer import load_tokenizer
from latemask.training.job import plan_job
from tests.conftest import tiny_recipe
from tests.text.kinds_of_tokenizers import make, save

PLAIN = "the old friends return in the morning"


@pytest.fixture(scope="module")
def corpus_of_new_words(tmp_path_factory):
    path = tmp_path_factory.mktemp("medicine") / "in.txt"
    words = [f"{start}{end}" for start in ("haemo", "cardio", "neuro", "osteo", "hepato") for end in _ENDS]
    path.write_text(
        "\n\n".join(f"The {word} of a {words[-n]}, and the {word} again." * 3 for n, word in enumerate(words))
    )
    return path


_ENDS = ("cyte", "logy", "pathy", "globin", "blast", "gram", "genic", "scope", "plasty", "tomy", "lysis", "stasis")


@pytest.fixture(scope="module", params=["bert", "modernbert", "xlm-roberta", "modernbert-untied"])
def start(request, tmp_path_factory, corpus_of_new_words):
    """The folder of an encoder with a head, and data whose tokenizer extends its own."""
    folder = tmp_path_factory.mktemp("start")
    kind = request.param.removesuffix("-untied")
    save(kind, folder / "stock")
    tokenizer = load_tokenizer(folder / "stock")
    family = {"xlm-roberta": "roberta"}.get(kind, kind)
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer) + 3,  # rows that no piece has
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings="untied" not in request.param,
        layer_types=["full_attention"] * 2,
        global_attn_every_n_layers=1,
    )
    torch.manual_seed(0)
    stock = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for weight in stock.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    stock.save_pretrained(folder / "stock")
    options = {"extend": str(folder / "stock"), "new_pieces": 20}
    return folder / "stock", prepare(corpus_of_new_words, out=folder / "data", **options)


def job_of(start, steps=2, **changes):
    folder, data = start
    recipe = tiny_recipe(budget=BudgetRecipe(steps=steps), encoder=EncoderRecipe(init=str(folder)), **changes)
    return plan_job(recipe, Mixture.open(data.folder))


def test_old_words_are_what_they_were_and_new_ones_are_means(start):
    folder, data = start
    job = job_of(start)
    old = open_stock(str(folder))
    before = old.encoder.get_input_embeddings().weight.detach().clone()
    model = build_model(job.recipe, data.vocabulary, job.new_pieces).eval()
    tokenizer, known = load_tokenizer(folder), len(load_tokenizer(folder))
    assert model.words.shape[0] == job.recipe.encoder.vocab_size == model.config.encoder.vocab_size
    assert model.words.shape[0] % 64 == 0
    assert model.words.shape[0] >= data.vocabulary.size
    assert torch.equal(model.words[:known], before[:known])
    for number, ids in enumerate(job.new_pieces, known):
        piece = data.tokenizer.convert_ids_to_tokens(number)
        assert list(ids) == [token.id for token in tokenizer.backend_tokenizer.model.tokenize(piece)]
        assert len(ids) > 1
        assert torch.allclose(model.words[number], before[list(ids)].mean(0), atol=1e-6)
        assert torch.allclose(model.head.bias[number], old.head["bias"][list(ids)].mean(), atol=1e-6)
        if "words" in old.head:
            assert torch.allclose(model.head.words[number], old.head["words"][list(ids)].mean(0), atol=1e-6)


def test_rows_without_a_piece_are_the_mean_with_the_lowest_bias(start):
    folder, _ = start
    old, known = open_stock(str(folder)), len(load_tokenizer(folder))
    table = old.encoder.get_input_embeddings().weight.detach().clone()
    new = grown(open_stock(str(folder)), known + 80, [[5, 6], [7, 8, 9]], known + 2)
    words = new.encoder.get_input_embeddings().weight
    assert torch.allclose(words[known + 3 :], table[:known].mean(0), atol=1e-6)  # 3 rows had none before
    assert torch.equal(words[known + 2], table[known + 2])
    assert (new.head["bias"][known + 3 :] == old.head["bias"][:known].min()).all()
    assert len(new.head["bias"]) == len(words) == new.encoder.config.vocab_size == known + 80


def test_states_and_logits_of_old_words_are_the_same(start):
    folder, data = start
    job = job_of(start, objective="early")
    known = len(load_tokenizer(folder))
    ids = data.tokenizer(PLAIN, return_tensors="pt").input_ids
    assert torch.equal(ids, load_tokenizer(folder)(PLAIN, return_tensors="pt").input_ids)
    assert ids.max() < known
    from transformers import AutoModelForMaskedLM

    stock = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model = build_model(job.recipe, data.vocabulary, job.new_pieces).eval()
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        states = model.encode(ids, positions)
        expected = stock(ids, output_hidden_states=True)
        assert torch.allclose(states, stock.base_model(ids).last_hidden_state, atol=1e-5)
        assert torch.allclose(model.predict(states, None).logits[..., :known], expected.logits[..., :known], atol=1e-4)


def test_a_run_trains_goes_on_and_is_opened_by_anybody(start, tmp_path, monkeypatch, capsys):
    folder, data = start
    recipe = job_of(start, 4).recipe
    assert recipe.encoder.vocab_size % 64 == 0
    recipe = replace(recipe, encoder=EncoderRecipe(init=str(folder)))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    assert f"{data.manifest['extension']['pieces']} new pieces, started from" in capsys.readouterr().err
    assert load_recipe(run.recipe_file).encoder.vocab_size == load_model(run.model).words.shape[0]
    tokenizer, model = AutoTokenizer.from_pretrained(run.encoder), AutoModel.from_pretrained(run.encoder)
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0]
    text = "The neuroblast of the old friends"
    assert tokenizer(text).input_ids == data.tokenizer(text).input_ids
    assert max(tokenizer(text).input_ids) >= len(load_tokenizer(folder))
    assert torch.isfinite(model(**tokenizer(text, return_tensors="pt")).last_hidden_state).all()
    again = pretrain(
        replace(recipe, encoder=EncoderRecipe(init=str(run.encoder))), data=data.folder, out=tmp_path / "again"
    )
    assert load_recipe(again.recipe_file).encoder.vocab_size == recipe_rows(run)


def recipe_rows(run):
    return load_recipe(run.recipe_file).encoder.vocab_size


def test_a_stopped_run_goes_on_to_the_same_weights_without_the_encoder(start, tmp_path):
    folder, data = start
    shutil.copytree(folder, tmp_path / "stock")
    recipe = replace(job_of(start, 4).recipe, encoder=EncoderRecipe(init=str(tmp_path / "stock")))
    whole = pretrain(recipe, data=data.folder, out=tmp_path / "whole")
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    shutil.rmtree(tmp_path / "stock")
    pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)
    one, other = (load_model(tmp_path / name / "model").state_dict() for name in ("whole", "run"))
    assert whole.path.is_dir()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_tokenizer_is_refused_with_both_remedies(start, tmp_path, corpus_of_new_words):
    folder, _ = start
    other = prepare(corpus_of_new_words, out=tmp_path / "other", vocab_size=320)
    with pytest.raises(UserError, match=r"another tokenizer.*--tokenizer.*--extend"):
        job_of((folder, other))
    recipe = tiny_recipe(budget=BudgetRecipe(steps=2), encoder=EncoderRecipe(init=str(folder)))
    with pytest.raises(UserError, match=r"another tokenizer.*--tokenizer.*--extend"):
        plan(recipe, data=other.folder)


def test_what_goes_on_with_new_pieces_can_be_planned(start):
    folder, data = start
    recipe = tiny_recipe(budget=BudgetRecipe(steps=2), encoder=EncoderRecipe(init=str(folder)))
    assert plan(recipe, data=data.folder).recipe.encoder.vocab_size == job_of(start).recipe.encoder.vocab_size


def test_a_table_that_is_too_small_for_its_own_tokenizer_is_refused(tmp_path, corpus_of_new_words):
    tokenizer = make("bert")
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer) - 20, hidden_size=32, num_attention_heads=2)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "stock")
    save("bert", tmp_path / "stock")
    data = prepare(corpus_of_new_words, out=tmp_path / "data", tokenizer=tmp_path / "stock")
    with pytest.raises(UserError, match=r"has \d+ rows in its word table, and its tokenizer \d+ pieces"):
        job_of((tmp_path / "stock", data))
