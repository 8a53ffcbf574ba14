"""Training text → its collocations: runs of 2 to 5 words that stand together more often than their parts would have it.

As in PMI-masking (Levine et al. 2021), by the score of its published lists: the least, over all ways to part a run, of
log(p(run)² / Π p(part)). The square makes rare runs no better than frequent ones: two words that only occur together
have about 0, however often that is. Every p is among runs of as many words.

Only runs of words with a letter or a digit in them count, inside a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from latemask.text.ngrams import mixed, powers
from latemask.text.progress import ProgressWatch
from latemask.text.rows import Shard
from latemask.text.words import has_letters, word_starts

LONGEST = 5
FEWEST = 11
"""Occurrences of a run that counts."""
MOST_TOKENS = 1 << 26
_CHUNK = 1 << 21  # tokens at a time
_MOST_CELLS = 1 << 23
_BASE = 0xD1342543DE82EF95  # any large odd number
_INVERSE = pow(_BASE, -1, 2**64)


class WordRuns:
    """The words of flat ids [N], one after another, and hashes of runs of them. W words."""

    def __init__(self, ids: np.ndarray, starts: np.ndarray):
        self.firsts = np.flatnonzero(starts)
        """[W] where they begin"""
        sums: np.ndarray = np.zeros(len(ids) + 1, np.uint64)
        np.cumsum(mixed(ids.astype(np.uint64)) * powers(_BASE, len(ids)), out=sums[1:])
        self._sums = sums[np.append(self.firsts, len(ids))]
        self._back = powers(_INVERSE, len(ids))[self.firsts]

    def hashes(self, words: int, places: np.ndarray | None = None) -> np.ndarray:
        """Return the hash of every run of so many words, by its first word [W - words + 1]; or at some places only.

        Polynomials mod 2^64 of the pieces, as differences of one running sum.
        """
        if places is None:
            return (self._sums[words:] - self._sums[:-words]) * self._back[: max(0, len(self._sums) - words)]
        return (self._sums[places + words] - self._sums[places]) * self._back[places]


@dataclass(frozen=True)
class Collocations:
    """Runs of words, the fewest words first, then the best first. U units."""

    pieces: np.ndarray
    """The ids of all, one after another."""
    ends: np.ndarray
    """[U] where each ends in them"""
    words: np.ndarray
    """[U]"""
    scores: np.ndarray
    """[U]"""
    counts: np.ndarray
    """[U]"""

    def of(self, number: int) -> np.ndarray:
        """Return the ids of one."""
        return self.pieces[self.ends[number - 1] if number else 0 : self.ends[number]]


def find_collocations(shards: Sequence[Shard], token_bytes: int, words: bytes, wanted: int) -> Collocations:
    """Find so many in a text: half of them of 2 words, a quarter of 3, an eighth each of 4 and of 5; or all there are.

    Two passes over the tokens. The first counts runs in cells, each of which many of them share; the second those in
    full cells, exactly. A pure function of the text.
    """
    text = _Text(shards, np.dtype(f"<u{token_bytes}"), words)
    with ProgressWatch("counting", text.sizes * 2) as watch:
        counted = _first_pass(text, watch.finish)
        for number, chunk in enumerate(text):
            for length, counts in enumerate(counted, 1):
                counts.add(*chunk.runs(length, counts.cells))
            watch.finish(len(text.sizes) + number)
    for counts in counted:
        counts.finish()
    parts = [_best(text, counted, length, quota) for length, quota in _quotas(wanted).items()]
    pieces, sizes, *columns = map(np.concatenate, zip(*parts, strict=True))
    return Collocations(pieces, np.cumsum(sizes), *columns)


def _quotas(wanted: int) -> dict[int, int]:
    """Return how many units there are to be of each length; what is left of the division are pairs."""
    few = {3: wanted // 4, 4: wanted // 8, 5: wanted // 8}
    return {2: wanted - sum(few.values()), **few}


# Counting


class _Text:
    """The tokens of shards, some at a time; no run goes on from one chunk to the next."""

    def __init__(self, shards: Sequence[Shard], dtype: np.dtype, words: bytes):
        self.words = words
        pieces = [shard.map(dtype) for shard in shards if shard.tokens]
        self.chunks = [piece[first : first + _CHUNK] for piece in pieces for first in range(0, len(piece), _CHUNK)]
        self.sizes = [len(chunk) for chunk in self.chunks]
        self.begins = np.cumsum([0, *self.sizes])

    def __iter__(self) -> Iterator[_Chunk]:
        for begin, chunk in zip(self.begins[:-1].tolist(), self.chunks, strict=True):
            yield _Chunk(chunk, begin, self.words)

    def tokens_at(self, places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the tokens of some stretches, one after another."""
        wanted = np.repeat(places - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        found: np.ndarray = np.empty(len(wanted), np.int64)
        for begin, chunk in zip(self.begins[:-1].tolist(), self.chunks, strict=True):
            is_here = (wanted >= begin) & (wanted < begin + len(chunk))
            found[is_here] = chunk[wanted[is_here] - begin]
        return found


class _Chunk:
    """Some tokens: the runs of words in them that count."""

    def __init__(self, ids: np.ndarray, begin: int, words: bytes):
        self.begin = begin
        starts = word_starts(ids[None], words)[0]
        self.found = WordRuns(ids, starts)
        self.ends: np.ndarray = np.append(self.found.firsts[1:], len(ids))
        self.counts = np.logical_or.reduceat(has_letters(ids, words), self.found.firsts)
        self.counts[[0, -1]] = False  # they may be cut

    @cached_property
    def _lengths(self) -> np.ndarray:
        """How many words that count stand from each on [W]."""
        closed = np.flatnonzero(~self.counts)
        return closed[np.searchsorted(closed, np.arange(len(self.counts)))] - np.arange(len(self.counts))

    def runs(self, words: int, cells: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hash, place and size in tokens of every run of so many words; with cells, of those in full ones."""
        firsts = np.flatnonzero(self._lengths >= words)
        hashes = self.found.hashes(words)[firsts]
        if cells is not None:
            is_full = cells[_cell(hashes, cells)] >= FEWEST
            hashes, firsts = hashes[is_full], firsts[is_full]
        places = self.found.firsts[firsts]
        return hashes, places + self.begin, self.ends[firsts + words - 1] - places


def _cell(hashes: np.ndarray, cells: np.ndarray) -> np.ndarray:
    return (hashes & np.uint64(len(cells) - 1)).astype(np.int64)


def _first_pass(text: _Text, finished: Callable[[int], None]) -> list[_Counts]:
    """Count runs of every length in cells, by which those that may be frequent are told from the rest."""
    size = min(_MOST_CELLS, 1 << (2 * sum(text.sizes)).bit_length())
    counted = [_Counts(size) for _ in range(LONGEST)]
    for number, chunk in enumerate(text):
        for length, counts in enumerate(counted, 1):
            hashes, *_ = chunk.runs(length)
            np.add.at(counts.cells, _cell(hashes, counts.cells), 1)
            counts.total += len(hashes)
        finished(number)
    return counted


class _Counts:
    """How often runs of one length occur, and where first; sorted by hash."""

    def __init__(self, cells: int) -> None:
        self.cells: np.ndarray = np.zeros(cells, np.uint32)
        self.total = 0
        """How many there are, the rare ones included."""
        self.hashes: np.ndarray = np.empty(0, np.uint64)
        self.counts: np.ndarray = np.empty(0, np.int64)
        self.places: np.ndarray = np.empty(0, np.int64)
        self.sizes: np.ndarray = np.empty(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, hashes: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> None:
        """Count some more, which stand behind those there are; now and then, as sorting takes time."""
        self._waiting.append((hashes, places, sizes))
        if sum(len(waiting) for waiting, *_ in self._waiting) > _CHUNK + len(self.hashes):
            self._merge()

    def _merge(self) -> None:
        known = (self.hashes, self.places, self.sizes)
        hashes, places, sizes = map(np.concatenate, zip(known, *self._waiting, strict=True))
        counts: np.ndarray = np.append(self.counts, np.ones(len(hashes) - len(self.counts), np.int64))
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        firsts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else order
        self.counts = np.add.reduceat(counts[order], firsts) if len(hashes) else counts
        self.hashes, self.places, self.sizes = hashes[firsts], places[order][firsts], sizes[order][firsts]
        self._waiting = []

    def finish(self) -> None:
        """Keep what occurs often enough."""
        self._merge()
        kept = self.counts >= FEWEST
        self.hashes, self.counts = self.hashes[kept], self.counts[kept]
        self.places, self.sizes = self.places[kept], self.sizes[kept]

    def log_shares(self, hashes: np.ndarray) -> np.ndarray:
        """Return the logarithm of the share that each run has in all of its length; they must be here."""
        at = np.searchsorted(self.hashes, hashes)
        assert (self.hashes[at] == hashes).all()
        return np.log(self.counts[at] / self.total)


# Choosing


def _best(text: _Text, counted: Sequence[_Counts], length: int, quota: int) -> tuple[np.ndarray, ...]:
    """Return the pieces, sizes, numbers of words, scores and counts of the best runs of one length."""
    of_length = counted[length - 1]
    scores = _scores(text, counted, length) if len(of_length.hashes) else np.empty(0)
    best = np.lexsort((of_length.hashes, -of_length.counts, -scores))[:quota]
    places, sizes = of_length.places[best], of_length.sizes[best]
    words = np.full(len(best), length)
    return text.tokens_at(places, sizes), sizes, words, scores[best], of_length.counts[best]


def _scores(text: _Text, counted: Sequence[_Counts], length: int) -> np.ndarray:
    """Score all runs of a length: by the way to part them in which the parts are likeliest."""
    of_length = counted[length - 1]
    ids = text.tokens_at(of_length.places, of_length.sizes)
    starts = word_starts(ids[None], text.words)[0]
    starts[np.cumsum(of_length.sizes)[:-1]] = True
    runs = WordRuns(ids, starts)
    assert len(runs.firsts) == length * len(of_length.hashes)
    likeliest = [np.zeros(len(of_length.hashes))]  # logarithms, for the first words of each run: none, one, two …
    for end in range(1, length + 1):
        ways = []
        for begin in range(1 if end == length else 0, end):
            parts = runs.hashes(end - begin)[begin::length]
            ways.append(likeliest[begin] + counted[end - begin - 1].log_shares(parts))
        likeliest.append(np.max(ways, axis=0))
    scores = 2 * of_length.log_shares(of_length.hashes) - likeliest[length]
    return np.round(scores, 6)  # the last bits depend on the processor
