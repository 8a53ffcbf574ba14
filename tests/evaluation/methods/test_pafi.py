"""PaFi: the smallest weights are trained, and no other one changes by a bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import parametrize

from latemask.evaluation.methods import METHODS
from latemask.evaluation.methods.pafi import smallest
from latemask.evaluation.methods.parametrizations import parametrized
from latemask.evaluation.methods.places import linears_of
from latemask.evaluation.protocol import Protocol
from tests.evaluation.conftest import make_task
from tests.evaluation.methods.oracles import (
    FAMILIES,
    IDS,
    changed,
    logits,
    opened_alone,
    problem,
    stock_and_prepared,
    trained,
)  # fmt: skip

PAFI = METHODS["pafi"]


def by_sorting(weights, share):
    """The places of the smallest weights by one stable sort of all of them; True where one is."""
    sizes = np.concatenate([np.abs(weight.detach().numpy().ravel()) for weight in weights])
    chosen = np.zeros(len(sizes), bool)
    chosen[np.argsort(sizes, kind="stable")[: max(1, round(share * len(sizes)))]] = True
    ends = np.cumsum([weight.numel() for weight in weights])[:-1]
    return [part.reshape(weight.shape) for part, weight in zip(np.split(chosen, ends), weights, strict=True)]


def of_base(encoder, share=0.005):
    """Every linear map of an encoder, by its name in a model with a head, and True where a weight is small."""
    model = encoder.with_head(make_task(), 0)
    found = linears_of(model)
    masks = by_sorting([one.weight for _, one in found], share)
    return {f"{name}.weight": mask for (name, _), mask in zip(found, masks, strict=True)}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=12), min_size=1, max_size=5), st.floats(1e-6, 1))
def test_the_choice_is_that_of_a_stable_sort_whatever_is_equal(values, share):
    weights = [torch.tensor(some, dtype=torch.float32) for some in values]
    expected = by_sorting(weights, share)
    for places, mask in zip(smallest(weights, share), expected, strict=True):
        assert places.tolist() == mask.nonzero()[0].tolist()
    assert sum(map(len, smallest(weights, share))) == max(1, round(share * sum(map(len, values))))


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_step_it_is_the_stock_model_and_each_matrix_is_filled_once(stock, family):
    before, model = stock_and_prepared(stock(family), "pafi", share=0.1)
    calls = []
    for _, _, filled in parametrized(model):
        filled.register_forward_hook(lambda filled, *_: calls.append(filled))
    assert torch.equal(logits(before), logits(model))
    twice = 6 if family == "deberta-v2" else 0  # its queries and keys are read for words and for positions
    assert len(calls) - twice == len(set(calls)) == len(linears_of(before))


@pytest.mark.parametrize(("family", "kind"), [("modernbert", "classification"), ("bert", "regression")])
def test_weight_decay_leaves_the_others_alone_and_the_folder_is_stock(stock, family, kind, tmp_path):
    encoder, share = stock(family), 0.02
    trial, model = trained(encoder, "pafi", kind, weight_decay=0.5, share=share)
    before, said = encoder.with_head(make_task(kind), 0), logits(model)
    assert PAFI.save(model, tmp_path, Protocol(method="pafi"))
    after = opened_alone(tmp_path)
    torch.testing.assert_close(logits(after), said, rtol=0, atol=1e-6)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    masks = of_base(encoder, share)
    assert changed(before, after) == {name for name, mask in masks.items() if mask.any()}
    for name, mask in masks.items():
        old, new = before.get_parameter(name).detach().numpy(), after.get_parameter(name).detach().numpy()
        assert np.array_equal(old[~mask].view(np.int32), new[~mask].view(np.int32))
        assert (old[mask] != new[mask]).all()
    count = sum(int(mask.sum()) for mask in masks.values())
    assert count == round(share * sum(mask.size for mask in masks.values()))
    assert (trial.trained_weights, trial.stored_bytes) == (count, 4 * count)


def test_the_choice_depends_on_the_encoder_alone(stock):
    encoder = stock("roberta")
    expected = {name: mask.ravel().nonzero()[0].tolist() for name, mask in of_base(encoder).items() if mask.any()}
    for kind, seed in (("classification", 0), ("tagging", 1)):
        _, model = trained(encoder, "pafi", kind, seed=seed, epochs=1)
        filled = {name: one for name, one in linears_of(model) if parametrize.is_parametrized(one)}
        places = {f"{name}.weight": one.parametrizations.weight[0].places.tolist() for name, one in filled.items()}
        assert places == expected


def test_gradients_of_the_values_are_those_of_the_matrices_at_their_places(stock):
    before, model = stock_and_prepared(stock("bert"), "pafi", share=0.1)
    labels = torch.tensor([0, 1, 1])
    for one in (before, model):
        one.eval()(input_ids=IDS, labels=labels).loss.backward()
    for name, module in linears_of(before):
        filled = model.get_submodule(name).parametrizations.weight[0]
        torch.testing.assert_close(filled.values.grad, module.weight.grad.flatten()[filled.places])
    assert all(weight.grad is None for weight in model.parameters() if not weight.requires_grad)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_a_line(stock, share):
    assert problem(stock("bert"), "pafi", share=share) == f"--pafi.share {share:g}: more than 0, and 1 at most"


def test_all_weights_or_one_may_be_trained(stock):
    every, _ = trained(stock("bert"), "pafi", share=1.0, epochs=1)
    assert every.trained_weights == sum(one.weight.numel() for _, one in linears_of(stock("bert").plain()))
    one, _ = trained(stock("bert"), "pafi", share=1e-9, epochs=1)
    assert one.trained_weights == 1


def test_of_zeros_the_first_are_taken_and_that_is_said(stock, capsys):
    model = stock("bert").with_head(make_task(), 0)
    with torch.no_grad():
        for _, one in linears_of(model):
            one.weight[:16] = 0
    PAFI.prepared(model, Protocol(method="pafi"))
    assert "all weights that it trains are exactly zero" in capsys.readouterr().err
    (module, _, filled) = parametrized(model)[0]
    assert len(parametrized(model)) == 1
    assert module is linears_of(model)[0][1]
    assert filled.places.tolist() == list(range(len(filled.values)))
    PAFI.prepared(stock("bert").with_head(make_task(), 0), Protocol(method="pafi"))
    assert not capsys.readouterr().err


def test_checkpointing_changes_nothing_and_bf16_learns(stock):
    encoder = stock("modernbert")
    (plain, _), (saving, _) = (trained(encoder, "pafi", checkpointing=on) for on in (False, True))
    assert plain.loss == saving.loss
    low, _ = trained(encoder, "pafi", precision="bf16")
    assert low.loss[-1][1] == pytest.approx(plain.loss[-1][1], abs=0.1)
