"""The n-grams of a corpus as one file in its data folder: a set of hashes, cut to as few bits as it takes.

ngrams.bin is little-endian uint16. The leading bits of a hash name its bucket, the next 16 stand in the file, sorted,
bucket after bucket; then follows how many each bucket holds. That takes 18 bits an entry, and 1 in 8,192 hashes or
fewer is found by chance: a Bloom filter of the same size has four times as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latemask.ground.errors import UserError
from latemask.ground.files import sync
from latemask.text.ngrams import corpus_hashes, is_kept
from latemask.text.prepared import NGRAMS, PreparedData, compare_checksums
from latemask.text.progress import ProgressWatch

WHOLE_TEXT = 1 << 30  # bytes of text of which every n-gram is kept; of n times as much one in n
_VERSION = 1  # of the words, the hashes and the file
_BITS = 16
_ENTRIES_IN_BUCKET = 8  # on average, at most
_AT_A_TIME = 1 << 22  # entries that are merged in memory


def has_ngrams(manifest: dict[str, Any]) -> bool:
    """Whether a data folder keeps n-grams that can be read: not if it was prepared before there were any."""
    return bool(manifest.get("ngrams", {}).get("version") == _VERSION)


def one_in(text_bytes: int) -> int:
    """Return of how many n-grams one is kept, a power of 2, so that the file has a size that one can live with."""
    return 1 << _power_of_two(text_bytes / WHOLE_TEXT)


class NgramWriter:
    """The hashes of a part in the making, in a file of their own."""

    def __init__(self, file: Path, kept_one_in: int):
        self.path, self.one_in, self.count = file, kept_one_in, 0

    def add(self, texts: Sequence[str]) -> None:
        """Append the hashes of documents."""
        hashes = corpus_hashes(texts, self.one_in)
        self.count += len(hashes)
        with self.path.open("ab") as file:
            file.write(hashes.astype("<u8").tobytes())

    def seal(self, target: Path) -> None:
        """Sort the file, in place, and put it where it is found."""
        if self.count:
            np.memmap(self.path, "<u8", "r+").sort()
            sync(self.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(target)


@dataclass(frozen=True)
class NgramTable:
    """What the manifest says of the file."""

    version: int
    one_in: int
    buckets: int
    entries: int

    @classmethod
    def write(cls, parts: dict[Path, int], target: Path, kept_one_in: int) -> NgramTable:
        """Merge the sorted hashes of all parts, given with their number, in memory that does not grow with them.

        What comes out depends on the hashes alone, and not on the parts that they lie in.
        """
        for path, count in parts.items():
            if not path.is_file() or path.stat().st_size != 8 * count:
                raise UserError(f"{path} is missing or damaged; prepare the data again (--overwrite)")
        total = sum(parts.values())
        bits = _power_of_two(total / _ENTRIES_IN_BUCKET)
        steps = 1 << min(bits, _power_of_two(total / _AT_A_TIME))
        filled, entries = [], 0
        with target.open("wb") as file, ProgressWatch("merging", [1] * steps) as watch:
            for step, hashes in enumerate(_merged(parts, steps)):
                values = _once_each(np.sort(hashes) >> np.uint64(64 - _BITS - bits))
                file.write(values.astype("<u2").tobytes())
                buckets = (values >> np.uint64(_BITS)).astype(np.int64) - (step << bits) // steps
                filled.append(np.bincount(buckets, minlength=(1 << bits) // steps).astype("<u2"))
                entries += len(values)
                watch.finish(step)
            file.write(np.concatenate(filled).tobytes())
        sync(target)
        return cls(_VERSION, kept_one_in, 1 << bits, entries)

    @property
    def chance(self) -> float:
        """How probably a hash that is not in the corpus seems to be."""
        return self.entries / (self.buckets << _BITS)


class CorpusNgrams:
    """The n-grams of a data folder, to look hashes up."""

    def __init__(self, folder: Path, table: NgramTable):
        self.table = table
        content: np.ndarray = np.memmap(folder / NGRAMS, "<u2", "r")
        self.values, self.counts = content[: table.entries], content[table.entries :]
        self.ends = np.cumsum(self.counts, dtype=np.int64)

    @classmethod
    def of(cls, data: PreparedData) -> CorpusNgrams | None:
        """Open the n-grams of a data folder, once their checksum matched; None where it has none."""
        if not has_ngrams(data.manifest):
            return None
        compare_checksums({data.folder / NGRAMS: data.manifest["files"][NGRAMS]})
        return cls(data.folder, NgramTable(**data.manifest["ngrams"]))

    def kept(self, hashes: np.ndarray) -> np.ndarray:
        """Tell which hashes would be here if they stood in the corpus."""
        return is_kept(hashes, self.table.one_in)

    def holds(self, hashes: np.ndarray) -> np.ndarray:
        """Tell which hashes are here."""
        values = hashes >> np.uint64(64 - _BITS - (self.table.buckets.bit_length() - 1))
        buckets, wanted = (values >> np.uint64(_BITS)).astype(np.int64), values.astype(np.uint16)
        counts = self.counts[buckets].astype(np.int64)
        firsts = self.ends[buckets] - counts
        found: np.ndarray = np.zeros(len(hashes), bool)
        for offset in range(int(counts.max(initial=0))):
            open_ones = np.flatnonzero(~found & (offset < counts))
            found[open_ones] = self.values[firsts[open_ones] + offset] == wanted[open_ones]
        return found


def _power_of_two(number: float) -> int:
    """Return the exponent of the least power of 2, one at least, that is not below a number."""
    return max(0, math.ceil(math.log2(number))) if number > 1 else 0


def _once_each(values: np.ndarray) -> np.ndarray:
    """Return the different ones of sorted values; np.unique builds a hash table, and takes ten times as long."""
    is_new: np.ndarray = np.ones(len(values), bool)
    is_new[1:] = values[1:] != values[:-1]
    return values[is_new]


def _merged(parts: dict[Path, int], steps: int) -> Iterator[np.ndarray]:
    """Yield the hashes of sorted files: in every step those of all files that begin with the same bits."""
    firsts = np.array([step * 2**64 // steps for step in range(steps)], np.uint64)
    bounds: dict[Path, np.ndarray] = {
        path: np.append(np.searchsorted(np.memmap(path, "<u8", "r"), firsts), parts[path]) for path in parts
    }
    for step in range(steps):
        hashes = []
        for path, found in bounds.items():
            first, last = map(int, found[step : step + 2])
            hashes.append(np.fromfile(path, "<u8", last - first, offset=8 * first))
        yield np.concatenate([np.empty(0, "<u8"), *hashes])
