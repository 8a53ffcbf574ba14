"""HiWi: adapters that read frozen parameters, and are a stock model's parameters in the end."""

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize
from transformers import AutoModelForTokenClassification

from latemask import UserError
from latemask.evaluation.encoders import open_encoders
from latemask.evaluation.methods import METHODS, in_body
from latemask.evaluation.methods.hiwi import Adapters, _say_once, read
from latemask.evaluation.methods.parametrizations import Adapted, parametrized
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

BIASED = {"bert", "roberta", "distilbert", "deberta-v2", "mpnet", "esm"}
HIWI = METHODS["hiwi"]


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_step_it_is_the_stock_model_and_each_parameter_is_computed_once(stock, family):
    before, model = stock_and_prepared(stock(family), "hiwi", rank=4)
    calls = []
    for _, _, adapter in parametrized(model):
        adapter.register_forward_hook(lambda adapter, *_: calls.append(adapter))
    assert torch.equal(logits(before), logits(model))
    assert len(calls) == len(set(calls)) == len(read(before, Adapters())) == 3 * (2 if len(calls) == 6 else 3)
    kinds = {name for _, name, _ in parametrized(model)}
    assert kinds == ({"bias"} if family in BIASED else {"weight"})


def test_what_is_put_in_place_is_the_formula_and_halves_of_a_gated_map_have_their_own(stock):
    encoder = stock("modernbert")
    _, model = trained(encoder, "hiwi", rank=3, function="gelu")
    frozen = encoder.with_head(make_task(), 0).get_submodule("model.layers.1.mlp.Wi").weight
    module = model.get_submodule("model.layers.1.mlp.Wi")
    down, up = (
        getattr(module.parametrizations.weight[0], name).detach().numpy().astype(float) for name in ("down", "up")
    )
    assert down.shape == (2, 96, 3)
    assert up.any()
    expected = frozen.detach().numpy().astype(float)
    for half in range(2):
        for column in range(32):
            row = frozen.detach().numpy().astype(float)[96 * half : 96 * (half + 1), column]
            hidden = torch.nn.functional.gelu(torch.from_numpy(row @ down[half])).numpy()
            expected[96 * half : 96 * (half + 1), column] += hidden @ up[half]
    np.testing.assert_allclose(module.weight.detach().numpy(), expected, atol=1e-6)


def test_biases_follow_the_formula(stock):
    encoder = stock("bert")
    _, model = trained(encoder, "hiwi", rank=3)
    frozen = encoder.with_head(make_task(), 0)
    for name, module, kind, _ in read(frozen, Adapters()):
        adapter = model.get_submodule(name).parametrizations[kind][0]
        expected = module.bias + torch.tanh(module.bias @ adapter.down[0]) @ adapter.up[0]
        torch.testing.assert_close(model.get_submodule(name).bias, expected)
        assert not torch.equal(module.bias, expected)


@pytest.mark.parametrize(("shape", "parts"), [((7,), 1), ((8,), 2), ((6, 5), 1), ((6, 5), 2)])
@pytest.mark.parametrize("function", ["tanh", "gelu"])
def test_gradients_of_both_factors_are_finite_differences(shape, parts, function):
    torch.manual_seed(0)
    tensor = torch.randn(shape, dtype=torch.float64)
    adapter = Adapted(tensor, 3, function, parts).double()
    factors = [torch.randn_like(one).requires_grad_() for one in (adapter.down, adapter.up)]

    def new(down, up):
        return torch.func.functional_call(adapter, {"down": down, "up": up}, (tensor,))

    assert torch.autograd.gradcheck(new, factors, eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("form", ["bias", "weights"])
def test_gradients_through_the_whole_model_are_finite_differences(stock, form):
    torch.manual_seed(0)
    _, model = stock_and_prepared(stock("bert", 2), "hiwi", rank=2, form=form)
    model = model.double().eval()
    labels = torch.tensor([0, 1, 1])
    factors = [weight for name, weight in model.named_parameters() if name.endswith((".down", ".up"))]
    with torch.no_grad():
        for one in factors:
            one.add_(torch.randn_like(one) * 0.1)
    gradients = torch.autograd.grad(model(input_ids=IDS, labels=labels).loss, factors)
    for one, gradient in zip(factors, gradients, strict=True):
        step, losses = 1e-5 * torch.randn_like(one), []
        for sign in (1, -2, 1):
            with torch.no_grad():
                one.add_(sign * step)
                losses.append(model(input_ids=IDS, labels=labels).loss.item())
        assert (losses[0] - losses[1]) / 2 == pytest.approx((gradient * step).sum().item(), rel=1e-6, abs=1e-14)


def test_no_unit_is_dead_and_all_of_them_move(stock):
    _, model = trained(stock("bert"), "hiwi", rank=8)
    _, fresh = stock_and_prepared(stock("bert"), "hiwi", rank=8)
    for (_, _, after), (_, _, before) in zip(parametrized(model), parametrized(fresh), strict=True):
        assert after.up.ne(0).all()
        assert after.down.shape == before.down.shape
        assert (after.down != before.down).all()


def test_what_units_say_at_first_does_not_depend_on_how_large_parameters_are():
    said = []
    for scale in (1e-3, 1, 1e3):
        torch.manual_seed(0)
        matrix = scale * torch.arange(1.0, 13.0).view(4, 3)
        said.append(matrix.T @ Adapted(matrix, 2000, "tanh").down[0])
    torch.testing.assert_close(said[0], said[2])
    assert said[1].norm(dim=0).pow(2).mean().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "classification"), ("distilbert", "tagging"), ("gte", "regression")]
)
def test_a_merged_folder_is_stock_and_differs_where_it_should_alone(stock, family, kind, tmp_path):
    encoder = stock(family)
    form = "bias" if family == "gte" else "auto"  # which has one bias a layer
    _, model = trained(encoder, "hiwi", kind, rank=4, form=form)
    before, said = encoder.with_head(make_task(kind), 0), logits(model)
    assert HIWI.save(model, tmp_path, Protocol(method="hiwi"))
    after = opened_alone(tmp_path, *([AutoModelForTokenClassification] if kind == "tagging" else []))
    names = {f"{name}.bias" for name, *_ in read(before, Adapters(form=form))}
    assert len(names) == (3 if family == "gte" else 6)
    assert changed(before, after) == names
    torch.testing.assert_close(logits(after), said, rtol=0, atol=1e-6)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())


def test_matrices_are_merged_too(stock):
    encoder = stock("modernbert")
    _, model = trained(encoder, "hiwi", rank=4)
    said, before = logits(model), encoder.with_head(make_task(), 0)
    after = HIWI.merged(model)
    assert changed(before, after) == {f"model.layers.{at}.mlp.{one}.weight" for at in range(3) for one in ("Wi", "Wo")}
    torch.testing.assert_close(logits(after), said, rtol=0, atol=1e-6)


def test_what_is_stored_of_biases_does_not_depend_on_the_rank_and_of_matrices_is_the_adapters(stock):
    biases, matrices = stock("bert"), stock("modernbert")
    stored = {rank: HIWI.stored_bytes(stock_and_prepared(biases, "hiwi", rank=rank)[1]) for rank in (4, 32)}
    assert stored == dict.fromkeys((4, 32), 4 * 3 * (128 + 32))
    _, model = stock_and_prepared(matrices, "hiwi", rank=4)
    assert HIWI.stored_bytes(model) == 4 * 3 * 2 * 4 * (2 * 96 + 32)
    trains = {name for name, weight in model.named_parameters() if weight.requires_grad and in_body(model, name)}
    assert all("parametrizations" in name and name.endswith((".down", ".up")) for name in trains)


def test_biases_that_are_zeros_are_refused_and_nothing_is_written(stock, tuned, tmp_path):
    model = stock("bert").plain()
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias.zero_()
    model.save_pretrained(tmp_path / "zeros")
    stock("bert").tokenizer.save_pretrained(tmp_path / "zeros")
    encoder = open_encoders([str(tmp_path / "zeros")])[0]
    message = r"1 of 6 bias tensors are all zeros, .*layer\.1\.output\.dense for one.*; pass --hiwi.form weights"
    with pytest.raises(UserError, match=message):
        tuned(encoder, "hiwi")
    assert not (tmp_path / "o").exists()
    with pytest.raises(UserError, match=message):
        HIWI.prepared(encoder.with_head(make_task(), 0), Protocol(method="hiwi"))
    assert problem(encoder, "hiwi", form="weights") is None


def test_a_half_of_zeros_is_refused_too(stock):
    model = stock("modernbert").with_head(make_task(), 0)
    with torch.no_grad():
        model.model.layers[2].mlp.Wi.weight[96:] = 0
    with pytest.raises(UserError, match=r"1 of 6 weight tensors are all zeros, .*layers\.2\.mlp\.Wi for one"):
        HIWI.prepared(model, Protocol(method="hiwi"))


def test_of_a_model_that_was_never_trained_only_the_head_is_and_that_is_said_once(stock, capsys):
    _say_once.cache_clear()
    for seed in (0, 1):
        trial, model = trained(stock("bert").untrained(), "hiwi", seed=seed)
    assert capsys.readouterr().err.count("its head alone is trained") == 1
    assert trial.trained_weights == trial.stored_bytes == 0
    assert not parametrized(model)
    matrices, _ = trained(stock("modernbert").untrained(), "hiwi")
    assert matrices.trained_weights > 0


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("modernbert", {"form": "bias"}, "the feed-forward of modernbert has no biases, and zeros in their place"),
        ("eurobert", {"form": "bias"}, "pass --hiwi.form weights"),
        ("bert", {"rank": 0}, "--hiwi.rank 0: 1 at least"),
        ("bert", {"rank": 33}, "--hiwi.rank 33 is more than the 32 values of encoder.layer.0.output.dense; lower it"),
        ("bert", {"form": "weights", "rank": 33}, "--hiwi.rank 33 is more than the 32 values of"),
    ],
)
def test_what_cannot_be_is_a_line(stock, family, options, message):
    assert message in problem(stock(family), "hiwi", **options)


def test_a_form_may_be_asked_for(stock):
    assert problem(stock("gte"), "hiwi", form="bias") is None
    assert {kind for _, _, kind, _ in read(stock("bert").plain(), Adapters(form="weights"))} == {"weight"}
    parts = [parts for _, _, _, parts in read(stock("modernbert").plain(), Adapters())]
    assert parts == [2, 1] * 3
    assert {parts for _, _, _, parts in read(stock("eurobert").plain(), Adapters())} == {1}


def test_checkpointing_changes_nothing_and_bf16_leaves_parameters_exact(stock):
    encoder = stock("modernbert")
    (plain, model), (saving, _) = trained(encoder, "hiwi"), trained(encoder, "hiwi", checkpointing=True)
    assert plain.loss == saving.loss
    low, _ = trained(encoder, "hiwi", precision="bf16")
    assert low.loss != plain.loss
    assert low.loss[-1][1] == pytest.approx(plain.loss[-1][1], abs=0.1)
    module, name, _ = parametrized(model)[0]
    exact = getattr(module, name)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(getattr(module, name), exact)


def test_the_same_seed_gives_the_same_bits_and_another_one_others(stock):
    encoder = stock("bert")
    one, two, other = (trained(encoder, "hiwi", seed=seed)[1].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
