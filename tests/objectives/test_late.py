"""Late masking: no leak, exact visible states, and every kind learns."""

import json
from dataclasses import replace

import pytest
import torch

from latemask import LateMaskForPreTraining, UserError
from latemask.model import PreTrainingConfig
from latemask.objectives.inside import JoinedLayers
from latemask.objectives.late import Join, likeness
from latemask.recipe import OBJECTIVES, EncoderRecipe, MaskRecipe, check_recipe
from tests.conftest import (
    FAMILIES,
    KINDS,
    joining,
    loss_after_fitting_one_batch,
    make_batch,
    make_model,
    make_rows,
    tiny_recipe,
)

CORRUPTING = MaskRecipe(rate=0.4, random=0.2, keep=0.2, drop=0.1)


def logits_of(model, batch):
    with torch.no_grad():
        return model(**{name: value for name, value in batch.items() if name != "labels"}).logits


def stream_of(model, batch):
    layers = model.objective.layers_run_whole(model)
    visible = model.encode(batch["visible_ids"], batch["visible_positions"], layers)
    positions = (batch["visible_positions"], batch["masked_positions"])
    return joined_layers(model).stream(visible, model.mask_vector, *positions)


def joined_layers(model):
    return JoinedLayers(model, model.config.join_layers, model.config.two_way)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["relative", "absolute"])
def test_the_id_at_a_hidden_position_changes_no_encoder_state_and_no_logit(kind, positions):
    recipe = replace(joining(kind, positions=positions), mask=CORRUPTING)
    model, rows = make_model(recipe), make_rows()
    batch = make_batch(recipe, rows)
    other = rows.copy()
    hidden = torch.ones(4, 32, dtype=torch.bool).scatter(1, batch["visible_positions"], False).numpy()
    other[hidden] = 5 + (other[hidden] - 4) % 290
    assert (other != rows).sum() == hidden.sum()
    changed = make_batch(recipe, other)
    states = [model.encode(b["visible_ids"], b["visible_positions"]) for b in (batch, changed)]
    assert torch.equal(*states)
    assert torch.equal(logits_of(model, batch), logits_of(model, changed))


@pytest.mark.parametrize("family", FAMILIES)
def test_inside_one_way_leaves_visible_states_as_the_stock_encoders_with_the_hidden_masked_out(family):
    recipe = tiny_recipe(encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2))
    model, batch = make_model(recipe), make_batch(recipe)
    visible = batch["visible_positions"]
    with torch.no_grad():
        stream, places = stream_of(model, batch)
        joined = joined_layers(model).run(stream, places, visible.shape[1])
        joined = model.family.final_norm(model.encoder, joined)[:, : visible.shape[1]]
        rows = torch.from_numpy(make_rows(seed=1)).scatter(1, visible, batch["visible_ids"])
        present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
    expected = plain.gather(1, visible[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(joined, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("mask", [MaskRecipe(rate=0.4), CORRUPTING], ids=["plain", "corrupting"])
def test_inside_the_pruned_last_layer_equals_the_unpruned_one(family, two_way, mask):
    recipe = tiny_recipe(
        encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2),
        options=Join(two_way=two_way),
        mask=mask,
    )
    model, batch = make_model(recipe), make_batch(recipe)
    visible = batch["visible_positions"].shape[1]
    with torch.no_grad():
        stream, places = stream_of(model, batch)
        everything = joined_layers(model).run(stream, places, visible)
        pruned = joined_layers(model).run_to_predictions(stream, places, visible, batch["corrupted_slots"])
    corrupted = everything.gather(1, batch["corrupted_slots"][..., None].expand(-1, -1, 32))
    torch.testing.assert_close(pruned, torch.cat((everything[:, visible:], corrupted), dim=1), rtol=1e-4, atol=1e-5)


def test_inside_with_all_layers_two_way_is_the_stock_encoder_with_the_mask_vector_as_a_word():
    """The oracle of the joined layers: if [MASK]s join at the first layer, late is early with another word."""
    recipe = tiny_recipe(options=Join(layers=3, two_way=True))
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        vectors = torch.cat((model.words[batch["visible_ids"]], model.mask_vector.expand(4, 13, -1)), dim=1)
        positions = torch.cat((batch["visible_positions"], batch["masked_positions"]), dim=1)
        plain = model.encoder(inputs_embeds=vectors, position_ids=positions).last_hidden_state[:, -13:]
        visible = model.encode(batch["visible_ids"], batch["visible_positions"], 0)
        positions = (batch["visible_positions"], batch["masked_positions"])
        ours = joined_layers(model).predicted(visible, model.mask_vector, *positions, None)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_two_way_differs_from_one_way():
    one, two = (make_model(joining("inside", two_way=two_way)) for two_way in (False, True))
    two.load_state_dict(one.state_dict())
    batch = make_batch(joining("inside"))
    assert not torch.allclose(logits_of(one, batch), logits_of(two, batch))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_over_fits_one_small_batch(kind):
    assert loss_after_fitting_one_batch(joining(kind)) < 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_every_kind_gets_a_gradient(kind, family):
    recipe = replace(joining(kind), encoder=EncoderRecipe(family=family, layers=3, width=32, heads=2))
    model = make_model(recipe).train()
    model(**make_batch(recipe)).loss.backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["relative", "absolute"])
def test_saving_and_loading_keeps_the_loss_to_the_bit(kind, positions, tmp_path):
    recipe = joining(kind, positions=positions)
    model, batch = make_model(recipe), make_batch(recipe)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = LateMaskForPreTraining.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)


def test_the_mask_vector_is_no_row_of_the_word_table():
    model = make_model(joining("inside"))
    assert model.words.shape == (300, 32)
    model(**make_batch(joining("inside"))).loss.backward()
    assert model.mask_vector.grad.abs().sum() > 0
    assert not (model.words.detach() == model.mask_vector.detach()).all(dim=1).any()


def test_dropped_positions_of_cross_only_do_not_matter_to_the_rest():
    recipe = joining("cross-only")
    model, batch = make_model(recipe), make_batch(recipe)
    fewer = {**batch, "masked_positions": batch["masked_positions"][:, :5]}
    torch.testing.assert_close(logits_of(model, batch)[:, :5], logits_of(model, fewer), rtol=1e-4, atol=1e-5)


def test_a_new_model_starts_from_the_encoders_own_initialisation():
    torch.manual_seed(0)
    recipe = tiny_recipe(encoder=EncoderRecipe(family="roberta", layers=2, width=256, heads=4))
    from latemask.model import build_model, complete_recipe
    from tests.conftest import VOCABULARY

    model = build_model(complete_recipe(recipe, VOCABULARY), VOCABULARY)
    assert model.encoder.encoder.layer[0].intermediate.dense.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.head.dense.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.mask_vector.std().item() == pytest.approx(0.02, rel=0.3)
    assert model.encoder.pooler is None


def test_the_config_survives_json(tmp_path):
    PreTrainingConfig(join="cross", join_layers=3, positions="absolute", length=77).save_pretrained(tmp_path)
    loaded = PreTrainingConfig.from_pretrained(tmp_path)
    assert (loaded.join, loaded.join_layers, loaded.positions, loaded.length) == ("cross", 3, "absolute", 77)
    assert loaded.encoder.model_type == "roberta"


def test_an_unknown_join_is_refused():
    with pytest.raises(ValueError, match="join must be one of inside, self, cross, cross-only, not 'outside'"):
        LateMaskForPreTraining(PreTrainingConfig(join="outside"))


def kept_bytes(model, batch) -> int:
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**batch).loss.backward()
    return sum(kept.values())


@pytest.mark.parametrize("kind", ["inside", "self"])
def test_gradient_checkpointing_reaches_the_layers_that_masks_join(kind):
    """A model that says it supports it saves memory in every layer, and learns the same."""
    recipe = replace(joining(kind, layers=3), encoder=EncoderRecipe(layers=3, width=32, heads=2))
    plain, saving = make_model(recipe).train(), make_model(recipe).train()
    saving.gradient_checkpointing_enable()
    batch = make_batch(recipe)
    assert saving.is_gradient_checkpointing
    assert kept_bytes(saving, batch) < 0.6 * kept_bytes(plain, batch)
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# A penalty that keeps the [MASK] vector unlike what the encoder puts out


APART = [("inside", "modernbert", {}), ("inside", "electra", {"embedding_width": 16}), ("cross", "roberta", {})]


def kept_apart(kind, family, shape, weight):
    encoder = EncoderRecipe(family=family, layers=3, width=32, heads=2, **shape)
    return tiny_recipe(encoder=encoder, options=Join(kind, apart=weight))


@pytest.mark.parametrize(("kind", "family", "shape"), [*APART, ("cross-only", "bert", {})])
def test_the_penalty_is_the_mean_squared_cosine_with_visible_states(kind, family, shape):
    with_it, without = (kept_apart(kind, family, shape, weight) for weight in (0.5, 0.0))
    models, batch = [make_model(recipe).train() for recipe in (with_it, without)], make_batch(with_it)
    ours, plain = (model(**batch).loss for model in models)
    model = models[0]
    with torch.no_grad():
        layers = model.objective.layers_run_whole(model)
        states = model.encode(batch["visible_ids"], batch["visible_positions"], layers).flatten(0, 1)
        vector = (
            model.mask_vector if model.decoder is not None else model.family.widened(model.encoder, model.mask_vector)
        )
        cosines = [state @ vector / (state.norm() * vector.norm()) for state in states]
        expected = sum(cosine**2 for cosine in cosines) / len(cosines)
    assert expected > 0.001
    assert (ours - plain).item() == pytest.approx(0.5 * expected.item(), rel=1e-3)


@pytest.mark.parametrize(("kind", "family", "shape"), APART)
def test_the_penalty_moves_the_mask_and_nothing_of_the_encoder(kind, family, shape):
    gradients = []
    for weight in (100.0, 0.0):
        recipe = kept_apart(kind, family, shape, weight)
        model = make_model(recipe).train()
        model(**make_batch(recipe)).loss.backward()
        gradients.append({name: tensor.grad for name, tensor in model.named_parameters() if tensor.requires_grad})
    changed = {name for name in gradients[0] if not torch.equal(gradients[0][name], gradients[1][name])}
    assert {name for name in changed if "embeddings_project" not in name} == {"mask_vector"}


def test_steps_against_the_penalty_turn_the_mask_away():
    recipe = kept_apart("inside", "modernbert", {}, 1.0)
    model, batch = make_model(recipe), make_batch(recipe)
    visible = model.encode(batch["visible_ids"], batch["visible_positions"], 1)
    before = likeness(model, visible)
    (gradient,) = torch.autograd.grad(before, model.mask_vector)
    step = 1e-3
    with torch.no_grad():
        model.mask_vector -= step * gradient
    assert (before - likeness(model, visible)).item() == pytest.approx(step * gradient.square().sum().item(), rel=0.05)


def test_it_is_asked_for_while_training_alone_and_off_it_is_not_there():
    with_it, without = (make_model(kept_apart("inside", "modernbert", {}, weight)) for weight in (0.5, 0.0))
    batch = make_batch(kept_apart("inside", "modernbert", {}, 0.5))
    assert torch.equal(with_it(**batch).loss, without(**batch).loss)  # as a validation computes it
    assert torch.equal(logits_of(with_it.train(), batch), logits_of(without.train(), batch))
    assert not torch.equal(with_it(**batch).loss, without(**batch).loss)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_of_the_penalty_that_is_none_is_refused(weight):
    with pytest.raises(UserError, match=r"join\.apart is"):
        check_recipe(kept_apart("inside", "modernbert", {}, weight))


def test_reports_tell_a_mix_and_a_penalty_from_none():
    plain, both = (tiny_recipe(options=Join("cross-only", **more)) for more in ({}, {"mix": True, "apart": 0.1}))
    assert OBJECTIVES["late"].words(plain) == ["cross-only 2"]
    assert OBJECTIVES["late"].words(both) == ["cross-only 2", "mix", "apart 0.1"]


def test_models_of_before_mix_and_penalty_have_neither(tmp_path):
    recipe = joining("cross-only")
    model, batch = make_model(recipe), make_batch(recipe)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert (config.pop("mix"), config.pop("apart")) == (False, 0.0)
    path.write_text(json.dumps(config))
    assert torch.equal(LateMaskForPreTraining.from_pretrained(tmp_path).eval()(**batch).loss, model(**batch).loss)


def test_transformers_own_flash_attention_is_not_promised():
    assert not LateMaskForPreTraining._supports_flash_attn
    assert LateMaskForPreTraining._supports_sdpa
