"""How often each piece of the vocabulary stands in token shards, and how long documents are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from latemask.text.rows import Shard

_BLOCK = 1 << 24


def count_tokens(shards: Iterable[Shard], token_bytes: int, vocabulary: int) -> np.ndarray:
    """Return the count of every id; longer than `vocabulary` where an id is too large for it."""
    counts: np.ndarray = np.zeros(vocabulary, np.int64)
    for shard in shards:
        array = shard.map(np.dtype(f"<u{token_bytes}"))
        for start in range(0, len(array), _BLOCK):
            found = np.bincount(array[start : start + _BLOCK], minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
    return counts


def part_of(shards: Sequence[Shard], tokens: int) -> list[Shard]:
    """Return about `tokens` tokens, the same share of every shard; all of them if there are no more."""
    total = sum(shard.tokens for shard in shards)
    if total <= tokens:
        return list(shards)
    return [replace(shard, tokens=shard.tokens * tokens // total) for shard in shards]


def document_lengths(shards: Sequence[Shard]) -> np.ndarray:
    """Return the length of every document, in tokens."""
    lengths = []
    for shard in shards:
        ends = np.fromfile(Path(f"{shard.file}.index"), "<u8").astype(np.int64)
        inside = ends[(ends > shard.first) & (ends <= shard.first + shard.tokens)]
        lengths.append(np.diff(inside, prepend=shard.first))
    return np.concatenate(lengths) if lengths else np.empty(0, np.int64)
