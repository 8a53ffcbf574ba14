"""A start from the corpus: what was counted is in the weights, and nothing else was touched."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from latemask import pretrain, starts
from latemask.ground.errors import TimeIsUp
from latemask.masking.samples import SampleDataset
from latemask.model import build_model, complete_recipe
from latemask.recipe import BudgetRecipe, EncoderRecipe
from latemask.starts import STARTS, Corpus, start, start_head
from latemask.text import Mixture
from latemask.text.neighbours import neighbours_of
from tests.conftest import FAMILIES, joining, tiny_recipe


@pytest.fixture
def mixture(data) -> Mixture:
    return Mixture.open(data.folder)


def encoder(start="random", **changes) -> EncoderRecipe:
    return EncoderRecipe(start=start, **{"layers": 3, "width": 32, "heads": 2, **changes})


def started(recipe, mixture):
    """A model of the recipe, and the same before its start."""
    recipe = complete_recipe(recipe, mixture.vocabulary)
    models = built_twice(recipe, mixture)
    start(models[0], recipe, mixture)
    return models


def built_twice(recipe, mixture):
    models = []
    for _ in range(2):
        torch.manual_seed(recipe.seed)
        models.append(build_model(recipe, mixture.vocabulary))
    return models


def changed(model, before) -> set[str]:
    weights = zip(model.named_parameters(), before.parameters(), strict=True)
    return {name for (name, ours), theirs in weights if not torch.equal(ours, theirs)}


def test_random_leaves_everything_as_it_was_drawn(mixture):
    assert changed(*started(tiny_recipe(encoder=encoder()), mixture)) == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_words_change_the_word_table_and_the_heads_bias_alone(mixture, family):
    model, before = started(tiny_recipe(encoder=encoder("words", family=family)), mixture)
    names = {"head", "tok_embeddings", "word_embeddings", "embed_tokens"}
    assert {name.split(".")[-2:][0] for name in changed(model, before)} <= names
    assert len(changed(model, before)) == (1 if model.family.plain_head else 2)


def test_words_that_are_known_are_alike_as_counted_and_as_long_as_the_others(mixture):
    model, before = started(tiny_recipe(encoder=encoder("words")), mixture)
    vectors = torch.from_numpy(Corpus(mixture).vectors(32))
    known = vectors.any(1)
    words = model.words.detach()[: len(vectors)]
    cosines = torch.nn.functional.normalize(words[known]) @ torch.nn.functional.normalize(words[known]).T
    torch.testing.assert_close(cosines, vectors[known] @ vectors[known].T, atol=1e-4, rtol=0)
    assert words[known].std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(words[~known], before.words.detach()[: len(vectors)][~known])
    assert not known[list(mixture.vocabulary.special)].any()


def test_without_states_the_head_says_how_frequent_words_are(mixture):
    model, _ = started(tiny_recipe(encoder=encoder("words")), mixture)
    counts = Corpus(mixture).neighbours.frequencies
    shares = model.head.bias.softmax(0).detach().numpy()[: len(counts)]
    np.testing.assert_allclose(shares, (counts + 0.5) / (counts + 0.5).sum(), rtol=1e-4)


def test_rows_beyond_the_tokenizer_stay_as_they_were(mixture):
    size = mixture.vocabulary.size
    model, before = started(tiny_recipe(encoder=encoder("corpus", vocab_size=size + 64)), mixture)
    assert torch.equal(model.words[size:], before.words[size:])
    assert not model.head.bias[size:].any()


def test_seeds_turn_the_words_and_nothing_else(mixture):
    one, other = (started(tiny_recipe(seed=seed, encoder=encoder("words")), mixture)[0] for seed in (0, 1))
    again = started(tiny_recipe(encoder=encoder("words")), mixture)[0]
    assert torch.equal(one.words, again.words)
    known = torch.from_numpy(Corpus(mixture).vectors(32)).any(1)
    a, b = (model.words.detach()[: len(known)][known] for model in (one, other))
    assert not torch.allclose(a, b, atol=1e-3)
    torch.testing.assert_close(a @ a.T, b @ b.T, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("recipe", [joining("inside"), tiny_recipe(objective="early")], ids=["late", "early"])
def test_a_bag_of_neighbours_knows_something_before_the_first_step(mixture, recipe):
    """More than frequencies: that is what `words` alone knows."""
    losses = {}
    for name in ("words", "corpus"):
        chosen = tiny_recipe(objective=recipe.objective, encoder=encoder(name, width=64))
        model, _ = started(chosen, mixture)
        losses[name] = loss_on_text(model.eval(), complete_recipe(chosen, mixture.vocabulary), mixture)
    assert losses["corpus"] < losses["words"]


def loss_on_text(model, recipe, mixture) -> float:
    from latemask.masking.batches import Collator

    rows, weights = mixture.rows("train", recipe.length)
    samples = SampleDataset(rows, 256, weights=weights, shuffle=False)
    batch = Collator.validating(recipe, mixture.vocabulary)([samples[index] for index in range(256)])
    with torch.no_grad():
        return model(**batch).loss.item()


def test_attention_begins_near(mixture):
    model, _ = started(tiny_recipe(encoder=encoder("corpus")), mixture)
    for layer in model.encoder.layers:
        queries, keys, _ = layer.attn.Wqkv.weight.chunk(3)
        assert torch.equal(queries, keys)


def test_layers_that_masks_join_hand_on_what_they_attend_to(mixture):
    recipe = replace(joining("inside", layers=1), encoder=encoder("corpus"))
    model, before = started(recipe, mixture)
    passed = [layer.attn.Wo.weight @ layer.attn.Wqkv.weight.chunk(3)[2] for layer in model.encoder.layers]
    torch.testing.assert_close(passed[-1], 0.64 * torch.eye(32), atol=1e-5, rtol=0)
    assert torch.equal(model.encoder.layers[0].attn.Wo.weight, before.encoder.layers[0].attn.Wo.weight)


def test_too_little_text_is_said_and_starts_at_random(mixture, monkeypatch, capsys):
    monkeypatch.setattr(starts, "_FEWEST_TOKENS", 10**6)
    assert changed(*started(tiny_recipe(encoder=encoder("corpus")), mixture)) == set()
    assert "starting at random" in capsys.readouterr().err


# The head of an encoder that had none


@pytest.fixture
def bare_encoder(data, tmp_path):
    """An encoder of some training, without a head."""
    return pretrain(tiny_run(), data=data.folder, out=tmp_path / "bare").encoder


def test_a_new_head_begins_with_the_frequencies_and_compares_states_as_they_are(mixture, bare_encoder):
    recipe = complete_recipe(tiny_recipe(encoder=encoder("corpus", init=str(bare_encoder))), mixture.vocabulary)
    model, before = built_twice(recipe, mixture)
    assert start_head(model, recipe, mixture) == "corpus"
    assert changed(model, before) == {"head.bias", "head.dense.weight"}
    assert torch.equal(model.head.dense.weight, torch.eye(32))
    tokens = torch.from_numpy(neighbours_of(mixture).frequencies)
    assert int(model.head.bias[: len(tokens)].argmax()) == int(tokens.argmax())


def test_a_run_whose_start_is_random_draws_its_new_head_too(mixture, bare_encoder):
    recipe = complete_recipe(tiny_recipe(encoder=encoder("random", init=str(bare_encoder))), mixture.vocabulary)
    model, before = built_twice(recipe, mixture)
    assert start_head(model, recipe, mixture) == "random"
    assert changed(model, before) == set()


def test_a_run_begins_with_the_new_head_and_says_so(data, tmp_path, bare_encoder, capsys):
    losses = {}
    for name in ("random", "corpus"):
        recipe = replace(tiny_run(), encoder=encoder(name, init=str(bare_encoder)), budget=BudgetRecipe(steps=1))
        run = pretrain(recipe, data=data.folder, out=tmp_path / name)
        losses[name] = next(row["eval_loss"] for row in run.metrics() if row["step"] == 0)
    assert losses["corpus"] < losses["random"] - 0.5
    assert capsys.readouterr().err.count("the new head starts with how frequent each token is") == 1


def test_every_start_says_what_it_is():
    assert {"random", "words", "corpus"} <= set(STARTS.names())
    assert all(STARTS[name].__doc__ for name in STARTS)


# In a run


def tiny_run(**changes):
    recipe = tiny_recipe(encoder=encoder("corpus"), budget=BudgetRecipe(steps=4), **changes)
    return replace(recipe, train=replace(recipe.train, save_every=2))


def weights(out):
    return load_file(out / "model" / "model.safetensors")


def assert_same_weights(out, other):
    ours, theirs = weights(out), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def stop_everything(*_, **__):
    raise KeyboardInterrupt


def test_a_run_that_was_killed_while_counting_ends_as_if_it_had_not_been(data, tmp_path, monkeypatch):
    shutil.copytree(data.folder, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "neighbours", ignore_errors=True)
    pretrain(tiny_run(), data=data.folder, out=tmp_path / "whole")
    with monkeypatch.context() as killed:
        killed.setattr("latemask.text.neighbours._counted", stop_everything)
        with pytest.raises(KeyboardInterrupt):
            pretrain(tiny_run(), data=tmp_path / "data", out=tmp_path / "killed")
    pretrain(tiny_run(), data=tmp_path / "data", out=tmp_path / "killed", resume=True)
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")


def test_a_run_that_goes_on_from_a_checkpoint_does_not_count(data, tmp_path, monkeypatch):
    pretrain(tiny_run(), data=data.folder, out=tmp_path / "whole")
    with pytest.raises(TimeIsUp):
        pretrain(tiny_run(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    monkeypatch.setattr("latemask.text.neighbours.neighbours_of", stop_everything)
    pretrain(tiny_run(), data=data.folder, out=tmp_path / "run", resume=True)
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_what_the_start_took_is_written_down_and_counted(data, tmp_path):
    run = pretrain(tiny_run(), data=data.folder, out=tmp_path / "run")
    assert run.record["start"] == "corpus"
    assert run.record["start_seconds"] > 0
    assert run.metrics()[0]["seconds"] >= run.record["start_seconds"]
    assert "| start | corpus, counted in" in (run.encoder / "README.md").read_text("utf-8")


def test_a_run_with_too_little_text_does_not_claim_another_start(data, tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "_FEWEST_TOKENS", 10**6)
    run = pretrain(tiny_run(), data=data.folder, out=tmp_path / "run")
    assert not {"start", "start_seconds"} & set(run.record)
    assert "| start | random |" in (run.encoder / "README.md").read_text("utf-8")


def test_an_encoder_that_was_trained_before_is_left_as_it_is(data, tmp_path):
    first = pretrain(tiny_run(), data=data.folder, out=tmp_path / "first")
    second = replace(tiny_run(), encoder=replace(encoder("corpus"), init=str(first.encoder)))
    second = replace(second, train=replace(second.train, learning_rate=1e-30), budget=BudgetRecipe(steps=1))
    again = pretrain(second, data=data.folder, out=tmp_path / "second")
    before, after = (load_file(run.encoder / "model.safetensors") for run in (first, again))
    assert all(torch.allclose(before[name], after[name], atol=1e-20) for name in before)
