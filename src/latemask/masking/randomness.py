"""Random numbers as a pure function: of a seed and an index, never of what was drawn before.

SplitMix64 (Steele, Lea, Flood 2014), vectorised: a counter and a bijective mixer. numpy's generators would need one
object for every row, and numpy does not promise the streams of its sampling methods across versions; a run that
resumes next year must draw the same masks.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6
_ROUND_KEYS = np.arange(_ROUNDS, dtype=np.uint64) * _GOLDEN


class Stream(IntEnum):
    """Every use of randomness in a run, each independent of the others. Numbers are for ever: runs resume by them."""

    ORDER = 0
    """Rows of the first corpus, by epoch."""
    MASK = 1
    """Positions, by sample."""
    TOKEN = 2
    """Random tokens in place of true ones, by sample."""
    DROPOUT = 3
    """Seeds of torch's generator, by step and process."""
    FURTHER_ORDER = 16
    """Rows of the second and later corpora of a mixture: this number and theirs, by epoch."""


class Fork(IntEnum):
    """What else a sample's key decides, each independent of its draws and of the others. Numbers are for ever, too."""

    SPANS = 1
    """Where a row is cut into spans."""
    OVERLAPS = 2
    """Which of two collocations that overlap is one."""


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: a bijection of uint64 that leaves no visible trace of its input."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key(seed: int, stream: int, indices: np.ndarray) -> np.ndarray:
    """Return one uint64 for every index; seeds and streams (masks, order…) are independent of one another."""
    start = mix(np.array([seed], np.uint64) + _GOLDEN)
    start = mix(start + np.array([stream], np.uint64) * _GOLDEN)
    return mix(start ^ mix(np.asarray(indices, np.uint64) + _GOLDEN))


def fork(keys: np.ndarray, use: int) -> np.ndarray:
    """Return keys for another use, independent of the given ones and of all that is drawn by them."""
    return mix(~keys + mix(np.array([use], np.uint64) * _GOLDEN))


def draws(keys: np.ndarray, count: int) -> np.ndarray:
    """Return `count` uint64 draws for every key: [keys, count]."""
    return drawn_at(keys[:, None], np.arange(1, count + 1, dtype=np.uint64))


def drawn_at(keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the draws of some numbers, uint64 and from 1 on, by keys of a shape that goes with theirs."""
    return mix(keys + numbers * _GOLDEN)


def shuffled(positions: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Return where each position of range(size) goes in the permutation fixed by its key, in constant memory.

    A Feistel network permutes a power of two at least `size` large; what lands outside walks on until it is inside
    (cycle walking), so the result is a permutation of range(size) again.
    """
    bits = max(2, int(size - 1).bit_length())
    out = _feistel(np.asarray(positions, np.uint64), bits, keys)
    while (outside := out >= size).any():
        out[outside] = _feistel(out[outside], bits, keys[outside])
    return out


def _feistel(x: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute numbers of `bits` bits; in turn each half is changed by a function of the other."""
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    high, low_part = x >> low, x & low_mask
    for number, round_key in enumerate(_ROUND_KEYS):
        if number % 2:
            low_part = low_part ^ (mix(keys + high + round_key) & low_mask)
        else:
            high = high ^ (mix(keys + low_part + round_key) & high_mask)
    return (high << low) | low_part
