"""Masking patterns: in which order the positions of a row are chosen. A new one is one function.

A pattern gets rows `ids` [B, L], a key of randomness for each row [B], the counts of positions and the vocabulary. It
returns all positions of each row [B, L] in the order in which they are taken: first the predicted ones, then the
dropped ones; what is left stays visible.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from latemask.masking.randomness import draws
from latemask.recipe import PATTERNS as PATTERNS
from latemask.recipe import MaskCounts
from latemask.text.tokenizer import Vocabulary

_CLASS_BITS = np.uint64(62)  # the two highest bits of a draw say how soon a position may be chosen


@PATTERNS.register("uniform")
def uniform(ids: np.ndarray, keys: np.ndarray, counts: MaskCounts, vocabulary: Vocabulary) -> np.ndarray:
    """Every position is as likely as any other; special tokens come last, the row's <s> very last.

    The position stands in the lowest bits of its sort key: sorting numbers is much faster than sorting by them.
    """
    length = ids.shape[1]
    low = np.uint64((1 << length.bit_length()) - 1)
    reluctant = _is_special(vocabulary)[ids]
    reluctant[:, 0] = 2
    drawn = draws(keys, length)
    keys = (drawn >> np.uint64(2)) & ~low | (reluctant << _CLASS_BITS) | np.arange(length, dtype=np.uint64)
    return (np.sort(keys, axis=1) & low).astype(np.int64)


@lru_cache(maxsize=4)
def _is_special(vocabulary: Vocabulary) -> np.ndarray:
    table: np.ndarray = np.zeros(vocabulary.size, np.uint64)
    table[list(vocabulary.special)] = 1
    return table
