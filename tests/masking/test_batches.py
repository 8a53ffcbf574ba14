"""Batches: late and early models get the same masks, laid out for each."""

import copy
import pickle

import numpy as np
import torch

from latemask.masking.batches import Batch, EarlyMaskCollator, LateMaskCollator, MaskSchedule
from latemask.masking.masks import draw_masks
from latemask.recipe import MaskCounts, MaskRecipe, TrainRecipe
from tests.conftest import VOCABULARY, make_rows, tiny_recipe

COUNTS = MaskCounts.of(MaskRecipe(rate=0.4, random=0.2, keep=0.2, drop=0.1), 32)
ROWS = make_rows(6)
SAMPLES = [{"ids": row, "index": index} for index, row in enumerate(ROWS)]
MASKS = draw_masks(ROWS, np.arange(6), COUNTS, VOCABULARY, 0)


def test_the_late_batch_holds_no_token_of_a_hidden_position():
    batch = LateMaskCollator(COUNTS, VOCABULARY)(SAMPLES)
    rows = torch.from_numpy(MASKS.ids)
    assert torch.equal(batch["visible_ids"], rows.gather(1, batch["visible_positions"]))
    hidden = torch.from_numpy(np.concatenate([MASKS.masked, MASKS.dropped], axis=1))
    assert not (batch["visible_positions"][:, :, None] == hidden[:, None, :]).any()


def test_late_labels_are_the_true_tokens_first_of_masked_then_of_corrupted():
    batch = LateMaskCollator(COUNTS, VOCABULARY)(SAMPLES)
    corrupted = batch["visible_positions"].gather(1, batch["corrupted_slots"])
    positions = torch.cat((batch["masked_positions"], corrupted), dim=1)
    assert torch.equal(batch["labels"], torch.from_numpy(ROWS).gather(1, positions))
    assert batch["labels"].shape == (6, COUNTS.predicted)


def test_the_early_batch_has_mask_tokens_exactly_at_masked_positions_and_nothing_dropped():
    batch = EarlyMaskCollator(COUNTS, VOCABULARY)(SAMPLES)
    for ids, positions, masked, dropped in zip(
        batch["input_ids"], batch["positions"], MASKS.masked, MASKS.dropped, strict=True
    ):
        assert positions[ids == VOCABULARY.mask].tolist() == masked.tolist()
        assert not set(positions.tolist()) & set(dropped)


def test_early_and_late_predict_the_same():
    late, early = (
        LateMaskCollator(COUNTS, VOCABULARY)(SAMPLES),
        EarlyMaskCollator(COUNTS, VOCABULARY)(SAMPLES),
    )
    assert torch.equal(late["labels"], early["labels"])
    predicted = early["positions"].gather(1, early["predicted_slots"])
    assert torch.equal(torch.from_numpy(ROWS).gather(1, predicted), early["labels"])


def test_a_rate_that_falls_is_the_same_for_all_samples_of_a_step():
    recipe = tiny_recipe(mask=MaskRecipe(rate=0.5, rate_end=0.1), train=TrainRecipe(batch_size=4))
    collator = LateMaskCollator(MaskSchedule(recipe, steps=8), VOCABULARY)
    found = []
    for index in range(32):
        (labels,) = collator([{"ids": ROWS[0], "index": index}])["labels"]
        found.append(len(labels))
    by_step = [found[step * 4 : step * 4 + 4] for step in range(8)]
    assert [len(set(counts)) for counts in by_step] == [1] * 8
    assert [counts[0] for counts in by_step] == [round(32 * (0.5 - 0.4 * (step + 0.5) / 8)) for step in range(8)]


def test_a_rate_that_stays_draws_what_it_always_drew():
    recipe = tiny_recipe(mask=MaskRecipe(rate=0.4))
    one, other = (LateMaskCollator(c, VOCABULARY)(SAMPLES) for c in (recipe.counts, MaskSchedule(recipe, steps=3)))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_batch_survives_the_way_from_a_worker_and_stays_a_dictionary_of_tensors():
    batch = LateMaskCollator(COUNTS, VOCABULARY)(SAMPLES)
    again = pickle.loads(pickle.dumps(batch))
    assert type(again) is type(batch)
    assert again.keys() == batch.keys()
    assert all(torch.equal(again[name], batch[name]) and again[name].dtype == batch[name].dtype for name in batch)
    again["labels"] += 1  # not a view of something read-only


def test_a_batch_that_is_not_in_main_memory_can_be_copied():
    batch = Batch(labels=torch.empty(2, device="meta"))
    assert copy.copy(batch)["labels"].device.type == "meta"
