"""ExLM-style masking: the loss is a sum over all paths, copies are told apart by rotation alone, and nothing leaks."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax
from transformers import AutoModel

from latemask import export, fill, pretrain
from latemask.budget.flops import sequence_flops
from latemask.families import Places, sight
from latemask.families.rotary import with_copies
from latemask.ground.errors import TimeIsUp, UserError
from latemask.masking.batches import Batch
from latemask.model import EncoderForPreTraining, build_model, complete_recipe
from latemask.objectives.copies import JoinedCopies
from latemask.objectives.exlm import Exlm, LateExlm
from latemask.objectives.lattice import Transitions, _mixed, path_sums, shares_of_slots
from latemask.recipe import OBJECTIVES, BudgetRecipe, EncoderRecipe, MaskRecipe, check_recipe, load_recipe
from latemask.run_folder import RunFolder
from latemask.training.loop import Loop, NonFinite
from tests.budget.test_flops import counted
from tests.budget.test_memory import bytes_kept
from tests.conftest import (
    VOCABULARY,
    loss_after_fitting_one_batch,
    make_batch,
    make_model,
    make_rows,
    tiny_recipe,
)
from tests.families.test_rotary import ROTARY
from tests.families.test_windows import slow_attention
from tests.training.test_processes import run_with

BOTH = ("exlm", "late-exlm")
OPTIONS = {"exlm": Exlm, "late-exlm": LateExlm}
WINDOWED = EncoderRecipe(layers=4, width=32, heads=2, window=8)


def expanding(objective, family="modernbert", mask=None, encoder=None, length=32, **options):
    """A tiny recipe of one of the two."""
    return tiny_recipe(
        objective=objective,
        length=length,
        options=OPTIONS[objective](**options),
        encoder=encoder or EncoderRecipe(family=family, layers=3, width=32, heads=2),
        mask=mask or MaskRecipe(rate=0.25),
    )


def unlabelled(batch):
    return {name: value for name, value in batch.items() if name not in ("labels", "ends")}


def parts_of(model, batch):
    """States of all slots, steps between them, and what the targets are."""
    states = model.objective.states(
        model, batch["visible_ids"], batch["visible_positions"], batch["expanded_positions"]
    )
    tokens = torch.cat((batch["ends"][:, :1], batch["labels"], batch["ends"][:, 1:]), dim=1)
    return states, model.transitions(states, batch["expanded_positions"]), tokens


def every_path(slots, targets):
    """All ways from the first slot to the last that visit so many."""
    return [(0, *between, slots - 1) for between in combinations(range(1, slots - 1), targets - 2)]


def path_score(path, emissions, steps):
    emitted = sum(emissions[slot, target] for target, slot in enumerate(path))
    return emitted + sum(steps[here, there - 1] for here, there in pairwise(path))


def enumerated(emissions, steps):
    """The log-sums over all paths [B], one path after the other."""
    paths = every_path(*emissions.shape[1:])
    rows = zip(emissions, steps, strict=True)
    return torch.stack([torch.stack([path_score(path, *row) for path in paths]).logsumexp(0) for row in rows])


def lattice(rows=2, copies=2, masks=3, heads=3):
    """Scores and gates of transitions, and log-probabilities of targets, all in fp64 and with a gradient."""
    torch.manual_seed(0)
    slots, targets = copies * (masks + 2), masks + 2
    shapes = (rows, heads, slots - 1, slots - 1), (rows, slots - 1, heads), (rows, slots, targets)
    scores, gates, emissions = (torch.randn(shape, dtype=torch.float64) * 2 for shape in shapes)
    return [one.requires_grad_() for one in (scores, log_softmax(gates, -1), log_softmax(emissions, 1))]


# The sum over paths


def test_loss_and_gradient_are_those_of_all_paths_one_after_the_other():
    scores, gates, emissions = lattice()
    found = []
    for way in (path_sums, enumerated):
        sums = way(emissions, _mixed(scores, gates))
        found.append([sums, *torch.autograd.grad((sums * torch.tensor([1.0, 3.0])).sum(), (scores, gates, emissions))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_gradient_is_that_of_finite_differences():
    scores, gates, emissions = lattice(rows=1, heads=2)
    assert torch.autograd.gradcheck(lambda s, g, e: path_sums(e, _mixed(s, g)), (scores, gates, emissions))


@pytest.mark.parametrize("objective", BOTH)
def test_a_models_loss_and_the_gradient_of_every_weight_are_those_of_all_paths(objective):
    recipe = expanding(objective, copies=2, mask=MaskRecipe(rate=0.1))
    model, batch = make_model(recipe).train(), make_batch(recipe)
    assert batch["labels"].shape[1] == 3
    model(**batch).loss.backward()
    ours = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    states, steps, tokens = parts_of(model, batch)
    every = model.predict(states, None).logits.log_softmax(-1)
    emissions = every.gather(2, tokens[:, None].expand(-1, every.shape[1], -1))
    loss = -enumerated(emissions, steps).mean() / 5
    loss.backward()
    torch.testing.assert_close(model(**batch).loss, loss)
    for one, weight in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(one, weight.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("objective", BOTH)
def test_with_one_copy_there_is_one_path(objective):
    recipe = expanding(objective, copies=1)
    model, batch = make_model(recipe).train(), make_batch(recipe)
    states, steps, tokens = parts_of(model, batch)
    entropy = cross_entropy(model.predict(states, None).logits.flatten(0, 1), tokens.flatten())
    expected = entropy - steps.diagonal(dim1=1, dim2=2).sum(1).mean() / tokens.shape[1]
    torch.testing.assert_close(model(**batch).loss, expected)


def test_steps_from_every_slot_but_the_last_go_to_those_behind_it_and_sum_to_one():
    torch.manual_seed(0)
    transitions = Transitions(width=12, heads=3, length=16, copies=2)
    steps = transitions(torch.randn(3, 10, 12), torch.tensor([[0, 3, 4, 9, 16]] * 3))
    assert steps.shape == (3, 9, 9)
    torch.testing.assert_close(steps.exp().sum(-1), torch.ones(3, 9))
    assert torch.equal(steps.isfinite(), torch.ones(3, 9, 9).triu().bool())


def test_shares_of_slots_are_those_of_all_paths():
    scores, gates, _ = lattice()
    steps = _mixed(scores, gates).detach()
    expected = torch.zeros(2, 5, 10, dtype=torch.float64)
    for path in every_path(10, 5):
        weight = torch.stack([path_score(path, torch.zeros(10, 5), row) for row in steps]).exp()
        for target, slot in enumerate(path):
            expected[:, target, slot] += weight
    torch.testing.assert_close(shares_of_slots(steps, 5).exp(), expected / expected.sum(2, keepdim=True))


def test_long_rows_are_summed_without_loss():
    """100 targets of 20 nats each: far below what fp32 can hold, but not its logarithm."""
    emissions, steps = torch.full((1, 200, 100), -20.0), _mixed(torch.zeros(1, 1, 199, 199), torch.zeros(1, 199, 1))
    exact = path_sums(emissions.double(), steps.double())
    torch.testing.assert_close(path_sums(emissions, steps).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("objective", BOTH)
def test_a_row_that_no_path_can_emit_is_refused_and_touches_no_weight(objective):
    recipe = complete_recipe(expanding(objective), VOCABULARY)
    model, batch = make_model(recipe), make_batch(recipe)
    loop = Loop(recipe, 10, model, torch.device("cpu"))
    with torch.no_grad():
        model.head.bias[batch["labels"][0, 0]] = -torch.inf
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(NonFinite):
        loop.step([Batch(batch)])
    assert loop.loss_sum.isinf()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


# Emissions


def test_log_probabilities_and_their_gradients_are_those_of_all_logits():
    recipe = expanding("exlm", length=256, copies=8)  # more slots than a chunk holds
    model, batch = make_model(recipe), make_batch(recipe, make_rows(2, 256))
    tokens = batch["labels"][:, :7].repeat(1, 2)  # the same token may stand in a row twice
    states = torch.randn(2, 300, 32, requires_grad=True)
    weights, learnt = torch.randn(2, 300, 14), [states, model.words, model.head.bias, model.head.dense.weight]
    every = model.predict(states, None).logits.log_softmax(-1)
    dense = every.gather(2, tokens[:, None].expand(-1, 300, -1))
    ours = model.log_probabilities(states, tokens)
    torch.testing.assert_close(ours, dense)
    found = [torch.autograd.grad((one * weights).sum(), learnt) for one in (ours, dense)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("objective", BOTH)
def test_half_precision_is_as_exact_as_half_precision_is(objective):
    recipe = expanding(objective)
    model, batch = make_model(recipe).train(), make_batch(recipe)
    exact = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        half = model(**batch).loss
    half.backward()
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=5e-3, atol=0)


# Rotation


@pytest.mark.parametrize("encoder", [*ROTARY, WINDOWED], ids=lambda one: one if isinstance(one, str) else "windows")
def test_scores_depend_on_differences_alone_and_number_0_is_the_stock_rotation_to_the_bit(encoder):
    encoder = EncoderRecipe(encoder, layers=2, width=32, heads=2) if isinstance(encoder, str) else encoder
    model = make_model(expanding("exlm", encoder=encoder))
    family, layer = model.family, model.family.layers(model.encoder)[1]
    states, positions = torch.randn(1, 1, 32).expand(1, 6, -1), torch.tensor([[0, 3, 3, 7, 8, 8]])
    copies = torch.tensor([[0, 1, 2, 0, 1, 4]])

    def scores(shift, numbers):
        places = family.places(model.encoder, states, positions + shift)
        places = places if numbers is None else with_copies(places, numbers)
        return family.queries(layer, states, places) @ family.keys_values(layer, states, places)[0].mT

    with torch.no_grad():
        torch.testing.assert_close(scores(0, copies), scores(11, copies + 2), rtol=1e-4, atol=1e-4)
        assert torch.equal(scores(0, 0 * copies), scores(0, None))
        moved = (scores(0, copies) - scores(0, None)).abs()[0].amax(0)
    same = copies[:, :, None] == copies[:, None]
    assert (moved[~same[0]] > 1e-3).all()
    assert (moved[same[0]] < 1e-4).all()


@pytest.mark.parametrize("family", ROTARY)
def test_with_numbers_of_0_alone_it_is_the_stock_encoder_with_vectors_as_words(family, monkeypatch):
    recipe = expanding("exlm", family)
    model, batch = make_model(recipe), make_batch(recipe)
    targets = batch["expanded_positions"].shape[1]
    joined = JoinedCopies(model, 3, targets)
    joined.numbers = 0 * joined.numbers
    visible = model.encode(batch["visible_ids"], batch["visible_positions"], 0)
    with torch.no_grad():
        ours = joined.run_whole(visible, batch["visible_positions"], batch["expanded_positions"])
        seen = visible if family == "esm" else model.words[batch["visible_ids"]]  # which rescales words
        vectors = torch.cat((seen, joined.vectors.expand(4, -1, -1)), dim=1)
        expanded = batch["expanded_positions"].repeat_interleave(4, 1)
        positions = torch.cat((batch["visible_positions"], expanded), dim=1)
        plain = model.encoder(inputs_embeds=vectors, position_ids=positions).last_hidden_state
    torch.testing.assert_close(ours, plain[:, -4 * targets :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ordered", [True, False])
def test_where_slots_share_positions_a_window_is_a_window_of_positions(ordered):
    torch.manual_seed(0)
    positions = torch.arange(60).repeat_interleave(4).expand(2, -1)
    if not ordered:
        positions = positions[:, torch.randperm(240)]
    places = replace(Places(positions, ordered=ordered), distinct=False)
    given = [torch.randn(2, 3, 240, 8) for _ in range(3)]
    assert sight.block_of(240, 20)
    ours = sight.attention(*given, places, places, window=20)
    torch.testing.assert_close(ours, slow_attention(*given, places, places, 20), rtol=1e-4, atol=1e-5)


# The stream


@pytest.mark.parametrize("objective", BOTH)
def test_a_batch_has_start_the_masked_positions_in_order_and_an_end_behind_the_row(objective):
    recipe = expanding(objective, mask=MaskRecipe(rate=0.25, drop=0.1))
    rows, batch = torch.from_numpy(make_rows()), make_batch(recipe)
    expanded = batch["expanded_positions"]
    assert (expanded[:, 0] == 0).all()
    assert (expanded[:, -1] == 32).all()
    assert (expanded.diff(dim=1) > 0).all()
    assert torch.equal(rows.gather(1, expanded[:, 1:-1]), batch["labels"])
    assert torch.equal(batch["ends"], torch.tensor([[VOCABULARY.bos, VOCABULARY.eos]] * 4))
    assert batch["visible_ids"].shape == (4, 32 - 8 - 3)


def test_a_stream_is_the_visible_and_all_copies_of_each_expanded_position_by_their_numbers():
    model, batch = make_model(expanding("exlm", copies=3)), make_batch(expanding("exlm", copies=3))
    expanded = batch["expanded_positions"]
    joined = JoinedCopies(model, 3, expanded.shape[1])
    assert joined.numbers.tolist() == [1, 2, 3] * expanded.shape[1]
    assert torch.equal(joined.vectors[:3], model.end_vectors[:1].expand(3, -1))
    assert torch.equal(joined.vectors[3:-3], model.mask_vector.expand(24, -1))
    assert torch.equal(joined.vectors[-3:], model.end_vectors[1:].expand(3, -1))


@pytest.mark.parametrize("objective", BOTH)
def test_the_id_at_a_hidden_position_changes_nothing(objective):
    recipe = expanding(objective, mask=MaskRecipe(rate=0.25, drop=0.1))
    model, rows = make_model(recipe), make_rows()
    batch, other = make_batch(recipe, rows), rows.copy()
    hidden = torch.ones(4, 32, dtype=torch.bool).scatter(1, batch["visible_positions"], False).numpy()
    other[hidden] = 5 + (other[hidden] - 4) % 290
    changed = make_batch(recipe, other)
    with torch.no_grad():
        assert torch.equal(model(**unlabelled(batch)).logits, model(**unlabelled(changed)).logits)
        assert not torch.equal(model(**batch).loss, model(**changed).loss)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("objective", BOTH)
def test_a_batch_is_its_rows(objective, is_training):
    recipe = expanding(objective)
    model, batch = make_model(recipe).train(is_training), make_batch(recipe)
    each = [model(**{name: value[row : row + 1] for name, value in batch.items()}).loss for row in range(4)]
    torch.testing.assert_close(model(**batch).loss, torch.stack(each).mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("encoder", [*ROTARY, WINDOWED], ids=lambda one: one if isinstance(one, str) else "windows")
def test_late_copies_leave_visible_states_as_the_stock_encoders_with_the_hidden_masked_out(encoder):
    length = 32 if isinstance(encoder, str) else 200  # computed in blocks where there are windows
    encoder = EncoderRecipe(encoder, layers=3, width=32, heads=2) if isinstance(encoder, str) else encoder
    recipe = expanding("late-exlm", encoder=encoder, length=length)
    model, batch = make_model(recipe), make_batch(recipe, make_rows(length=length))
    positions, expanded = batch["visible_positions"], batch["expanded_positions"]
    joined = JoinedCopies(model, 2, expanded.shape[1])
    with torch.no_grad():
        visible = model.encode(batch["visible_ids"], positions, encoder.layers - 2)
        stream, places = joined.stream(visible, joined.vectors, positions, expanded.repeat_interleave(2, 1))
        everything = joined.run(stream, places, positions.shape[1])
        everything = model.family.final_norm(model.encoder, everything)
        rows = torch.from_numpy(make_rows(length=length, seed=1)).scatter(1, positions, batch["visible_ids"])
        present = torch.zeros_like(rows).scatter(1, positions, 1)
        plain = model.encoder(input_ids=rows, attention_mask=present).last_hidden_state
        pruned = joined.run_late(visible, positions, expanded)
    expected = plain.gather(1, positions[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(everything[:, : positions.shape[1]], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(everything[:, positions.shape[1] :], pruned, rtol=1e-4, atol=1e-5)


# What it says of a hidden token


@pytest.mark.parametrize("objective", BOTH)
def test_logits_are_a_distribution_and_the_loss_of_a_judged_model_is_its_cross_entropy(objective):
    recipe = expanding(objective)
    model, batch = make_model(recipe), make_batch(recipe)
    with torch.no_grad():
        logits = model(**unlabelled(batch)).logits
        judged = model(**batch).loss
    assert logits.shape == (4, 8, 300)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(4, 8), rtol=0, atol=1e-5)
    torch.testing.assert_close(judged, cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()))


@pytest.mark.parametrize("objective", BOTH)
def test_of_one_hidden_token_they_are_the_joint_models_given_its_ends(objective):
    recipe = expanding(objective, mask=MaskRecipe(rate=1 / 32))
    model, batch = make_model(recipe), make_batch(recipe, make_rows(1))
    with torch.no_grad():
        states, steps, tokens = parts_of(model, batch)
        every = tokens.repeat(300, 1)
        every[:, 1] = torch.arange(300)
        emissions = model.log_probabilities(states.expand(300, -1, -1), every)
        joint = path_sums(emissions, steps.expand(300, -1, -1))
        torch.testing.assert_close(model(**unlabelled(batch)).logits[0, 0], joint.log_softmax(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", BOTH)
def test_texts_are_filled_as_batches_are(objective):
    """Where the text is a row that was masked; positions and numbers of masks may be any."""
    recipe = expanding(objective)
    model, batch = make_model(recipe), make_batch(recipe)
    ids = torch.from_numpy(make_rows())
    is_mask = torch.zeros(4, 32, dtype=torch.bool).scatter(1, batch["expanded_positions"][:, 1:-1], True)
    given = model.objective.fill_batch(ids.masked_fill(is_mask, VOCABULARY.mask), is_mask)
    assert all(torch.equal(given[name], value) for name, value in unlabelled(batch).items())
    assert given.keys() == unlabelled(batch).keys()


# The model


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize("objective", BOTH)
def test_every_weight_gets_a_gradient(objective, family):
    recipe = expanding(objective, family)
    model = make_model(recipe).train()
    model(**make_batch(recipe)).loss.backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []
    assert all(weight.grad.isfinite().all() for weight in trained.values())


@pytest.mark.parametrize("objective", BOTH)
def test_it_over_fits_one_small_batch(objective):
    assert loss_after_fitting_one_batch(expanding(objective)) < 0.05


@pytest.mark.parametrize("objective", BOTH)
def test_saving_and_loading_keeps_the_loss_to_the_bit(objective, tmp_path):
    recipe = expanding(objective, heads=4)
    model, batch = make_model(recipe), make_batch(recipe)
    model.save_pretrained(tmp_path)
    assert torch.equal(EncoderForPreTraining.from_pretrained(tmp_path).eval()(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("objective", BOTH)
def test_around_an_encoder_that_is_there_masks_and_ends_start_as_its_tokens(objective, tmp_path):
    old = make_model(expanding(objective))
    old.encoder.save_pretrained(tmp_path)
    recipe = expanding(objective, encoder=EncoderRecipe(init=str(tmp_path), vocab_size=300))
    model = build_model(recipe, VOCABULARY)
    assert torch.equal(model.mask_vector, old.words[VOCABULARY.mask])
    assert torch.equal(model.end_vectors, old.words[[VOCABULARY.bos, VOCABULARY.eos]])


@pytest.mark.parametrize("objective", BOTH)
def test_gradient_checkpointing_learns_the_same(objective):
    recipe = expanding(objective)
    plain, saving = make_model(recipe).train(), make_model(recipe).train()
    saving.gradient_checkpointing_enable()
    for model in (plain, saving):
        model(**make_batch(recipe)).loss.backward()
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# The cost


COSTS = [
    *(expanding(objective, family) for objective in BOTH for family in ROTARY),
    *(expanding(objective, encoder=WINDOWED, length=300) for objective in BOTH),
    *(expanding(objective, mask=MaskRecipe(rate=0.4, drop=0.2), copies=3, heads=8) for objective in BOTH),
    expanding("late-exlm", layers=1, copies=1, encoder=EncoderRecipe(layers=2, width=24, heads=3, vocab_size=1000)),
    expanding("late-exlm", layers=3, encoder=EncoderRecipe("eurobert", layers=3, width=32, heads=4, key_value_heads=2)),
]


@pytest.mark.parametrize("recipe", COSTS, ids=lambda one: f"{one.objective}-{one.encoder.family}")
def test_flops_and_weights_are_those_that_torch_counts(recipe):
    recipe = complete_recipe(recipe, VOCABULARY)
    assert sequence_flops(recipe).training == pytest.approx(counted(recipe), rel=1e-13)
    trained = sum(weight.numel() for weight in build_model(recipe, VOCABULARY).parameters() if weight.requires_grad)
    assert OBJECTIVES[recipe.objective].weights(recipe).total == trained


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize("encoder", [EncoderRecipe(layers=4, width=64, heads=2), replace(WINDOWED, width=64)], ids=str)
def test_what_a_row_keeps_is_what_autograd_keeps(objective, encoder):
    recipe = expanding(objective, encoder=encoder, length=64)
    kept = OBJECTIVES[objective].kept_numbers(complete_recipe(recipe, VOCABULARY), scores=False)
    assert 4 * kept == pytest.approx(bytes_kept(recipe), rel=0.1)


# Whole runs


@pytest.mark.parametrize("objective", BOTH)
def test_it_trains_resumes_to_the_same_bits_exports_and_fills(objective, data, tmp_path):
    recipe = expanding(objective)
    recipe = replace(recipe, train=replace(recipe.train, save_every=3), budget=BudgetRecipe(steps=6))
    whole = pretrain(recipe, data=data.folder, out=tmp_path / "whole")
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)
    files = [one.model / "model.safetensors" for one in (whole, run)]
    assert files[0].read_bytes() == files[1].read_bytes()
    losses = [
        [row[key] for row in one.metrics() for key in ("loss", "eval_loss") if key in row] for one in (whole, run)
    ]
    assert losses[0] == losses[1]
    encoder = export(run.path, out=tmp_path / "encoder")
    assert AutoModel.from_pretrained(encoder).config.model_type == "modernbert"
    assert "ExLM-style" in (encoder / "README.md").read_text()
    with pytest.raises(UserError, match="never had"):
        export(run.path, out=tmp_path / "mlm", mlm=True)
    assert [len(found) for found in fill(run.path, "Return <mask> if the <mask> is empty.", top=3)] == [3, 3]
    with pytest.raises(UserError, match="takes 32 at most"):
        fill(run.path, "<mask> " * 40)


@pytest.mark.parametrize("objective", BOTH)
def test_two_processes_with_half_of_the_rows_learn_the_same(objective, data, tmp_path):
    recipe = replace(expanding(objective), budget=BudgetRecipe(steps=3))
    assert [run_with(world, recipe, data, tmp_path / f"{world}") for world in (1, 2)] == [[0], [0, 0]]
    one, two = ([row["loss"] for row in RunFolder(tmp_path / world).metrics() if "loss" in row] for world in "12")
    assert len(one) == 3
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("objective", BOTH)
def test_at_the_end_the_masks_may_stand_in_the_input(objective, data, tmp_path):
    recipe = expanding(objective)
    train = replace(recipe.train, finish_early=0.5, eval_every=1)
    recipe = replace(recipe, train=train, budget=BudgetRecipe(steps=2))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    assert (export(run.path, out=tmp_path / "mlm", mlm=True) / "config.json").is_file()


# What makes no sense


@pytest.mark.parametrize("objective", BOTH)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"encoder": {"family": "roberta"}}, "by rotary positions: .*modernbert.* have them, roberta has not"),
        ({"mask": {"random": 0.1}}, "mask.random and mask.keep are not for"),
        ({"mask": {"keep": 0.1}}, "hidden tokens alone"),
        ({"own": {"copies": 0}}, "copies is 0; it must be between 1 and 64"),
        ({"own": {"copies": 65}}, "copies is 65"),
        ({"own": {"heads": 5}}, "heads 5 does not divide encoder.width 192"),
        ({"own": {"heads": 0}}, "heads 0 does not divide"),
    ],
)
def test_what_makes_no_sense_is_refused(objective, changed, said):
    section = OBJECTIVES[objective].section
    changed = {section if name == "own" else name: keys for name, keys in changed.items()}
    with pytest.raises(UserError, match=said):
        load_recipe(f"mini-{objective}", changed)


@pytest.mark.parametrize(
    ("layers", "said"), [(0, "is 0; at least one layer"), (13, "13 is more than encoder.layers 12")]
)
def test_late_copies_need_layers_to_join(layers, said):
    with pytest.raises(UserError, match=said):
        load_recipe("mini-late-exlm", {"late_exlm": {"layers": layers}})


def test_an_encoder_that_turns_out_to_have_no_rotation_is_refused(tmp_path):
    model = make_model(tiny_recipe(encoder=EncoderRecipe("roberta", layers=2, width=32, heads=2)))
    model.encoder.save_pretrained(tmp_path)
    recipe = expanding("exlm", encoder=EncoderRecipe(init=str(tmp_path), vocab_size=300))
    check_recipe(recipe)  # not opened yet
    with pytest.raises(UserError, match="roberta has not"):
        check_recipe(complete_recipe(recipe, VOCABULARY))
    with pytest.raises(UserError, match="this encoder has a table of positions"):
        build_model(recipe, VOCABULARY)
