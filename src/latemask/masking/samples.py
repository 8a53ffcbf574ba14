"""Samples: sample i fixes its row, for ever, whatever the number of workers, devices or restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latemask.masking.randomness import Stream, key, shuffled
from latemask.text.rows import TokenRows

_SHARE_BITS = 24


class SampleDataset:
    """A map-style dataset of `{"ids": [L], "index": i}`; collators draw the mask from `index`.

    Samples are already shuffled by their index, anew every epoch: read them in sequence. `first` starts at a later
    sample, so that resuming is a number and nothing is skipped.
    """

    def __init__(
        self,
        rows: TokenRows | Sequence[TokenRows],
        samples: int,
        *,
        weights: Sequence[float] = (1.0,),
        seed: int = 0,
        first: int = 0,
        shuffle: bool = True,
        gaps: Sequence[int] = (),
        gap: int = 0,
    ):
        self.parts = [rows] if isinstance(rows, TokenRows) else list(rows)
        self.weights = list(weights)
        assert len(self.parts) == len(self.weights)
        self.samples = samples
        self.seed = seed
        self.first = first
        self.shuffle = shuffle
        self.gaps, self.gap = sorted(gaps), gap

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, item: int) -> dict[str, Any]:
        if not 0 <= item < self.samples:  # so that `for sample in dataset` ends
            raise IndexError(f"sample {item} of {self.samples}")
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Fetch a whole batch; torch's DataLoader calls this when it is there."""
        indices = self.index_of(np.asarray(items, np.int64) + self.first)
        ids: np.ndarray = np.empty((len(indices), self.parts[0].length), np.int64)
        parts, ordinals = dealt(indices, self.weights)
        for part in np.unique(parts):
            ids[parts == part] = self.parts[part].take(self.row_numbers(ordinals[parts == part], part))
        return [{"ids": row, "index": int(index)} for row, index in zip(ids, indices, strict=True)]

    def index_of(self, ordinals: np.ndarray) -> np.ndarray:
        """Return the indices of the n-th samples: `gap` samples from each of `gaps` on are left out."""
        indices = np.array(ordinals, np.int64)
        for start in self.gaps:
            indices[indices >= start] += self.gap
        return indices

    def row_numbers(self, ordinals: np.ndarray, part: int = 0) -> np.ndarray:
        """Return the row of each of a part's samples: every row once an epoch, in a new order every epoch."""
        size = len(self.parts[part])
        epochs, positions = np.divmod(ordinals, size)
        if not self.shuffle:
            return positions
        stream = Stream.FURTHER_ORDER + part if part else Stream.ORDER
        return shuffled(positions, size, key(self.seed, stream, epochs)).astype(np.int64)


def dealt(indices: np.ndarray, weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each sample which part of a mixture gives it, and how many that part gave before.

    Dealt out like cards, as evenly as the weights allow: any stretch of n samples holds n times its weight of each
    part, give or take one or two. Integers, so that it is the same on every machine.
    """
    parts: np.ndarray = np.full(len(indices), len(weights) - 1)
    if len(weights) == 1:
        return parts, indices
    ordinals = np.array(indices, np.int64)
    open_: np.ndarray = np.ones(len(indices), bool)
    left = sum(weights)
    for part, weight in enumerate(weights[:-1]):
        share = round(weight / left * 2**_SHARE_BITS)
        before = (ordinals * share) >> _SHARE_BITS
        is_taken = open_ & (((ordinals + 1) * share) >> _SHARE_BITS > before)
        parts[is_taken] = part
        ordinals = np.where(open_, np.where(is_taken, before, ordinals - before), ordinals)
        open_ &= ~is_taken
        left -= weight
    return parts, ordinals
