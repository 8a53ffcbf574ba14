"""The separate decoders: pruning is exact, the relative bias starts local, a mix of all layers starts as the last."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from latemask import LateMaskForPreTraining, UserError, pretrain
from latemask.budget.flops import count_weights
from latemask.model import build_model, complete_recipe
from latemask.objectives.decoder import RelativeBias
from latemask.objectives.late import Join
from latemask.recipe import BudgetRecipe, EncoderRecipe, MaskRecipe, check_recipe
from tests.budget.test_flops import assert_exact
from tests.budget.test_memory import assert_kept
from tests.budget.test_weights import counted
from tests.conftest import VOCABULARY, joining, loss_after_fitting_one_batch, make_batch, make_model, tiny_recipe
from tests.objectives.test_late import kept_bytes, logits_of

CORRUPTING = MaskRecipe(rate=0.4, random=0.2, keep=0.1)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("positions", ["relative", "absolute"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_pruned_last_layer_equals_the_unpruned_one(kind, positions, layers):
    recipe = replace(joining(kind, positions=positions, layers=layers), mask=CORRUPTING)
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        visible = model.encode(batch["visible_ids"], batch["visible_positions"])
        arguments = (visible, model.mask_vector, batch["visible_positions"], batch["masked_positions"])
        pruned, whole = (model.decoder(*arguments, batch["corrupted_slots"], prune=prune) for prune in (True, False))
    assert pruned.shape == (4, recipe.counts.predicted, 32)
    torch.testing.assert_close(pruned, whole, rtol=1e-4, atol=1e-5)


def test_the_relative_bias_is_a_function_of_head_and_signed_distance():
    bias = RelativeBias(heads=2, length=8)
    bias.weight.data = torch.arange(30.0).reshape(15, 2)
    queries, keys = torch.tensor([[0, 5]]), torch.tensor([[1, 7, 0]])
    found = bias(queries, keys)
    for head in range(2):
        for q, query in enumerate(queries[0]):
            for k, key in enumerate(keys[0]):
                assert found[0, head, q, k] == bias.weight[key - query + 7, head]


def test_the_relative_bias_starts_local_like_alibi():
    recipe = joining("self")
    torch.manual_seed(0)
    table = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY).decoder.relative_bias.weight.detach()
    middle = len(table) // 2
    assert (table[middle] == 0).all()
    assert (table[middle + 1 :].diff(dim=0) < 0).all()
    torch.testing.assert_close(table, table.flip(0))
    torch.testing.assert_close(table[middle + 1], torch.tensor([-(2.0**-4), -(2.0**-8)]))


# CrossMAE's mix


def mixing(family="modernbert", **changes):
    recipe = joining("cross-only", mix=True, **changes)
    return replace(recipe, encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2), mask=CORRUPTING)


def without_mix(recipe):
    return replace(recipe, options=replace(recipe.options, mix=False))


@pytest.mark.parametrize("positions", ["relative", "absolute"])
@pytest.mark.parametrize("family", ["modernbert", "roberta"])  # with a norm after the last layer, and without
def test_each_layer_reads_its_own_mix_of_the_input_and_the_output_of_every_layer(family, positions):
    """The stock model's hidden states, added up in a loop, for the one layer and the other."""
    recipe = mixing(family, positions=positions)
    model, batch = make_model(recipe), make_batch(recipe)
    ids, places = batch["visible_ids"], batch["visible_positions"]
    read = []
    for layer in model.decoder.layers:
        layer.register_forward_pre_hook(lambda module, given: read.append(given[1]))
    with torch.no_grad():
        model(**batch)
        states = model.encode_each(ids, places)
        rows = torch.full((4, 32), VOCABULARY.eos).scatter(1, places, ids)
        present = torch.zeros(4, 32, dtype=torch.long).scatter(1, places, 1)
        stock = model.encoder(input_ids=rows, attention_mask=present, output_hidden_states=True)
        expected = [one.gather(1, places[..., None].expand(-1, -1, 32)) for one in stock.hidden_states]
        for ours, theirs in zip(states, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        for number, memory in enumerate(read):
            mixed = sum(model.decoder.mix[number, layer] * states[layer] for layer in range(4))
            norm = model.decoder.memory_norms[number]
            mixed = F.layer_norm(mixed, (32,), norm.weight, norm.bias)
            if positions == "absolute":
                mixed = mixed + model.decoder.position_embeddings(places)
            torch.testing.assert_close(memory, mixed, rtol=1e-4, atol=1e-5)
    assert len(read) == 2
    assert not torch.allclose(*read)


def test_at_the_start_every_layer_reads_what_it_reads_without_a_mix():
    recipe = mixing(layers=3)
    models = []
    for one in (recipe, without_mix(recipe)):
        torch.manual_seed(0)
        models.append(build_model(complete_recipe(one, VOCABULARY), VOCABULARY).eval())
    mixed, plain = models
    lost = mixed.load_state_dict(plain.state_dict(), strict=False)
    assert set(lost.unexpected_keys) == {"decoder.memory_norm.weight", "decoder.memory_norm.bias"}
    assert lost.missing_keys[0] == "decoder.mix"
    batch = make_batch(recipe)
    torch.testing.assert_close(logits_of(mixed, batch), logits_of(plain, batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["modernbert", "roberta", "electra"])
def test_every_weight_of_a_mix_gets_a_gradient_from_the_first_step(family):
    torch.manual_seed(0)
    recipe = mixing(family)
    model = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY).train()
    model(**make_batch(recipe)).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None] == []
    assert (model.decoder.mix.grad.abs() > 0).all()


def test_with_a_mix_it_over_fits_one_small_batch():
    assert loss_after_fitting_one_batch(mixing()) < 0.05


def test_with_a_mix_in_bf16_it_is_nearly_the_same():
    """The states that are mixed come in several precisions."""
    model, batch = make_model(mixing()), make_batch(mixing())
    exact = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        assert model(**batch).loss.item() == pytest.approx(exact.item(), rel=0.02)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("family", ["modernbert", "bert", "electra", "deberta-v2"])
def test_with_a_mix_flops_and_weights_are_exact(family, layers):
    recipe = mixing(family, layers=layers)
    assert_exact(recipe)
    real, weights = counted(recipe), count_weights(complete_recipe(recipe, VOCABULARY))
    assert {name: getattr(weights, name) for name in real} == real


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("positions", ["relative", "absolute"])
def test_with_a_mix_what_a_row_keeps_is_counted(positions, layers):
    encoder = EncoderRecipe(layers=4, width=64, heads=2)
    assert_kept(encoder, Join("cross-only", layers, positions=positions, mix=True), MaskRecipe(rate=0.5))


def test_with_a_mix_gradient_checkpointing_saves_memory_and_changes_nothing():
    recipe = mixing(layers=3)
    plain, saving = make_model(recipe).train(), make_model(recipe).train()
    saving.gradient_checkpointing_enable()
    batch = make_batch(recipe)
    assert kept_bytes(saving, batch) < 0.7 * kept_bytes(plain, batch)
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_run_with_a_mix_is_saved_and_loaded(data, tmp_path):
    recipe = replace(mixing(), budget=BudgetRecipe(steps=2))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    loaded = LateMaskForPreTraining.from_pretrained(run.model)
    assert loaded.config.mix
    assert not torch.equal(loaded.decoder.mix, torch.eye(4)[[3, 3]])  # it learns


@pytest.mark.parametrize("kind", ["inside", "self", "cross"])
def test_a_mix_is_for_cross_only(kind):
    with pytest.raises(UserError, match=f"join.mix is for join.kind cross-only; '{kind}'"):
        check_recipe(tiny_recipe(options=Join(kind, mix=True)))
