"""MAE-LM: the encoder sees visible tokens only, the [MASK]s are words of its own table, every slot has a place."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from latemask import UserError, export, fill, pretrain
from latemask.budget.flops import count_weights, sequence_flops
from latemask.card import model_card
from latemask.cli import main
from latemask.evaluation.effective_rank import ranked
from latemask.evaluation.encoders import open_encoders
from latemask.evaluation.probe_records import rank_words
from latemask.ground.errors import TimeIsUp
from latemask.masking.batches import Collator
from latemask.model import build_model, complete_recipe, load_model
from latemask.objectives.mae_lm import MaeLmOptions
from latemask.recipe import OBJECTIVES, BudgetRecipe, EncoderRecipe, MaskRecipe, check_recipe, load_recipe
from latemask.starts import start, typical_word
from latemask.text import Mixture
from tests.budget.test_flops import assert_exact
from tests.budget.test_memory import bytes_kept
from tests.budget.test_weights import counted
from tests.conftest import (
    FAMILIES,
    VOCABULARY,
    loss_after_fitting_one_batch,
    make_batch,
    make_model,
    make_rows,
    tiny_recipe,
)
from tests.evaluation.test_effective_rank import TEXTS
from tests.objectives.test_late import kept_bytes, logits_of

NARROW = {"electra": {"embedding_width": 16}, "deberta-v2": {"embedding_width": 24, "buckets": 8}}
CORRUPTING = MaskRecipe(rate=0.4, random=0.2, keep=0.2, drop=0.1)


def mae(family="modernbert", layers=2, mask=CORRUPTING, **changes):
    encoder = EncoderRecipe(family=family, layers=3, width=32, heads=2, **NARROW.get(family, {}))
    options = MaeLmOptions(layers=layers)
    return tiny_recipe(objective="mae-lm", encoder=encoder, mask=mask, options=options, **changes)


def decoder_arguments(model, batch):
    visible = model.encode(batch["visible_ids"], batch["visible_positions"])
    mask = model.family.widened(model.encoder, model.words[VOCABULARY.mask])
    return visible, mask, batch["visible_positions"], batch["masked_positions"], batch["corrupted_slots"]


# The encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoders_states_are_the_stock_models_with_the_hidden_masked_out(family):
    recipe = mae(family, mask=MaskRecipe(rate=0.4))
    model, batch = make_model(recipe), make_batch(recipe)
    seen = []
    handle = model.decoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        model(**batch)
        handle.remove()
        visible = batch["visible_positions"]
        rows = torch.from_numpy(make_rows(seed=1)).scatter(1, visible, batch["visible_ids"])
        present = torch.zeros(4, 32, dtype=torch.long).scatter(1, visible, 1)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
    expected = plain.gather(1, visible[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-5)


def test_the_id_at_a_hidden_position_changes_no_logit():
    recipe, rows = mae(), make_rows()
    model, batch = make_model(recipe), make_batch(recipe, rows)
    hidden = torch.ones(4, 32, dtype=torch.bool).scatter(1, batch["visible_positions"], False).numpy()
    other = rows.copy()
    other[hidden] = 5 + (other[hidden] - 4) % 290
    assert torch.equal(logits_of(model, batch), logits_of(model, make_batch(recipe, other)))


# The decoder


def test_the_decoder_is_what_the_paper_says_slot_by_slot():
    """A slow loop over the row in its order: states or <mask> + the decoder's position, norm, layers, norm."""
    recipe = mae(mask=replace(CORRUPTING, drop=0.0))
    model, batch = make_model(recipe), make_batch(recipe)
    decoder = model.decoder
    with torch.no_grad():
        visible = model.encode(batch["visible_ids"], batch["visible_positions"])
        expected = []
        for row in range(4):
            slots = model.words[VOCABULARY.mask].repeat(32, 1)
            for number, place in enumerate(batch["visible_positions"][row]):
                slots[place] = visible[row, number]
            stream = torch.stack([slots[place] + decoder.position_embeddings.weight[place] for place in range(32)])
            stream = decoder.memory_norm(stream)[None]
            for layer in decoder.layers:
                stream = layer(stream, None, None)
            corrupted = batch["visible_positions"][row, batch["corrupted_slots"][row]]
            predicted = torch.cat((batch["masked_positions"][row], corrupted))
            expected.append(decoder.norm(stream)[0, predicted])
        found = decoder(*decoder_arguments(model, batch))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_random_and_kept_tokens_are_predicted_where_they_stand():
    """What fairseq's dataset confuses: tokens and positions that stay visible although they are predicted."""
    recipe, rows = mae(), make_rows()
    batch = make_batch(recipe, rows)
    corrupted = batch["visible_positions"].gather(1, batch["corrupted_slots"])
    predicted = torch.cat((batch["masked_positions"], corrupted), dim=1)
    assert torch.equal(batch["labels"], torch.from_numpy(rows).gather(1, predicted))
    plain = batch["visible_ids"] == torch.from_numpy(rows).gather(1, batch["visible_positions"])
    assert plain.scatter(1, batch["corrupted_slots"], True).all()


def test_every_slot_gets_a_position_of_the_decoder():
    recipe = mae(mask=MaskRecipe(rate=0.4))
    model = make_model(recipe)
    model(**make_batch(recipe)).loss.backward()
    assert (model.decoder.position_embeddings.weight.grad.abs().sum(1) > 0).all()
    assert model.decoder.relative_bias is None


@pytest.mark.parametrize("layers", [1, 2])
def test_the_pruned_last_layer_equals_the_unpruned_one(layers):
    recipe = mae(layers=layers)
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        pruned, whole = (model.decoder(*decoder_arguments(model, batch), prune=prune) for prune in (True, False))
    assert pruned.shape == (4, recipe.counts.predicted, 32)
    torch.testing.assert_close(pruned, whole, rtol=1e-4, atol=1e-5)


def test_a_mask_is_the_row_of_the_mask_token_and_gets_the_gradient():
    recipe = mae(mask=MaskRecipe(rate=0.4))
    model, batch = make_model(recipe), make_batch(recipe)
    before = logits_of(model, batch)
    output = model(**batch)
    # The row is compared with states as well, like every word's: without that share, only the decoder reads it.
    (table,) = torch.autograd.grad(output.loss, model.encoder.get_input_embeddings().weight, retain_graph=True)
    model.head.words = torch.nn.Parameter(model.words.detach().clone())
    (of_reading,) = torch.autograd.grad(model(**batch).loss, model.encoder.get_input_embeddings().weight)
    unread = sorted(set(range(300)) - set(batch["visible_ids"].flatten().tolist()) - {VOCABULARY.mask})
    assert of_reading[VOCABULARY.mask].abs().sum() > 0
    assert not of_reading[unread].any()
    assert table[unread].any()
    with torch.no_grad():
        model.words[VOCABULARY.mask] += 1 + torch.arange(32.0)
    assert not torch.allclose(logits_of(model, batch), before)
    assert not hasattr(model, "mask_vector")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_gets_a_gradient(family):
    recipe = mae(family)
    model = make_model(recipe).train()
    model(**make_batch(recipe)).loss.backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []


def test_there_is_no_dropout_in_the_decoder():
    recipe = mae()
    recipe = replace(recipe, encoder=replace(recipe.encoder, dropout=0.5))
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        given = decoder_arguments(model, batch)
        assert torch.equal(model.decoder.train()(*given), model.decoder.eval()(*given))


def test_it_over_fits_one_small_batch():
    assert loss_after_fitting_one_batch(mae("electra", mask=MaskRecipe(rate=0.4))) < 0.05


def test_gradient_checkpointing_reaches_the_decoder():
    recipe = mae(layers=3)
    plain, saving = make_model(recipe).train(), make_model(recipe).train()
    saving.gradient_checkpointing_enable()
    batch = make_batch(recipe)
    assert kept_bytes(saving, batch) < 0.6 * kept_bytes(plain, batch)
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# What it costs


@pytest.mark.parametrize("mask", [MaskRecipe(rate=0.15), CORRUPTING], ids=["plain", "corrupting"])
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("family", ["modernbert", "roberta", "deberta-v2", "distilbert"])
def test_the_closed_form_is_exact(family, layers, mask):
    assert_exact(mae(family, layers, mask))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_mask_that_is_widened_is_counted(rows):
    """ELECTRA's words may be narrower than its layers."""
    recipe = mae("electra")
    assert_exact(replace(recipe, train=replace(recipe.train, batch_size=rows)))


def test_in_the_papers_shape_it_costs_a_sixth_more_than_mlm_layers_alone_and_whole():
    """(0.85 L + 4) / L of MLM's layers, but for the products of attention."""
    recipe = complete_recipe(load_recipe("mae-lm-base", {"length": 40}), VOCABULARY)
    mlm = sequence_flops(replace(recipe, objective="early"))
    assert sequence_flops(recipe, pruned=False).layers / mlm.layers == pytest.approx((0.85 * 12 + 4) / 12, abs=0.005)


@pytest.mark.parametrize("family", ["modernbert", "electra", "roberta"])
def test_every_weight_is_counted(family):
    recipe = mae(family)
    real, weights = counted(recipe), count_weights(complete_recipe(recipe, VOCABULARY))
    assert {name: getattr(weights, name) for name in real} == real


@pytest.mark.parametrize("family", ["modernbert", "bert"])
@pytest.mark.parametrize("mask", [MaskRecipe(rate=0.15), CORRUPTING], ids=["plain", "corrupting"])
def test_what_a_row_keeps_is_what_autograd_keeps(family, mask):
    encoder = EncoderRecipe(family=family, layers=4, width=64, heads=2)
    recipe = replace(mae(mask=mask, layers=3), encoder=encoder, length=64)
    kept = OBJECTIVES["mae-lm"].kept_numbers(complete_recipe(recipe, VOCABULARY), scores=False)
    assert 4 * kept == pytest.approx(bytes_kept(recipe), rel=0.06)


# What a recipe can be


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"options": MaeLmOptions(layers=0)}, "mae_lm.layers is 0"),
        ({"mask": MaskRecipe(rate=0.5, random=0.5, keep=0.5)}, "leave no position masked; mae-lm masking needs some"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        check_recipe(replace(mae(), **changes))


@pytest.mark.parametrize(("name", "like"), [("mae-lm-base", "mlm-base"), ("mini-mae-lm", "mini-base")])
def test_the_recipes_differ_from_their_kin_in_the_masks_only(name, like):
    ours, theirs = load_recipe(name), load_recipe(like)
    assert (ours.encoder, ours.train, ours.length, ours.budget) == (
        theirs.encoder,
        theirs.train,
        theirs.length,
        theirs.budget,
    )
    assert (ours.objective, ours.mask, ours.options.layers) == ("mae-lm", MaskRecipe(rate=0.15), 4)


# Where it starts


def test_started_from_the_corpus_a_mask_is_like_a_word(data):
    mixture = Mixture.open(data.folder)
    recipe = complete_recipe(mae(), mixture.vocabulary)
    torch.manual_seed(0)
    model = build_model(recipe, mixture.vocabulary)
    assert start(model, recipe, mixture) == "corpus"
    from latemask.starts import Corpus

    with torch.no_grad():
        expected = model.words[mixture.vocabulary.mask].clone()
        model.words[mixture.vocabulary.mask] = 0  # a mean has no share of it: no text holds a <mask>
        torch.testing.assert_close(typical_word(model, Corpus(mixture)), expected)


# A run


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return pretrain(short(), data=data.folder, out=tmp_path_factory.mktemp("runs") / "mae")


def short(steps=4, **train):
    recipe = mae("roberta", mask=MaskRecipe(rate=0.15))
    return replace(recipe, budget=BudgetRecipe(steps=steps), train=replace(recipe.train, save_every=2, **train))


def weights(run):
    return load_file(run.model / "model.safetensors")


def test_it_resumes_to_the_same_bits(run, data, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(short(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    resumed = pretrain(short(), data=data.folder, out=tmp_path / "run", resume=True)
    ours, theirs = weights(resumed), weights(run)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_keeps_the_layers_of_its_decoder(data, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(short(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    other = replace(short(), options=MaeLmOptions(layers=3))
    with pytest.raises(UserError, match=r"mae_lm\.layers: 2 -> 3: a run keeps its model's shape"):
        pretrain(other, data=data.folder, out=tmp_path / "run", resume=True, allow_changes=True)


def test_it_fills_a_mask_by_the_models_own_logits(run):
    assert [len(found) for found in fill(run.path, "The <mask> of <mask> is.", top=3)] == [3, 3]
    model = load_model(run.model)
    rows = make_rows(2, 12)
    rows[:, [3, 7]] = VOCABULARY.mask
    ids = torch.from_numpy(rows)
    filled = model.objective.fill_batch(ids, ids == VOCABULARY.mask)
    masks = torch.tensor([[3, 7]] * 2)
    visible = torch.tensor([[place for place in range(12) if place not in (3, 7)]] * 2)
    by_hand = {"visible_ids": ids.gather(1, visible), "visible_positions": visible, "masked_positions": masks}
    by_hand["mask_ids"] = torch.full((2, 1), VOCABULARY.mask)
    assert filled.keys() == by_hand.keys()
    assert all(torch.equal(filled[name], by_hand[name]) for name in filled)
    assert torch.equal(logits_of(model, filled), logits_of(model, by_hand))


def test_its_encoder_is_a_stock_one_with_its_words_on_the_card(run, tmp_path):
    folder = export(run.path, out=tmp_path / "encoder")
    theirs = load_file(folder / "model.safetensors")
    assert not any("decoder" in name for name in theirs)
    ours = weights(run)["encoder.embeddings.word_embeddings.weight"]
    assert torch.equal(theirs["embeddings.word_embeddings.weight"], ours)
    card = (folder / "README.md").read_text()
    assert "MAE-LM-style masking, the encoder saw only visible tokens" in card
    assert "showed the encoder its mask token" in card
    assert model_card(run, run.model, load_model(run.model), 3)


def test_it_is_planned_and_read_as_yaml(run, capsys):
    assert main(["plan", str(run.recipe_file), "--mae-lm.layers", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["mae_lm"] == {"layers": 5}
    assert main(["plan", str(run.recipe_file), "--join.kind", "self"]) == 2
    assert main(["plan", str(run.recipe_file)]) == 0
    assert "[MASK]s join a decoder of 2 layers as words" in capsys.readouterr().out


def test_the_masks_may_move_to_the_input_at_the_end_and_are_the_word_they_were(data, tmp_path):
    recipe = short(8, finish_early=0.25, keep_at=(6,))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    model = load_model(run.model)
    assert model.config.objective == "early"
    assert model.objective.mask_in_input
    assert not any(name.startswith("decoder.") for name in weights(run))
    turn = load_file(run.checkpoints / "checkpoint-6" / "model.safetensors")
    words = "encoder.embeddings.word_embeddings.weight"
    left = OBJECTIVES["mae-lm"].left_behind(turn, words, VOCABULARY.mask)
    assert torch.equal(left[words], turn[words])
    assert left.keys() == weights(run).keys()
    export(run.path, out=tmp_path / "mlm", mlm=True)


def test_without_such_an_end_a_masked_language_model_is_refused(run, tmp_path):
    """The row of <mask> is trained, but no layer of the encoder has read it."""
    with pytest.raises(UserError, match="has to learn its mask token"):
        export(run.path, out=tmp_path / "mlm", mlm=True)


def test_another_run_goes_on_from_its_encoder_and_takes_its_mask(run, data):
    encoder = EncoderRecipe(init=str(run.path))
    for objective in ("late", "mae-lm"):
        recipe = complete_recipe(tiny_recipe(objective=objective, encoder=encoder), data.vocabulary)
        model = build_model(recipe, data.vocabulary)
        row = weights(run)["encoder.embeddings.word_embeddings.weight"][data.vocabulary.mask]
        assert torch.equal(model.mask_vector if objective == "late" else model.words[data.vocabulary.mask], row)


def test_its_effective_rank_is_measured_with_and_without_masks(run):
    found = ranked(open_encoders([str(run.path)])[0], TEXTS)
    assert [layer.layer for layer in found.encoder] == [0, 1, 2, 3]
    assert all(0 < share <= 1 for layer in found.encoder for share in (layer.clean, layer.masked, layer.with_masks))
    assert "with mae-lm masking and never saw a [MASK] in its input" in " ".join(rank_words(found, "mae-lm"))
    assert "never saw" not in " ".join(rank_words(found, "early"))


def test_batches_are_the_same_for_any_number_of_rows():
    recipe = mae()
    samples = [{"ids": row, "index": index} for index, row in enumerate(make_rows())]
    collator = Collator(recipe.counts, VOCABULARY, 0, objective="mae-lm", options=recipe.options)
    whole, halves = collator(samples), [collator(samples[:2]), collator(samples[2:])]
    assert all(torch.equal(whole[name], torch.cat([half[name] for half in halves])) for name in whole)
