"""Masks: exact counts, a partition of the row, special tokens left alone, a pure function of (seed, index)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask.masking.masks import draw_masks, slots_of
from latemask.recipe import MaskCounts, MaskRecipe
from tests.conftest import VOCABULARY, make_rows

shares = st.floats(0, 0.3)


@st.composite
def counts_and_rows(draw):
    length = draw(st.integers(8, 80))
    rate = draw(st.floats(1.0 / length, 0.5))
    mask = MaskRecipe(rate=rate, random=draw(shares), keep=draw(shares), drop=draw(shares))
    counts = MaskCounts.of(mask, length)
    return counts, make_rows(draw(st.integers(1, 6)), length, draw(st.integers(0, 999)))


@settings(max_examples=60, deadline=None)
@given(counts_and_rows(), st.integers(0, 2**32), st.integers(0, 2**50))
def test_visible_masked_and_dropped_partition_every_row_with_exact_counts(case, seed, first):
    counts, rows = case
    masks = draw_masks(rows, np.arange(first, first + len(rows)), counts, VOCABULARY, seed)
    assert masks.masked.shape[1] + masks.corrupted.shape[1] == counts.predicted
    assert masks.dropped.shape[1] == counts.dropped
    for visible, masked, dropped in zip(masks.visible, masks.masked, masks.dropped, strict=True):
        assert sorted([*visible, *masked, *dropped]) == list(range(counts.length))


@settings(max_examples=40, deadline=None)
@given(counts_and_rows(), st.integers(0, 99))
def test_corrupted_positions_are_visible_and_only_the_random_ones_changed(case, seed):
    counts, rows = case
    masks = draw_masks(rows, np.arange(len(rows)), counts, VOCABULARY, seed)
    for row, ids, visible, corrupted in zip(rows, masks.ids, masks.visible, masks.corrupted, strict=True):
        changed = set(np.flatnonzero(row != ids))
        assert changed <= set(corrupted) <= set(visible)
        assert len(changed) <= counts.random
        assert not set(ids[list(changed)]) & set(VOCABULARY.special)


def test_rate_counts_are_rounded_shares_of_the_row():
    counts = MaskCounts.of(MaskRecipe(rate=0.5, random=0.1, keep=0.1, drop=0.25), 128)
    assert (counts.predicted, counts.random, counts.kept, counts.dropped) == (64, 6, 6, 32)
    assert (counts.masked, counts.visible) == (52, 128 - 52 - 32)


def test_random_replacement_really_replaces():
    counts = MaskCounts.of(MaskRecipe(rate=0.5, random=0.5), 64)
    rows = make_rows(32, 64)
    masks = draw_masks(rows, np.arange(32), counts, VOCABULARY, 0)
    assert (rows != masks.ids).sum() > 0.95 * 32 * counts.random  # a random token may be the true one, rarely


def test_the_first_token_is_never_hidden_and_document_ends_only_when_nothing_else_is_left():
    counts = MaskCounts.of(MaskRecipe(rate=0.4, drop=0.2), 32)
    rows = make_rows(64)
    rows[:, 5::5] = VOCABULARY.eos
    masks = draw_masks(rows, np.arange(64), counts, VOCABULARY, 0)
    hidden = np.concatenate([masks.masked, masks.dropped], axis=1)
    assert (hidden > 0).all()
    assert not (np.take_along_axis(rows, hidden, axis=1) == VOCABULARY.eos).any()

    rows[:, 1:] = VOCABULARY.eos
    rows[:, 7] = 9
    masks = draw_masks(rows, np.arange(64), counts, VOCABULARY, 0)
    assert masks.masked.shape == (64, counts.predicted)
    assert (masks.masked > 0).all()
    assert (masks.masked == 7).any(axis=1).all()  # the one ordinary token goes first


def test_a_mask_depends_on_seed_and_index_and_on_nothing_else():
    counts, rows = MaskCounts.of(MaskRecipe(rate=0.4), 32), make_rows(8)
    together = draw_masks(rows, np.arange(8), counts, VOCABULARY, 3).masked
    alone = [draw_masks(rows[i : i + 1], np.array([i]), counts, VOCABULARY, 3).masked[0] for i in range(8)]
    assert (together == alone).all()
    assert (together != draw_masks(rows, np.arange(8), counts, VOCABULARY, 4).masked).any()
    assert (together != draw_masks(rows, np.arange(8) + 8, counts, VOCABULARY, 3).masked).any()


def test_every_position_is_masked_equally_often():
    counts, rows = MaskCounts.of(MaskRecipe(rate=0.25), 33), make_rows(1, 33).repeat(20_000, axis=0)
    masked = draw_masks(rows, np.arange(20_000), counts, VOCABULARY, 0).masked
    frequency = np.bincount(masked.ravel(), minlength=33)[1:] / 20_000
    assert np.abs(frequency - counts.predicted / 32).max() < 0.015  # four standard deviations


def test_masks_are_the_same_next_year():
    """A resumed run must draw what it drew before, so these numbers may never change."""
    counts = MaskCounts.of(MaskRecipe(rate=0.3), 16)
    masks = draw_masks(make_rows(2, 16), np.array([0, 10**12]), counts, VOCABULARY, 7)
    assert masks.masked.tolist() == [[1, 6, 10, 12, 15], [2, 3, 4, 8, 12]]


def test_slots_are_where_positions_stand():
    among = np.array([[0, 2, 5, 9], [1, 3, 4, 8]])
    assert slots_of(np.array([[2, 9], [1, 4]]), among, 10).tolist() == [[1, 3], [0, 2]]
