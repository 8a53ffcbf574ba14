"""Windows: what a local layer sees is a matter of original positions, at a cost that grows with the row alone."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModel

from latemask.families import facts, sight
from latemask.families.sight import Places, attention
from latemask.ground.errors import UserError
from latemask.model import complete_recipe
from latemask.model.stock import family_of
from latemask.objectives.inside import JoinedLayers
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe, MaskRecipe, check_recipe
from tests.budget.test_flops import assert_exact
from tests.conftest import KINDS, VOCABULARY, make_batch, make_model, make_rows, tiny_recipe

WINDOWED = EncoderRecipe(layers=4, width=32, heads=2, window=8)
CORRUPTING = MaskRecipe(rate=0.4, random=0.2, keep=0.2, drop=0.1)


def windowed(length=300, window=8, **changes):
    return tiny_recipe(length=length, encoder=replace(WINDOWED, window=window), **changes)


@pytest.mark.parametrize(("length", "window"), [(32, 3), (32, 40), (300, 8), (600, 70)], ids=str)
def test_windows_count_original_positions_however_many_are_hidden(length, window):
    """In blocks where rows are long; the stock model sees the whole row, with hidden positions masked out."""
    recipe = windowed(length, window)
    model, rows, batch = make_model(recipe), torch.from_numpy(make_rows(length=length)), make_batch(recipe)
    visible = batch["visible_positions"]
    present = torch.zeros(4, length, dtype=torch.long).scatter(1, visible, 1)
    with torch.no_grad():
        ours = model.encode(rows.gather(1, visible), visible)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
        everything = model.encode(rows, torch.arange(length).expand(4, -1))
        plainly = model.encoder(input_ids=rows).last_hidden_state
    torch.testing.assert_close(ours, plain.gather(1, visible[..., None].expand(-1, -1, 32)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(everything, plainly, rtol=1e-4, atol=1e-5)


def slow_attention(queries, keys, values, at, to, window):
    """Softmax over what is near, query by query."""
    out = torch.zeros_like(queries)
    for row in range(len(queries)):
        for slot, position in enumerate(at.positions[row]):
            near = (to.positions[row] - position).abs() <= window
            scores = queries[row, :, slot, None] @ keys[row, :, near].transpose(1, 2) / queries.shape[-1] ** 0.5
            out[row, :, slot] = (scores.softmax(-1) @ values[row, :, near])[:, 0]
    return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["_by_kernel", "_by_products"])
@pytest.mark.parametrize("which", ["all", "some queries", "keys out of order"])
@pytest.mark.parametrize("window", [1, 5, 40])
def test_blocks_compute_what_a_slow_loop_does(which, window, way, monkeypatch):
    monkeypatch.setattr(sight, "_by_kernel", getattr(sight, way))
    torch.manual_seed(0)
    length = 200
    positions = torch.stack([torch.randperm(300)[:length].sort().values for _ in range(2)])
    queries, keys, values = (torch.randn(2, 3, length, 8) for _ in range(3))
    to = Places(positions)
    if which == "keys out of order":
        order = torch.randperm(length)
        to = Places(positions[:, order], ordered=False)
        keys, values = keys[:, :, order], values[:, :, order]
    slots = torch.arange(0, length, 3).expand(2, -1) if which == "some queries" else None
    at = to if slots is None else to.at(slots)
    queries = queries if slots is None else queries[:, :, ::3]
    assert facts.block_of(length, window)
    ours = attention(queries, keys, values, at, to, window=window)
    torch.testing.assert_close(ours, slow_attention(queries, keys, values, at, to, window), rtol=1e-4, atol=1e-5)


def test_in_half_precision_blocks_are_as_exact_as_half_precision_is():
    torch.manual_seed(0)
    places = Places(torch.arange(200).expand(2, -1))
    given = [torch.randn(2, 3, 200, 8) for _ in range(3)]
    ours = attention(*(states.bfloat16() for states in given), places, places, window=5)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), slow_attention(*given, places, places, 5), rtol=0, atol=0.03)


@pytest.mark.parametrize("way", ["_by_kernel", "_by_products"])
def test_dropout_falls_on_what_blocks_attend_to(way, monkeypatch):
    monkeypatch.setattr(sight, "_by_kernel", getattr(sight, way))
    torch.manual_seed(0)
    places = Places(torch.arange(200).expand(2, -1))
    queries, keys = (torch.randn(2, 3, 200, 8) for _ in range(2))
    ones = torch.ones(2, 3, 200, 8)
    sums = attention(queries, keys, ones, places, places, window=20, dropout=0.5)
    assert sums.std() > 0.1
    assert sums.mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("mask", [MaskRecipe(rate=0.4), CORRUPTING], ids=["plain", "corrupting"])
def test_where_masks_have_joined_blocks_change_nothing(two_way, mask, monkeypatch):
    recipe = windowed(options=Join(layers=3, two_way=two_way), mask=mask)
    model, batch = make_model(recipe), make_batch(recipe)
    batch = {name: tensor for name, tensor in batch.items() if name != "labels"}
    with torch.no_grad():
        in_blocks = model(**batch).logits
        monkeypatch.setattr(sight, "block_of", lambda keys, window: None)
        torch.testing.assert_close(in_blocks, model(**batch).logits, rtol=1e-4, atol=1e-5)


def test_where_masks_have_joined_visible_states_are_the_stock_encoders():
    recipe = windowed(options=Join(layers=3))
    model, rows, batch = make_model(recipe), torch.from_numpy(make_rows(length=300)), make_batch(recipe)
    visible = batch["visible_positions"]
    present = torch.zeros(4, 300, dtype=torch.long).scatter(1, visible, 1)
    joined = JoinedLayers(model, 3, two_way=False)
    with torch.no_grad():
        states = model.encode(batch["visible_ids"], visible, 1)
        stream, places = joined.stream(states, model.mask_vector, visible, batch["masked_positions"])
        ours = model.family.final_norm(model.encoder, joined.run(stream, places, visible.shape[1]))
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
    plain = plain.gather(1, visible[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(ours[:, : visible.shape[1]], plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("length", [32, 300])
def test_flops_are_those_that_are_computed(kind, length):
    recipe = windowed(length)
    assert_exact(replace(recipe, options=Join(kind, 2)) if kind else replace(recipe, objective="early"))


def kept_bytes(length: int) -> int:
    """What autograd keeps of a local layer."""
    model = make_model(windowed(length)).train()
    layer = model.family.layers(model.encoder)[1]
    positions = torch.arange(length)[None]
    states = torch.randn(1, length, 32, requires_grad=True)
    places = model.family.places(model.encoder, states, positions)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.family.run(layer, states, places)
    return sum(size for size, _ in kept.values())


def test_memory_of_a_local_layer_grows_with_the_row_and_not_with_its_square():
    assert kept_bytes(4096) < 2.1 * kept_bytes(2048)


def test_the_config_says_where_the_windows_are_also_after_saving_and_loading(tmp_path):
    recipe = complete_recipe(windowed(), VOCABULARY)
    encoder = make_model(recipe).encoder
    encoder.save_pretrained(tmp_path)
    config = AutoModel.from_pretrained(tmp_path).config
    assert config.layer_types == ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert config.sliding_window == 8
    shape = family_of(config).shape(config)
    assert (shape["window"], shape["global_every"]) == (8, 3)


def test_stock_modernbert_is_taken_as_it_is():
    config = AutoConfig.for_model("modernbert")
    shape = family_of(config).shape(config)
    assert (shape["window"], shape["global_every"], shape["rotary_base"]) == (64, 3, 160_000)


def test_layers_that_alternate_in_no_order_are_refused():
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    with pytest.raises(UserError, match="in no regular order"):
        family_of(AutoConfig.for_model("modernbert", num_hidden_layers=4, layer_types=kinds))


def test_a_window_is_for_families_that_have_one():
    recipe = tiny_recipe(encoder=EncoderRecipe(family="bert", layers=2, width=32, heads=2, window=8))
    with pytest.raises(UserError, match=r"encoder\.window is for modernbert"):
        check_recipe(recipe)
