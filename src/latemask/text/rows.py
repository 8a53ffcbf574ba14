"""Token shards as they lie on the disk: rows of any length, counts of tokens, lengths of documents."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

SPLITS = ("train", "validation")
_BLOCK = 1 << 24  # tokens counted at a time


@dataclass(frozen=True)
class Shard:
    """Tokens of one file, or a part of them."""

    file: Path
    first: int
    tokens: int

    def map(self, dtype: np.dtype) -> np.ndarray:
        """Return the tokens, memory-mapped; the file stays open as long as they are used."""
        if not self.tokens:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        mapped: np.ndarray = np.memmap(self.file, dtype, "r", offset=self.first * dtype.itemsize, shape=(self.tokens,))
        return mapped.view(np.ndarray)  # the same memory, without the subclass's cost at every access

    def read(self, starts: Iterable[int], count: int, token_bytes: int) -> list[bytes]:
        """Return `count` tokens from each of `starts` on; fewer where the shard ends before."""
        found = []
        file = os.open(str(self.file), os.O_RDONLY)
        try:
            for start in starts:
                size = min(count, self.tokens - start) * token_bytes
                found.append(os.pread(file, size, (self.first + start) * token_bytes))
                if len(found[-1]) < size:
                    reason = "was cut while in use; put it back, and go on with --resume"
                    raise OSError(errno.EIO, reason, str(self.file))
        finally:
            os.close(file)
        return found


class TokenRows:
    """Rows `<s>` + running text, cut to a length: any length from the same shards.

    Rows run on from shard to shard, so no token is lost between files. Every `take` opens the files it needs, one at a
    time: a map would keep a descriptor for each shard, and end the process without a word where a file was cut.
    """

    def __init__(self, shards: Sequence[Shard], token_bytes: int, length: int, bos: int):
        self.shards = list(shards)
        self.dtype = np.dtype(f"<u{token_bytes}")
        self.length = length
        self.bos = bos
        self.starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1]) // (self.length - 1)

    def take(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the given rows as int64 [rows, length]."""
        first = np.asarray(rows, np.int64) * (self.length - 1)
        shards = np.searchsorted(self.starts, first, side="right") - 1
        starts = (first - self.starts[shards]).tolist()
        found = [b""] * len(first)
        for shard, group in groupby(np.argsort(first).tolist(), shards.tolist().__getitem__):
            here = list(group)
            tokens = self._read(shard, [starts[row] for row in here], self.length - 1)
            for row, text in zip(here, tokens, strict=True):
                found[row] = text
        out: np.ndarray = np.empty((len(first), self.length), np.int64)
        out[:, 0] = self.bos
        out[:, 1:] = np.frombuffer(b"".join(found), self.dtype).reshape(len(first), self.length - 1)
        return out

    def _read(self, shard: int, starts: Sequence[int], count: int) -> list[bytes]:
        """Return `count` tokens from each of `starts` on, across as many shards as it takes."""
        found = self.shards[shard].read(starts, count, self.dtype.itemsize)
        for number, tokens in enumerate(found):
            if missing := count - len(tokens) // self.dtype.itemsize:
                (rest,) = self._read(shard + 1, [0], missing)
                found[number] = tokens + rest
        return found


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
