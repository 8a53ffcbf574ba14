"""Optimizers: Muon's steps are torch's own, fused matrices are several, and what they cost is known before."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from latemask.budget.flops import planned_steps, sequence_flops, spent, update_flops
from latemask.budget.memory import step_memory
from latemask.model import complete_recipe
from latemask.recipe import BudgetRecipe
from latemask.training.loop import Loop
from latemask.training.muon import nearly_orthogonal
from latemask.training.optimizers import fused_parts
from tests.conftest import FAMILIES, KINDS, VOCABULARY, joining, make_batch, make_model, tiny_recipe


def muon(recipe, **train):
    return complete_recipe(replace(recipe, train=replace(recipe.train, optimizer="muon", **train)), VOCABULARY)


def make_loop(recipe) -> Loop:
    return Loop(recipe, 10, make_model(recipe), torch.device("cpu"))


def of_family(family):
    return replace(tiny_recipe(), encoder=replace(tiny_recipe().encoder, family=family))


OTHER_DECODERS = [joining("cross-only", mix=True), tiny_recipe(objective="mae-lm")]


def test_where_nothing_is_fused_its_steps_are_those_of_torch():
    loop = make_loop(muon(of_family("roberta"), precision="bf16"))  # torch's Muon knows nothing else
    (group,) = [group for group in loop.optimizer.param_groups if group["is_muon"]]
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in group["params"]]
    torchs = torch.optim.Muon(
        copies, lr=group["lr"], weight_decay=group["weight_decay"], adjust_lr_fn="match_rms_adamw"
    )
    batch = make_batch(loop.recipe)
    for _ in range(3):
        loop.model(**batch).loss.backward()
        for weight, copy in zip(group["params"], copies, strict=True):
            copy.grad = weight.grad.clone()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        torchs.step()
    for weight, copy in zip(group["params"], copies, strict=True):
        torch.testing.assert_close(weight.detach(), copy.detach(), rtol=1e-5, atol=1e-5)


def test_a_fused_matrix_moves_as_its_parts_would():
    loop = make_loop(muon(tiny_recipe()))
    attention = loop.model.encoder.layers[0].attn
    before = attention.Wqkv.weight.detach().clone()
    loop.model(**make_batch(loop.recipe)).loss.backward()
    gradient = attention.Wqkv.weight.grad.clone()
    loop.optimizer.step()
    moved = (before * (1 - 3e-3 * 0.01) - attention.Wqkv.weight.detach()) / (3e-3 * 0.2 * 32**0.5)
    for part, of_part in zip(moved.chunk(3), gradient.chunk(3), strict=True):
        torch.testing.assert_close(part, nearly_orthogonal(of_part[None], torch.float32)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16)])
def test_singular_values_come_near_1(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(nearly_orthogonal(torch.randn(2, *shape), torch.float32))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("family", FAMILIES)
def test_it_takes_every_matrix_of_the_layers_and_no_table_of_words(family):
    loop = make_loop(muon(of_family(family)))
    chosen = {weight for group in loop.optimizer.param_groups if group["is_muon"] for weight in group["params"]}
    for name, weight in loop.model.named_parameters():
        is_table = name.endswith(("embeddings.weight", "embed_tokens.weight", "attention_bias.weight"))
        is_matrix = weight.ndim == 2 and weight.requires_grad and not is_table
        assert (weight in chosen) == is_matrix, name
    assert loop.model.words not in chosen


@pytest.mark.parametrize("recipe", [*map(joining, KINDS), *OTHER_DECODERS, *map(of_family, FAMILIES)])
def test_flops_of_an_update_in_closed_form_are_those_that_torch_counts(recipe):
    recipe = muon(recipe)
    loop = make_loop(recipe)
    loop.model(**make_batch(recipe)).loss.backward()
    with FlopCounterMode(display=False) as counter:
        loop.optimizer.step()
    assert counter.get_total_flops() == update_flops(recipe) > 0
    kept = sum(tensor.numel() for state in loop.optimizer.state.values() for tensor in state.values() if tensor.ndim)
    assert step_memory(recipe, 8).optimizer == 4 * kept


def test_a_budget_and_what_is_spent_count_the_updates():
    plain = complete_recipe(replace(tiny_recipe(), budget=BudgetRecipe(flops=1e10)), VOCABULARY)
    a_step = 8 * sequence_flops(plain).training + update_flops(muon(plain))
    assert planned_steps(muon(plain)) == 1e10 // a_step < planned_steps(plain)
    assert spent(muon(plain), 10, 3) == pytest.approx(3 * a_step)


def test_a_model_says_which_of_its_matrices_are_fused():
    model = make_model(joining("cross"))
    found = {name: parts for name, weight in model.named_parameters() if (parts := fused_parts(model).get(weight))}
    assert found["encoder.layers.0.attn.Wqkv.weight"] == 3
    assert found["encoder.layers.0.mlp.Wi.weight"] == 2
    assert found["decoder.layers.0.cross_attention.key_value.weight"] == 2
    assert len(found) == 3 * 2 + 2 * 2
