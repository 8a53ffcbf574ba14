"""Rows of any length, read from token shards as they lie on the disk: memory-mapped, nothing prepared again."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shard:
    """Tokens of one file, or a part of them."""

    file: Path
    first: int
    tokens: int

    def map(self, dtype: np.dtype) -> np.ndarray:
        """Return the tokens, memory-mapped."""
        if not self.tokens:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        mapped: np.ndarray = np.memmap(self.file, dtype, "r", offset=self.first * dtype.itemsize, shape=(self.tokens,))
        return mapped.view(np.ndarray)  # the same memory, without the subclass's cost at every access

    def refuse_if_cut(self, dtype: np.dtype) -> None:
        """Notice a file that went or was cut since it was mapped: to touch what is missing ends a process at once."""
        if self.file.stat().st_size < (self.first + self.tokens) * dtype.itemsize:
            raise OSError(errno.EIO, "was cut while in use; put it back, and go on with --resume", str(self.file))


class TokenRows:
    """Rows `<s>` + running text, cut to a length: any length from the same shards.

    Rows run on from shard to shard, so no token is lost between files. Shards are opened on first use, so that a
    reader can be sent to a worker process.
    """

    def __init__(self, shards: Sequence[Shard], token_bytes: int, length: int, bos: int):
        self.shards = list(shards)
        self.dtype = np.dtype(f"<u{token_bytes}")
        self.length = length
        self.bos = bos
        self.starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1]) // (self.length - 1)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_arrays"}

    @cached_property
    def _arrays(self) -> list[np.ndarray]:
        return [shard.map(self.dtype) for shard in self.shards]

    def _tokens(self, shard: int) -> np.ndarray:
        self.shards[shard].refuse_if_cut(self.dtype)
        return self._arrays[shard]

    def take(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the given rows as int64 [rows, length]."""
        out: np.ndarray = np.empty((len(rows), self.length), np.int64)
        out[:, 0] = self.bos
        first = np.asarray(rows, np.int64) * (self.length - 1)
        shards = np.searchsorted(self.starts, first, side="right") - 1
        offsets = first - self.starts[shards]
        columns = np.arange(self.length - 1)
        for shard in np.unique(shards):
            array = self._tokens(shard)
            here = np.flatnonzero((shards == shard) & (offsets + self.length - 1 <= len(array)))
            out[here, 1:] = array[offsets[here, None] + columns]
        for row in np.flatnonzero(offsets + self.length - 1 > np.diff(self.starts)[shards]):
            self._read(int(shards[row]), int(offsets[row]), out[row, 1:])
        return out

    def _read(self, shard: int, offset: int, out: np.ndarray) -> None:
        """Fill `out` from a place in a shard on, across as many shards as it takes."""
        piece = self._tokens(shard)[offset : offset + len(out)]
        out[: len(piece)] = piece
        if len(piece) < len(out):
            self._read(shard + 1, 0, out[len(piece) :])
