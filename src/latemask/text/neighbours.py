"""Which tokens stand near which: counted in the training text, and kept beside it for the next run.

A pair of tokens d apart, up to 5, counts 60 / d: whole numbers, whose sums are the same in whatever order.

DIR/neighbours/counts.safetensors   how often each token occurs, and the pairs, row by row
DIR/neighbours/manifest.json        its checksum
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from latemask.ground.console import say
from latemask.ground.files import json_digest, replace_folder
from latemask.ground.sealed import damage, seal
from latemask.text.mixture import Mixture
from latemask.text.prepared import NEIGHBOURS, PreparedData
from latemask.text.progress import ProgressWatch
from latemask.text.rows import Shard, part_of

WINDOW = 5
NEAREST = 60
"""What a pair side by side counts; divided by the distance it stays whole."""
MOST_TOKENS = 1 << 26
MOST_PAIRS = 1 << 25
"""Different pairs that are kept; where there are more, the rarest go."""
_LEAST = 24  # less is a pair seen once, three or more apart
_CELLS = 1 << 23  # of the table in which pairs are counted
_VERSION = 1
_FILE = "counts.safetensors"


@dataclass(frozen=True)
class Neighbours:
    """Counts over a text, or the weighted mean of several."""

    tokens: int
    """How many were counted."""
    frequencies: np.ndarray
    """How often each token occurs [W]."""
    following: sparse.csr_array
    """[W, W]: how often, by nearness, a token (row) is followed by another (column)."""

    @property
    def pairs(self) -> sparse.csr_array:
        """How often two tokens stand near each other, in either order."""
        return self.following + self.following.T.tocsr()


def neighbours_of(data: Mixture, tokens: int = MOST_TOKENS) -> Neighbours:
    """Return the counts of a mixture; every part counts by its weight."""
    each = [_of_part(part, tokens) for part in data.parts]
    if len(each) == 1:
        return each[0]
    frequencies = _mixed([one.frequencies for one in each], data.weights)
    scales = _scales([one.tokens for one in each], data.weights)
    following = sum((one.following * scale for one, scale in zip(each, scales, strict=True)), start=0)
    return Neighbours(sum(one.tokens for one in each), frequencies, following)


def frequencies_of(data: Mixture, tokens: int = MOST_TOKENS) -> np.ndarray:
    """Return how often each token occurs [W], as counted with its neighbours."""
    each = [_frequencies(part_of(part.shards("train"), tokens), part) for part in data.parts]
    return each[0] if len(each) == 1 else _mixed(each, data.weights)


def _frequencies(shards: Sequence[Shard], data: PreparedData) -> np.ndarray:
    dtype, size = np.dtype(f"<u{data.token_bytes}"), data.vocabulary.size
    counts: np.ndarray = np.zeros(size, np.int64)
    for shard in shards:
        if shard.tokens:
            counts += np.bincount(shard.map(dtype), minlength=size)
    return counts


def _scales(totals: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return by what the counts of each part are multiplied, so that it counts by its weight."""
    return [weight / max(total, 1) * sum(totals) for total, weight in zip(totals, weights, strict=True)]


def _mixed(each: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    scales = _scales([int(one.sum()) for one in each], weights)
    return np.sum([one * scale for one, scale in zip(each, scales, strict=True)], axis=0)


def _of_part(data: PreparedData, tokens: int) -> Neighbours:
    """Read what an earlier run has counted, or count."""
    identity = _identity(data, tokens)
    if (found := _read(data.folder / NEIGHBOURS, identity)) is not None:
        return found
    counted = count_neighbours(part_of(data.shards("train"), tokens), data.token_bytes, data.vocabulary.size)
    _keep(counted, data.folder / NEIGHBOURS, identity)
    return counted


def _identity(data: PreparedData, tokens: int) -> dict[str, str]:
    """What counts belong to, and how they were made."""
    made = [_VERSION, WINDOW, NEAREST, _LEAST, MOST_PAIRS, tokens]
    return {"data": json_digest(data.fingerprint), "made": json.dumps(made)}


# Counting


def count_neighbours(shards: Sequence[Shard], token_bytes: int, vocabulary: int, window: int = WINDOW) -> Neighbours:
    """Count in one pass over the tokens, sorted: a few rows of the table at a time, so that it fits into a cache."""
    dtype = np.dtype(f"<u{token_bytes}")
    texts = [shard.map(dtype) for shard in shards if shard.tokens]
    gap: np.ndarray = np.full(window, vocabulary, np.int64)  # no neighbours across files
    tokens = np.concatenate([part for text in texts for part in (text, gap.astype(_wide_enough(vocabulary)))] or [gap])
    frequencies = np.bincount(tokens, minlength=vocabulary + 1)[:vocabulary]
    order = np.argsort(tokens, kind="stable").astype(np.uint32)
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    stripes = list(_stripes(starts, vocabulary))
    least, rows = _LEAST, []
    with ProgressWatch("counting", [int(starts[last] - starts[first]) for first, last in stripes]) as watch:
        for number, (first, last) in enumerate(stripes):
            table = _counted(tokens, order[starts[first] : starts[last]], first, last, vocabulary, window)
            table[table < least] = 0
            rows.append(sparse.csr_array(table))
            while sum(row.nnz for row in rows) > MOST_PAIRS:
                least *= 2
                rows = [_without_rare(row, least) for row in rows]
            watch.finish(number)
    following = sparse.vstack(rows, format="csr") if rows else sparse.csr_array((vocabulary, vocabulary))
    return Neighbours(int(frequencies.sum()), frequencies, following)


def _wide_enough(vocabulary: int) -> np.dtype:
    """Return the type that holds every id and one more."""
    return np.dtype("<u2") if vocabulary < 1 << 16 else np.dtype("<u4")


def _stripes(starts: np.ndarray, vocabulary: int) -> Iterator[tuple[int, int]]:
    """Divide the vocabulary into as many rows as the table has."""
    rows = max(1, _CELLS // vocabulary)
    for first in range(0, vocabulary, rows):
        yield first, min(first + rows, vocabulary)


def _counted(tokens: np.ndarray, places: np.ndarray, first: int, last: int, vocabulary: int, window: int) -> np.ndarray:
    """Count what follows the tokens at `places`, whose ids are from `first` to `last`: [rows, W]."""
    table: np.ndarray = np.zeros((last - first) * (vocabulary + 1), np.int64)
    for start in range(0, len(places), _CELLS):
        here: np.ndarray = places[start : start + _CELLS].astype(np.int64)
        cells = (tokens[here].astype(np.int64) - first) * (vocabulary + 1)
        for distance in range(1, window + 1):
            np.add.at(table, cells + tokens[here + distance], NEAREST // distance)
    return table.reshape(last - first, vocabulary + 1)[:, :vocabulary]


def _without_rare(rows: sparse.csr_array, least: int) -> sparse.csr_array:
    rows.data[rows.data < least] = 0
    rows.eliminate_zeros()
    return rows


# Keeping


def _keep(counted: Neighbours, folder: Path, identity: dict[str, str]) -> None:
    """Write counts beside the data they belong to; a folder that cannot be written to is no obstacle."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    aside = folder.with_name(f".{folder.name}.writing")
    columns = counted.following.indices.astype(_wide_enough(counted.following.shape[1]))
    tensors = {
        "frequencies": counted.frequencies,
        "ends": counted.following.indptr[1:].astype(np.int64),
        "columns": np.ascontiguousarray(columns),
        "counts": counted.following.data.astype(np.min_scalar_type(counted.following.data.max(initial=0))),
    }
    try:
        shutil.rmtree(aside, ignore_errors=True)  # of one that was killed here
        aside.mkdir()
        save_file(tensors, aside / _FILE, {**identity, "tokens": str(counted.tokens)})
        seal(aside)
        replace_folder(aside, folder)
    except (OSError, SafetensorError) as error:  # a full disk is the latter
        shutil.rmtree(aside, ignore_errors=True)
        say(f"the counts are not kept for the next run: {folder.parent}: {getattr(error, 'strerror', None) or error}")


def _read(folder: Path, identity: dict[str, str]) -> Neighbours | None:
    """Return counts that are whole and belong to these data; None, where there are none."""
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        return None
    if (problem := damage(folder)) is not None:
        say(f"{problem}; counting again")
        return None
    try:
        with safe_open(folder / _FILE, "np") as file:
            noted: dict[str, Any] = file.metadata() or {}
            if {name: noted.get(name) for name in identity} != identity:
                return None  # of other data, or counted otherwise
            parts = {name: file.get_tensor(name) for name in ("frequencies", "ends", "columns", "counts")}
            size = len(parts["frequencies"])
            rows = np.concatenate([[0], parts["ends"]])
            counts, columns = parts["counts"].astype(np.int64), parts["columns"].astype(np.int32)
            following = sparse.csr_array((counts, columns, rows), shape=(size, size))
            return Neighbours(int(noted["tokens"]), parts["frequencies"], following)
    except (OSError, ValueError, LookupError, SafetensorError):
        say(f"{folder / _FILE} cannot be read; counting again")
        return None
