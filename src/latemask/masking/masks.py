"""Which positions of a row are visible, masked, corrupted or dropped: a pure function of (seed, sample index).

B rows, L length, V visible, M masked, R corrupted (random or kept, visible and predicted), D dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from latemask.masking.randomness import Stream, draws, key
from latemask.recipe import PATTERNS, MaskCounts
from latemask.text.tokenizer import Vocabulary

_CORRUPTED, _MASKED, _DROPPED = 1, 2, 3  # 0 is visible and untouched


@dataclass(frozen=True)
class Masks:
    """Positions by their part; `visible`, `masked` and `dropped` partition the row, all sorted."""

    ids: np.ndarray
    """[B, L] the row with random tokens put in; the tokens at masked positions are still the true ones."""
    visible: np.ndarray
    """[B, V]"""
    masked: np.ndarray
    """[B, M] hidden and predicted"""
    corrupted: np.ndarray
    """[B, R] visible and predicted"""
    dropped: np.ndarray
    """[B, D] hidden and not predicted"""


def draw_masks(
    ids: np.ndarray,
    indices: np.ndarray,
    counts: MaskCounts,
    vocabulary: Vocabulary,
    seed: int,
    pattern: str = "uniform",
) -> Masks:
    """Draw the masks of samples `indices`, whose rows are `ids` [B, L]."""
    order = PATTERNS[pattern](ids, key(seed, Stream.MASK, indices), counts, vocabulary)
    random, kept, masked, dropped, _ = np.split(
        order,
        np.cumsum([counts.random, counts.kept, counts.masked, counts.dropped]),
        axis=1,
    )
    part: np.ndarray = np.zeros(ids.shape, np.uint8)
    np.put_along_axis(part, random, _CORRUPTED, axis=1)
    np.put_along_axis(part, kept, _CORRUPTED, axis=1)
    np.put_along_axis(part, masked, _MASKED, axis=1)
    np.put_along_axis(part, dropped, _DROPPED, axis=1)
    return Masks(
        ids=_with_random_tokens(ids, random, key(seed, Stream.TOKEN, indices), vocabulary),
        visible=_positions(part <= _CORRUPTED),
        masked=_positions(part == _MASKED),
        corrupted=_positions(part == _CORRUPTED),
        dropped=_positions(part == _DROPPED),
    )


def _positions(where: np.ndarray) -> np.ndarray:
    """Return the columns where it is true, sorted; every row has as many."""
    return np.nonzero(where)[1].reshape(len(where), -1)


def _with_random_tokens(ids: np.ndarray, where: np.ndarray, keys: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    if not where.shape[1]:
        return ids
    ordinary = _ordinary_ids(vocabulary)
    drawn = draws(keys, where.shape[1])
    out = ids.copy()
    np.put_along_axis(out, where, ordinary[drawn % np.uint64(len(ordinary))], axis=1)
    return out


@lru_cache(maxsize=4)
def _ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
    return np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)


def slots_of(positions: np.ndarray, among: np.ndarray, length: int) -> np.ndarray:
    """Return where `positions` [B, n] stand in the sorted `among` [B, m] that holds them."""
    present: np.ndarray = np.zeros((len(among), length), np.int64)
    np.put_along_axis(present, among, 1, axis=1)
    return np.take_along_axis(np.cumsum(present, axis=1) - 1, positions, axis=1)
