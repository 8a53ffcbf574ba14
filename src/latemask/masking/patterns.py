"""Masking patterns: in which order the positions of a row are chosen. A new one is one function.

A pattern gets rows `ids` [B, L], a key of randomness for each row [B], the counts of positions and the vocabulary. It
returns all positions of each row [B, L] in the order in which they are taken: first the predicted ones, then the
dropped ones; what is left stays visible.

Patterns with a shape say where units begin, and units are taken whole, in random order: only the one that an exact
count ends in is cut. What they must know of the data beside the ids stands behind `@needs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from latemask.ground.errors import UserError
from latemask.masking.randomness import Fork, drawn_at, draws, fork
from latemask.recipe import PATTERNS as PATTERNS
from latemask.recipe import MaskCounts
from latemask.text.collocations import WordRuns
from latemask.text.mixture import Mixture
from latemask.text.tokenizer import Vocabulary
from latemask.text.words import word_starts

LONGEST_SPAN = 10
"""Words of a span, at most; their number is geometric with p = 0.2, as in SpanBERT (Joshi et al. 2020)."""
_CLASS_BITS = np.uint64(62)  # the two highest bits of a draw say how soon a position may be chosen


@PATTERNS.register("uniform")
def uniform(ids: np.ndarray, keys: np.ndarray, counts: MaskCounts, vocabulary: Vocabulary) -> np.ndarray:
    """Every position is as likely as any other; special tokens come last, the row's <s> very last.

    The position stands in the lowest bits of its sort key: sorting numbers is much faster than sorting by them.
    """
    low = _low_bits(ids)
    sorted_keys = np.sort(_sort_keys(ids, draws(keys, ids.shape[1]), vocabulary) | _positions(ids), axis=1)
    return (sorted_keys & low).astype(np.int64)


def _sort_keys(ids: np.ndarray, drawn: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return what was drawn for positions [B, L], below how soon they may be chosen, with room for their numbers."""
    reluctant = _is_special(vocabulary)[ids]
    reluctant[:, 0] = 2
    return (drawn >> np.uint64(2)) & ~_low_bits(ids) | (reluctant << _CLASS_BITS)


def _low_bits(ids: np.ndarray) -> np.uint64:
    return np.uint64((1 << ids.shape[1].bit_length()) - 1)


def _positions(ids: np.ndarray) -> np.ndarray:
    return np.arange(ids.shape[1], dtype=np.uint64)


@lru_cache(maxsize=4)
def _is_special(vocabulary: Vocabulary) -> np.ndarray:
    table: np.ndarray = np.zeros(vocabulary.size, np.uint64)
    table[list(vocabulary.special)] = 1
    return table


# Units


def needs(*what: str) -> Callable[[Any], Any]:
    """Say what a pattern must know of the data: their `words`, or the `units` that were found in them."""

    def say(pattern: Any) -> Any:
        pattern.needs = what
        return pattern

    return say


def by_units(ids: np.ndarray, keys: np.ndarray, starts: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return the positions unit by unit: one begins where `starts` [B, L] is true, and each draws one number.

    A bit of that number says from which end a unit is taken: the one that is cut must not always lose its end, or the
    first positions of a row would be hidden more often than the last. Special tokens must be units of their own.
    """
    low = _low_bits(ids)
    drawn = drawn_at(keys[:, None], np.cumsum(starts, axis=1, dtype=np.uint64))
    sort_keys = _sort_keys(ids, drawn, vocabulary)
    sort_keys |= _positions(ids) ^ _turned(sort_keys, low)
    sort_keys.sort(axis=1)
    return ((sort_keys ^ _turned(sort_keys, low)) & low).astype(np.int64)


def _turned(sort_keys: np.ndarray, low: np.uint64) -> np.ndarray:
    """Return all low bits where the bit above them is set, and else none."""
    bit = sort_keys & (low + np.uint64(1))
    return bit - (bit >> np.uint64(int(low).bit_length()))


@PATTERNS.register("word")
@needs("words")
def word(ids: np.ndarray, keys: np.ndarray, counts: MaskCounts, vocabulary: Vocabulary) -> np.ndarray:
    """Words are taken whole, by the tokenizer's own boundaries."""
    return by_units(ids, keys, _word_starts(ids, vocabulary), vocabulary)


def _word_starts(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    assert vocabulary.words is not None, "a vocabulary of `vocabulary_for`"
    return word_starts(ids, vocabulary.words)


@PATTERNS.register("span")
@needs("words")
def span(ids: np.ndarray, keys: np.ndarray, counts: MaskCounts, vocabulary: Vocabulary) -> np.ndarray:
    """Runs of 1 to 10 words are taken whole: a row is tiled by them, and special tokens end them."""
    starts = _word_starts(ids, vocabulary)
    numbers = np.cumsum(starts, axis=1)
    spans = _span_starts(fork(keys, Fork.SPANS), int(numbers.max()))
    is_special = _is_special(vocabulary)[ids] > 0
    is_special[:, 1:] |= is_special[:, :-1]  # and the word behind them begins another
    is_special[:, 0] = True
    return by_units(ids, keys, starts & (is_special | np.take_along_axis(spans, numbers - 1, axis=1)), vocabulary)


def _span_starts(keys: np.ndarray, words: int) -> np.ndarray:
    """Tell which words begin a span [B, words], in a tiling that has no beginning: the first one is cut somewhere."""
    count = words // 3 + LONGEST_SPAN
    while True:
        drawn = draws(keys, count)
        lengths = np.searchsorted(_LENGTHS, drawn.ravel(), side="right").reshape(drawn.shape)
        lengths[:, 0] = np.searchsorted(_REMAINDERS, drawn[:, 0], side="right")
        ends = np.cumsum(lengths + 1, axis=1)
        if ends[:, -1].min() >= words:
            break
        count *= 2  # the draws that there were stay the same
    starts: np.ndarray = np.zeros((len(keys), words + 1), bool)
    np.put_along_axis(starts, np.minimum(ends, words), True, axis=1)
    starts[:, 0] = True
    return starts[:, :words]


def _thresholds(weights: Sequence[int]) -> np.ndarray:
    """Return where uint64 draws are cut so that each choice is as likely as its weight, in whole numbers: for ever."""
    return np.array([(total << 64) // sum(weights) for total in accumulate(weights[:-1])], np.uint64)


_MORE = range(LONGEST_SPAN)  # words than one
_WEIGHTS = [4**more * 5 ** (LONGEST_SPAN - 1 - more) for more in _MORE]  # as 0.2 x 0.8^more
_LENGTHS = _thresholds(_WEIGHTS)
_REMAINDERS = _thresholds([sum(_WEIGHTS[more:]) for more in _MORE])
"""What is left of a span behind a place that is nothing special: as likely as spans are that reach so far."""


@PATTERNS.register("pmi")
@needs("words", "units")
def pmi(ids: np.ndarray, keys: np.ndarray, counts: MaskCounts, vocabulary: Vocabulary) -> np.ndarray:
    """Collocations of 2 to 5 words are taken whole, as `latemask prepare --pmi` found them; elsewhere words are.

    The longest wins; of those that overlap and are as long, one by chance.
    """
    assert vocabulary.units is not None, "a vocabulary of `vocabulary_for`"
    starts = _word_starts(ids, vocabulary)
    runs = WordRuns(ids.ravel(), starts.ravel())
    begins = np.searchsorted(runs.firsts, np.arange(0, ids.size, ids.shape[1]))  # the first word of each row
    rows: np.ndarray = np.repeat(np.arange(len(ids)), np.diff(begins, append=len(runs.firsts)))
    taken: np.ndarray = np.zeros(len(rows), bool)
    taken[begins] = True  # no unit goes on in the next row
    keys_of_overlaps = fork(keys, Fork.OVERLAPS)
    for words, found in sorted(vocabulary.units.found(runs).items(), reverse=True):
        for offset in range(words):
            found = found[~taken[found + offset]]
        columns = runs.firsts[found] - ids.shape[1] * rows[found]
        drawn = drawn_at(keys_of_overlaps[rows[found]], columns.astype(np.uint64))
        chosen = _without_overlaps(found, drawn, words)
        for offset in range(words):
            taken[chosen + offset] = True
        for offset in range(1, words):
            starts.reshape(-1)[runs.firsts[chosen + offset]] = False
    return by_units(ids, keys, starts, vocabulary)


def _without_overlaps(places: np.ndarray, drawn: np.ndarray, words: int) -> np.ndarray:
    """Return as many places as go together, the one that drew most first, then of what it leaves; a unit has `words`.

    Each round takes all that drew more than whatever they overlap.
    """
    chosen = [places[:0]]
    while len(places):
        lost: np.ndarray = np.zeros(len(places), bool)
        near = [(offset, places[offset:] - places[:-offset] < words) for offset in range(1, words)]
        for offset, is_near in near:
            wins = drawn[:-offset] > drawn[offset:]
            lost[offset:] |= is_near & wins
            lost[:-offset] |= is_near & ~wins
        is_left = lost.copy()
        for offset, is_near in near:
            is_left[offset:] &= ~is_near | lost[:-offset]
            is_left[:-offset] &= ~is_near | lost[offset:]
        chosen.append(places[~lost])
        places, drawn = places[is_left], drawn[is_left]
    return np.concatenate(chosen)


# Where patterns meet data


def vocabulary_for(pattern: str, data: Mixture) -> Vocabulary:
    """Return the vocabulary of data, with what a pattern needs to know of them; refuse data that do not have it."""
    wanted = getattr(PATTERNS[pattern], "needs", ())
    found = replace(data.vocabulary, **{name: getattr(data, name) for name in wanted})
    if "words" in wanted and found.words is None:
        raise UserError(
            f"mask.pattern {pattern} needs words, and the pieces of the tokenizer of {data.label} do not tell where "
            "they begin; take mask.pattern uniform"
        )
    if "units" in wanted and found.units is None:
        raise UserError(
            f"mask.pattern {pattern} needs units of words, and {data.label} keeps none: run what prepared it again, "
            "with --pmi 10000"
        )
    return found
