"""The states of every layer are those of an encoder that ends there; their pooling is a plain mean."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from latemask import UserError
from latemask.evaluation.encoders import open_encoders
from latemask.evaluation.layers import layer_states, pooled, tokenized
from latemask.model import build_model, complete_recipe
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import copy_tokenizer
from tests.conftest import tiny_recipe

TEXTS = ["one text", "another text that is longer", "and a third one"]


@pytest.fixture(scope="module", params=["modernbert", "roberta", "esm"])
def any_encoder(request, data, tmp_path_factory):
    """An encoder of each family, with norms that matter."""
    folder = tmp_path_factory.mktemp("encoders") / request.param
    shape = EncoderRecipe(family=request.param, layers=3, width=32, heads=2)
    model = build_model(complete_recipe(tiny_recipe(encoder=shape), data.vocabulary), data.vocabulary).encoder
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(str(folder))
    copy_tokenizer(data.tokenizer_folder, folder, 32)
    return open_encoders([str(folder)])[0]


def test_a_layer_gives_what_an_encoder_cut_behind_it_gives(any_encoder):
    rows = tokenized(any_encoder, TEXTS)
    ((batch, attended, layers),) = layer_states(any_encoder.plain(), any_encoder, rows)
    assert len(layers) == 4
    inputs = any_encoder.tokenizer([TEXTS[row] for row in batch], padding=True, return_tensors="pt")
    for count in (1, 2, 3):
        mismatched = {"ignore_mismatched_sizes": True}  # of esm's head for contacts, which has a number for every head
        shorter = AutoModel.from_pretrained(any_encoder.folder, num_hidden_layers=count, **mismatched).eval()
        with torch.no_grad():
            expected = shorter(**inputs).last_hidden_state
        real = attended.bool()
        torch.testing.assert_close(layers[count][real], expected[real], atol=1e-5, rtol=1e-5)


def test_the_vector_of_a_text_is_the_mean_of_its_states_and_the_first_one(encoder):
    model = encoder.plain().eval()
    with torch.no_grad():
        inputs = [encoder.tokenizer(text, return_tensors="pt") for text in TEXTS]
        states = [model(**one, output_hidden_states=True).hidden_states for one in inputs]
    vector = lambda state: torch.cat([state[0].mean(0), state[0, 0]]).numpy()  # noqa: E731
    (last,) = pooled(model, encoder, TEXTS).items()
    assert last[0] == "3"
    np.testing.assert_allclose(last[1], [vector(state[-1]) for state in states], atol=1e-5)
    every = pooled(model, encoder, TEXTS, every_layer=True)
    assert list(every) == ["0", "1", "2", "3", "mean of the last 3"]
    np.testing.assert_array_equal(every["3"], last[1])
    np.testing.assert_allclose(every["mean of the last 3"], (every["1"] + every["2"] + every["3"]) / 3, atol=1e-5)


def test_an_encoder_that_diverged_is_named(encoder):
    model = encoder.plain()
    with torch.no_grad():
        model.embeddings.tok_embeddings.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="its training diverged"):
        pooled(model, encoder, TEXTS)
