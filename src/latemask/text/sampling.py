"""A bounded, evenly spread sample of a corpus, to train a tokenizer on."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from latemask.text.reading import content_hash

_READ_PER_SAMPLED = 10  # reading is so much faster than training that this costs nothing, and spreads the sample
_PURPOSE = b"tokenizer"  # independent of the hash that chooses the validation documents


def evenly_spread(sizes: Sequence[int], limit: int) -> list[int]:
    """Return tasks to sample from: all, or as many at even distances as make about `limit` bytes."""
    total = sum(sizes)
    if total <= limit:
        return list(range(len(sizes)))
    count = max(1, len(sizes) * limit // total)
    return [len(sizes) * number // count for number in range(count)]


def tasks_to_sample(sizes: Sequence[int], sample_bytes: int) -> list[int]:
    """Return the tasks whose documents stand for the corpus."""
    return evenly_spread(sizes, _READ_PER_SAMPLED * sample_bytes)


def sample(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """Return documents of `sample_bytes` in all, chosen by their content: whatever the order and the number.

    Those with the smallest hashes. The largest of them leave as smaller ones come, so memory is bounded.
    """
    kept: list[tuple[int, str]] = []
    size, limit = 0, 2**64
    for text in texts:
        content = text.encode("utf-8")
        if (number := content_hash(content, _PURPOSE)) >= limit:
            continue
        heapq.heappush(kept, (-number, text))
        size += len(content)
        while size > sample_bytes and len(kept) > 1:
            largest, left = heapq.heappop(kept)
            size, limit = size - len(left.encode("utf-8")), -largest
    return [text for _, text in sorted(kept, reverse=True)]
