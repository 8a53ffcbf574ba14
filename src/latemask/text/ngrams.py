"""Text → hashes of its runs of 13 words and of its short sentences, by which one finds a text in a corpus again.

Words are compared without case, punctuation and compatibility forms (NFKC). In scripts that put no spaces between
words, every character counts as a word. datatrove's decontamination indexes the tasks and reads the corpus once for
every set of them; its hash of one n-gram at a time would take longer than the tokenizer. So this is numpy, over all
characters of a batch at once, and the corpus is indexed.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from datatrove.utils.text import TERMINAL_PUNCTUATION

from latemask.text.words import WITHOUT_SPACES

WORDS = 13
"""The length of an n-gram, as for GPT-3 (Brown et al. 2020, appendix C)."""
FEWEST_WORDS = 5
"""Shorter sentences are everywhere and say nothing."""

_OTHER, _LETTER, _LONE, _END, _NEWLINE = range(5)
_BEHIND_LETTERS = 0x40000  # the planes above hold none
_BATCH_CHARACTERS = 1 << 18
_BASE_OF_CHARACTERS = 0x9E3779B97F4A7C15  # any large odd numbers
_BASE_OF_WORDS = 0xD1342543DE82EF95


@dataclass(frozen=True)
class Words:
    """All words of some texts, one after another. W words: every array is [W]."""

    hashes: np.ndarray
    text: np.ndarray
    """The number of the text that it stands in."""
    sentence: np.ndarray
    line: np.ndarray
    """The same where a sentence ends with its line as well: text may be wrapped or have headings."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """Read texts."""
        plain = [unicodedata.normalize("NFKC", text).lower() for text in texts]
        begins = np.cumsum([0, *(len(text) + 1 for text in plain)])[:-1]
        codes = np.frombuffer("\n".join([*plain, ""]).encode("utf-32-le", "surrogatepass"), "<u4")
        kinds = _kinds_of_characters()[codes]
        is_letter, is_lone = kinds == _LETTER, kinds == _LONE
        firsts = np.flatnonzero(is_lone | (is_letter & ~_shifted(is_letter, 1)))
        lasts = np.flatnonzero(is_lone | (is_letter & ~_shifted(is_letter, -1)))
        is_end = (kinds == _END) & ~((codes == ord(".")) & _shifted(is_letter, -1))  # not in 3.5
        is_end[begins] = True
        sentence = np.cumsum(is_end)[firsts]
        line = np.cumsum(is_end | (kinds == _NEWLINE))[firsts]
        text = np.searchsorted(begins, firsts, side="right") - 1
        return cls(_hashes_of_ranges(codes, firsts, lasts), text, sentence, line)

    def ngrams(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the hash of every n-gram that stands in one text, and the number of the text."""
        last = max(0, len(self.hashes) - WORDS + 1)
        firsts = np.flatnonzero(self.text[:last] == self.text[WORDS - 1 :])
        return self._runs(firsts, WORDS), self.text[firsts]

    def short_sentences(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the hash of every sentence that is shorter than an n-gram, and the number of its text.

        `number` tells sentences apart: `sentence` or `line`.
        """
        firsts = np.flatnonzero(np.diff(number, prepend=-1))
        lengths = np.diff(firsts, append=len(number))
        chosen = [(length, firsts[lengths == length]) for length in range(FEWEST_WORDS, WORDS)]
        hashes = [self._runs(starts, length) for length, starts in chosen]
        return np.concatenate(hashes), np.concatenate([self.text[starts] for _, starts in chosen])

    def _runs(self, firsts: np.ndarray, length: int) -> np.ndarray:
        hashes: np.ndarray = np.zeros(len(firsts), np.uint64)
        for offset in range(length):
            hashes *= np.uint64(_BASE_OF_WORDS)
            hashes += self.hashes[firsts + offset]
        return mixed(hashes)


def corpus_hashes(texts: Sequence[str], one_in: int) -> np.ndarray:
    """Return the hashes by which documents are found again, uint64; of a large corpus one in so many, a power of 2."""
    found = []
    for first, last in batches(texts):
        words = Words.of(texts[first:last])
        kinds = (words.ngrams(), words.short_sentences(words.sentence), words.short_sentences(words.line))
        found += [hashes[is_kept(hashes, one_in)] for hashes, _ in kinds]
    return np.concatenate(found)


def batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts that are worth a call of `Words.of`, and small enough for the cache of a processor."""
    numbers = np.cumsum([len(text) for text in texts]) // _BATCH_CHARACTERS
    yield from pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(texts)])


def is_kept(hashes: np.ndarray, one_in: int) -> np.ndarray:
    """Tell which hashes are kept of a corpus where one in so many is."""
    return (hashes & np.uint64(one_in - 1)) == 0


@lru_cache(maxsize=1)
def _kinds_of_characters() -> np.ndarray:
    kinds: np.ndarray = np.zeros(sys.maxunicode + 1, np.uint8)
    categories = [unicodedata.category(chr(code)) for code in range(_BEHIND_LETTERS)]
    # Marks, too: they are the vowels of Indian scripts.
    kinds[:_BEHIND_LETTERS] = [_LETTER if category[0] in "LMN" else _OTHER for category in categories]
    for first, last in WITHOUT_SPACES:
        within = kinds[first : last + 1]
        within[within == _LETTER] = _LONE
    kinds[[ord(character) for character in TERMINAL_PUNCTUATION]] = _END
    kinds[ord("\n")] = _NEWLINE
    return kinds


def _shifted(flags: np.ndarray, by: int) -> np.ndarray:
    """Return for each place the flag of the place before it (1) or after it (-1)."""
    shifted = np.zeros_like(flags)
    if by == 1:
        shifted[1:] = flags[:-1]
    else:
        shifted[:-1] = flags[1:]
    return shifted


def _hashes_of_ranges(codes: np.ndarray, firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Hash codes[first] … codes[last] for every range: polynomials mod 2^64, as differences of one running sum."""
    terms = codes * powers(_BASE_OF_CHARACTERS, len(codes))
    sums = np.cumsum(terms)
    back = powers(pow(_BASE_OF_CHARACTERS, -1, 2**64), len(codes))[firsts]
    return mixed((sums[lasts] - sums[firsts] + terms[firsts]) * back)


@lru_cache(maxsize=4)  # masks are drawn for rows of one length
def powers(base: int, count: int) -> np.ndarray:
    """Return 1, base, base² … mod 2^64."""
    factors: np.ndarray = np.full(count, base, np.uint64)
    factors[:1] = 1
    found = np.cumprod(factors)
    found.setflags(write=False)
    return found


def mixed(hashes: np.ndarray) -> np.ndarray:
    """Spread every bit over all others (the finalizer of SplitMix64): tables use some of the bits alone."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
