"""Samples: sample i fixes its row, for ever, whatever the number of workers, devices or restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from latemask.masking.randomness import key, shuffled
from latemask.text.shards import TokenRows

_ORDER_STREAM = 0


class SampleDataset(Dataset):
    """A map-style dataset of `{"ids": [L], "index": i}`; collators draw the mask from `index`.

    Samples are already shuffled by their index, anew every epoch: read them in sequence. `first` starts at a later
    sample, so that resuming is a number and nothing is skipped.
    """

    def __init__(self, rows: TokenRows, samples: int, *, seed: int = 0, first: int = 0, shuffle: bool = True):
        self.rows = rows
        self.samples = samples
        self.seed = seed
        self.first = first
        self.shuffle = shuffle

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Fetch a whole batch; torch's DataLoader calls this when it is there."""
        indices = np.asarray(items, np.int64) + self.first
        ids = self.rows.take(self.row_numbers(indices))
        return [{"ids": row, "index": int(index)} for row, index in zip(ids, indices, strict=True)]

    def row_numbers(self, indices: np.ndarray) -> np.ndarray:
        """Return the row of each sample: every row once an epoch, in a new order every epoch."""
        epochs, positions = np.divmod(indices, len(self.rows))
        if not self.shuffle:
            return positions
        return shuffled(positions, len(self.rows), key(self.seed, _ORDER_STREAM, epochs)).astype(np.int64)
