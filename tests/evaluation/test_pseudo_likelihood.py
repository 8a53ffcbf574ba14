"""Pseudo-log-likelihoods, against a naive loop: one token at a time, one sentence at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from latemask.evaluation.language_models import HiddenAtInput, HiddenByObjective, LanguageModel
from latemask.evaluation.pseudo_likelihood import score_chunk, scored, tokenized
from tests.conftest import FAMILIES, KINDS, joining, make_model, tiny_recipe

TEXTS = ["Return the value of the key.", "The lists are sorted.", "Values of a dictionary", "It is not.", "Is"]
RECIPES = {**{kind: joining(kind) for kind in KINDS}, "early": tiny_recipe(objective="early", options=None)}
RECIPES |= {"mae-lm": tiny_recipe(objective="mae-lm", options=None), "mix": joining("cross-only", mix=True)}


def opened(hidden, data) -> LanguageModel:
    return LanguageModel("model", hidden, data.tokenizer, "", longest=32)


def scores(model: LanguageModel, metric="token") -> list[float]:
    sentences = tokenized(TEXTS, model.tokenizer)
    found = {}
    with torch.inference_mode():
        for chunk in sentences.chunks(range(len(TEXTS)), model.longest):
            found |= dict(zip(chunk, score_chunk(model, sentences, chunk, metric), strict=True))
    return [found[number] for number in range(len(TEXTS))]


def opinionated(model):
    """Make weights so large that the model has opinions."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


@torch.inference_mode()
def naive(text: str, tokenizer, log_probability, by_word: bool = False) -> float:
    """Hide each token, alone or with the rest of its word, and ask for it."""
    encoded = tokenizer(text)
    ids, words = torch.tensor(encoded.input_ids), encoded.word_ids()
    total = 0.0
    for place, word in enumerate(words):
        if word is not None:
            rest = [p for p in range(place, len(words)) if words[p] == word] if by_word else [place]
            total += float(log_probability(ids, rest))
    return total


def of_ours(model):
    """A pre-training model, asked for one token through its own forward pass."""

    def log_probability(ids, hidden):
        positions = torch.arange(len(ids))
        visible = [p for p in range(len(ids)) if p not in hidden]
        if model.config.objective == "late":
            batch = (ids[visible][None], positions[visible][None], positions[hidden][None])
        elif model.config.objective == "mae-lm":
            batch = (ids[visible][None], positions[visible][None], positions[hidden][None], torch.tensor([[4]]))
        else:
            batch = (ids.index_fill(0, torch.tensor(hidden), 4)[None], positions[None], positions[hidden][None])
        return model(*batch).logits[0, 0].log_softmax(-1)[ids[hidden[0]]]

    return log_probability


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("metric", ["token", "word"])
def test_a_model_of_ours_is_asked_as_it_was_trained(data, name, metric):
    model = opinionated(make_model(RECIPES[name], data.vocabulary))
    found = scores(opened(HiddenByObjective(model), data), metric)
    expected = [naive(text, data.tokenizer, of_ours(model), metric == "word") for text in TEXTS]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(value, 2) for value in found}) == len(TEXTS)


@pytest.mark.parametrize("family", [*FAMILIES, "albert"])
def test_a_stock_model_scores_as_in_a_loop_of_plain_transformers(data, family):
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    settings = {"vocab_size": data.vocabulary.size, "max_position_embeddings": 64, "pad_token_id": 1, **small}
    if family == "albert":
        settings["embedding_size"] = 16
    if family == "distilbert":
        settings |= {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
        settings = {name: value for name, value in settings.items() if name not in small}
    model = opinionated(AutoModelForMaskedLM.from_config(AutoConfig.for_model(family, **settings)))

    def log_probability(ids, hidden):
        seen = ids.index_fill(0, torch.tensor(hidden), 4)[None]
        return model(input_ids=seen).logits[0, hidden[0]].log_softmax(-1)[ids[hidden[0]]]

    found = scores(opened(HiddenAtInput(model), data))
    assert found == pytest.approx([naive(text, data.tokenizer, log_probability) for text in TEXTS], abs=1e-5)


def test_the_head_works_at_the_hidden_token_alone_and_is_whole_again_afterwards(data):
    config = AutoConfig.for_model("bert", vocab_size=data.vocabulary.size, hidden_size=32, num_hidden_layers=1)
    config.num_attention_heads = 2
    model = AutoModelForMaskedLM.from_config(config).eval()
    rows = []
    model.get_output_embeddings().register_forward_hook(lambda module, given, output: rows.append(output.shape[:2]))
    scores(opened(HiddenAtInput(model), data))
    assert {positions for _, positions in rows} == {1}
    assert model(input_ids=torch.tensor([[0, 7, 8, 2]])).logits.shape[1] == 4


def test_nothing_is_padded_and_no_chunk_is_too_long(data):
    sentences = tokenized([*TEXTS, "of " * 40], data.tokenizer)
    chunks = sentences.chunks(range(len(sentences)), 32)
    assert sorted(number for chunk in chunks for number in chunk) == list(range(len(TEXTS)))
    assert all(len({len(sentences.ids[number]) for number in chunk}) == 1 for chunk in chunks)


class Uniform:
    """Says the same of every token."""

    model = SimpleNamespace(device="cpu")

    def logits(self, ids, is_hidden):
        return torch.zeros(len(ids), 1000)


def test_a_uniform_model_gives_every_token_the_same(data):
    sentences = tokenized(TEXTS, data.tokenizer)
    counts = [int((words >= 0).sum()) for words in sentences.words]
    assert scores(opened(Uniform(), data)) == pytest.approx([-np.log(1000) * count for count in counts])


def test_threads_share_the_work_and_change_nothing(data):
    config = AutoConfig.for_model("bert", vocab_size=data.vocabulary.size, hidden_size=32, num_hidden_layers=1)
    config.num_attention_heads = 2
    model = opened(HiddenAtInput(opinionated(AutoModelForMaskedLM.from_config(config))), data)
    sentences = tokenized([f"{text} {number}" for text in TEXTS for number in range(20)], data.tokenizer)
    chunks = [[number] for number in range(len(sentences))]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = list(scored(model, sentences, chunks, "token"))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    with torch.inference_mode():
        assert found == [score_chunk(model, sentences, chunk, "token") for chunk in chunks]
