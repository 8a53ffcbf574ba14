"""Fitting on texts leaves less error than LoftQ, and LoftQ less than the nearest codes: on other texts, everywhere."""

from dataclasses import replace

import pytest
import torch

from latemask.evaluation.methods import fitting, freeze_encoder
from latemask.evaluation.methods.calibration import Texts
from latemask.evaluation.methods.fitting import Recipe, call_at, executed, linears_in, quantize
from latemask.evaluation.methods.places import layers_of, linears_of
from latemask.evaluation.methods.quantized import Shape, quantized_in
from tests.evaluation.conftest import make_task

FAMILIES = ["bert", "roberta", "modernbert"]
OTHERS = ["distilbert", "mpnet", "deberta-v2", "esm", "eurobert", "nomic_bert"]
RECIPE = Recipe(Shape(2, 16, 2, 1.0), "block", 6, 3e-3, 1e-2)


def texts(seed, batches=4):
    """Random words, and padding; behind <s>, as an encoder wants it."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(batches):
        ids = torch.randint(5, 900, (8, 16), generator=generator)
        mask = (torch.arange(16) < torch.randint(6, 17, (8, 1), generator=generator)).long()
        ids[:, 0] = 0
        found.append(Texts({"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}))
    return found


def stock_model(encoder, seed=0):
    """A model whose matrices have a few large columns and entries, as trained ones have."""
    model = encoder.with_head(make_task(), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, one in linears_of(model):
            one.weight *= 1 + 3 * (torch.rand(1, one.in_features, generator=generator) < 0.05)
            one.weight[torch.rand(one.weight.shape, generator=generator) < 0.01] *= 4
    freeze_encoder(model)
    return model.eval()


@torch.no_grad()
def states(model, given):
    """What every layer makes of the words of texts, the last one after the final norm."""
    found = [model.base_model(**one.inputs, output_hidden_states=True).hidden_states[1:] for one in given]
    return [
        torch.cat([one.seen(value) for one, value in zip(given, layer, strict=True)])
        for layer in zip(*found, strict=True)
    ]


def errors(encoder, fit, seed=0, **changes):
    """How far each layer is off after quantising, on texts that nothing was fitted on."""
    model, others = stock_model(encoder, seed), texts(100 + seed)
    wanted = states(model, others)
    quantize(model, texts(seed), replace(RECIPE, fit=fit, **changes), lambda _: None)
    return [float((is_ - should).square().mean()) for is_, should in zip(states(model, others), wanted, strict=True)]


@pytest.mark.parametrize(("family", "seed"), [("bert", 2), ("roberta", 1), ("modernbert", 0), ("modernbert", 1)])
def test_on_other_texts_fitted_is_better_than_loftq_and_loftq_than_the_nearest(stock, family, seed):
    encoder = stock(family, layers=2)
    block, layer, loftq, nearest = (errors(encoder, fit, seed) for fit in ("block", "layer", "loftq", "nearest"))
    for depth in range(2):
        assert block[depth] < 0.97 * loftq[depth]
        assert layer[depth] < 0.97 * loftq[depth]
        assert loftq[depth] < nearest[depth]


@pytest.mark.parametrize("fit", ["block", "layer"])
def test_a_layer_is_fitted_to_undo_the_errors_of_those_below(stock, fit, monkeypatch):
    encoder, whole = stock("roberta", layers=3), fitting.Fitting.layer
    right = errors(encoder, fit, epochs=3)
    monkeypatch.setattr(
        fitting.Fitting, "layer", lambda self, layer, clean, made, rough: whole(self, layer, clean, made, clean)
    )
    wrong = errors(encoder, fit, epochs=3)  # as if nothing below were quantised
    assert wrong[0] == right[0]
    assert wrong[-1] != right[-1]
    assert fit == "layer" or wrong[-1] > 1.05 * right[-1]  # a single map can undo little here


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_a_layer_is_called_as_the_stock_model_calls_it(stock, family):
    model, (one, *_) = stock_model(stock(family)), texts(3)
    calls = []
    hooks = [layer.register_forward_hook(lambda *seen: calls.append(seen[1:]), with_kwargs=True)
             for layer in layers_of(model)]  # fmt: skip
    with torch.no_grad():
        model.base_model(**one.inputs)
    [hook.remove() for hook in hooks]
    before = None
    for number, (args, kwargs, made) in enumerate(calls):
        found = call_at(model, number, one, before)
        torch.testing.assert_close(found, (args, kwargs), rtol=0, atol=0)
        before = made
    assert not any("forward" in vars(layer) for layer in layers_of(model))


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
@pytest.mark.parametrize("fit", ["block", "layer"])
def test_every_family_is_quantised_and_nothing_else_of_it_changes(stock, family, fit):
    model = stock_model(stock(family, layers=2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = [name for name, _ in linears_of(model)]
    error = quantize(model, texts(0, 2), replace(RECIPE, fit=fit, epochs=1), lambda _: None)
    assert 0 < error < 1
    assert sorted(quantized_in(model)) == sorted(names)
    assert not linears_of(model)
    after = model.state_dict()
    same = [name for name in before if name.removesuffix(".weight") not in names]
    assert all(torch.equal(after[name], before[name]) for name in same)
    assert all(name.rpartition(".")[0] in names for name in set(after) - set(same))


def test_the_error_is_that_of_the_last_layer(stock):
    model, given = stock_model(stock("roberta", layers=2)), texts(0)
    wanted = states(model, given)[-1]
    error = quantize(model, given, replace(RECIPE, epochs=1), lambda _: None)
    assert error == pytest.approx(float((states(model, given)[-1] - wanted).norm() / wanted.norm()), rel=1e-5)


def test_padding_changes_nothing_in_the_fit(stock):
    model, longer, given = stock_model(stock("bert", layers=2)), stock_model(stock("bert", layers=2)), texts(0, 2)
    pad = torch.nn.functional.pad
    wide = [Texts({"input_ids": pad(one.inputs["input_ids"], (0, 5), value=1),
                   "attention_mask": pad(one.inputs["attention_mask"], (0, 5))}) for one in given]  # fmt: skip
    assert quantize(model, given, RECIPE, lambda _: None) == pytest.approx(
        quantize(longer, wide, RECIPE, lambda _: None), rel=0.02
    )


@pytest.mark.parametrize("fit", ["block", "layer", "loftq", "nearest"])
def test_the_same_is_fitted_whatever_was_drawn_before(stock, fit):
    made = []
    for seed in (1, 2):
        model = stock_model(stock("modernbert", layers=2))
        for one in model.modules():
            if isinstance(one, torch.nn.Dropout):
                one.p = 0.5
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        quantize(model.train(), texts(0, 2), replace(RECIPE, fit=fit, epochs=1), lambda _: None)
        assert torch.equal(torch.get_rng_state(), state)  # and draws nothing of what a trial draws
        assert model.training
        made.append(model.state_dict())
    assert all(torch.equal(value, made[1][name]) for name, value in made[0].items())


@pytest.mark.parametrize("fit", ["block", "layer"])
def test_no_epochs_are_the_closed_form(stock, fit):
    model = stock_model(stock("modernbert", layers=2))
    matrices = {name: one.weight.detach().clone() for name, one in linears_of(model)}
    quantize(model, texts(0, 1), replace(RECIPE, fit=fit, epochs=0), lambda _: None)
    clip = torch.tensor(4.0).sigmoid()
    for name, one in quantized_in(model).items():
        groups = matrices[name].unflatten(1, (-1, 16))
        top, bottom = clip * groups.amax(-1), clip * groups.amin(-1)
        step = ((top - bottom) / 3).half().float()
        assert torch.equal(one.scales.float(), step)
        assert torch.equal(one.zeros.float(), (-bottom / step).round())
        assert not one.up.any()


def test_maps_are_taken_in_the_order_in_which_they_run(stock):
    model, (one, *_) = stock_model(stock("roberta")), texts(0)
    layer = layers_of(model)[0]
    last = layer.output  # named before what runs earlier
    del layer.output
    layer._modules = {"output": last, **layer._modules}
    assert linears_in(layer)[0][0] == "output.dense"
    order = executed(layer, call_at(model, 0, one, None))
    assert order == [f"attention.self.{name}" for name in ("query", "key", "value")] + [
        "attention.output.dense", "intermediate.dense", "output.dense"]  # fmt: skip


def test_who_watches_is_told_of_every_layer_and_may_stop(stock):
    seen = []
    quantize(stock_model(stock("bert")), texts(0, 2), replace(RECIPE, epochs=2), seen.append)
    assert seen == [0] * 5 + [1] * 5 + [2] * 5

    def stop(number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(stock_model(stock("bert")), texts(0, 2), RECIPE, stop)
