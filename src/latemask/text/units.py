"""The units of a data folder: collocations that were found in its training text, kept with it, and found in rows.

units.safetensors holds the pieces of each unit, not a hash of them, so that one can read what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import sync
from latemask.text.collocations import LONGEST, MOST_TOKENS, Collocations, WordRuns, find_collocations
from latemask.text.prepared import UNITS, PreparedData, file_record, with_file
from latemask.text.rows import part_of
from latemask.text.words import word_starts
from latemask.text.workplace import Workplace

_VERSION = 1
_LENGTHS = range(2, LONGEST + 1)
_NARROW = {"pieces": "<u4", "ends": "<i8", "words": "<u1", "scores": "<f4", "counts": "<u4"}
_WIDE = {"u": np.int64, "i": np.int64, "f": np.float64}
_SLOTS = 4  # for each hash of a table
_FILTER = 16
_MOST_FILTER = 1 << 23


class Units:
    """Hashes of units, by which they are found in rows."""

    def __init__(self, beginnings: Sequence[np.ndarray], tables: dict[int, _Table]):
        self.tables = tables
        """By the number of words."""
        size = min(_MOST_FILTER, 1 << (_FILTER * sum(map(len, beginnings))).bit_length())
        self.may_begin: np.ndarray = np.zeros(size, bool)
        """By the lowest bits of the hash of a run of 2 words or more: whether a unit may begin so."""
        for hashes in beginnings:
            self.may_begin[self._cell(hashes)] = True

    @classmethod
    def of(cls, found: Sequence[Collocations], words: bytes) -> Units:
        """Make the table of all units of some data."""
        by_length: dict[int, list[np.ndarray]] = {length: [np.empty(0, np.uint64)] for length in _LENGTHS}
        beginnings = []
        for one in found:
            starts = word_starts(one.pieces[None], words)[0]
            starts[one.ends[:-1]] = True
            runs, firsts = WordRuns(one.pieces, starts), np.cumsum(one.words) - one.words
            for length in _LENGTHS:
                by_length[length].append(runs.hashes(length)[firsts[one.words == length]])
                beginnings.append(runs.hashes(length)[firsts[one.words >= length]])
        return cls(beginnings, {length: _Table(np.concatenate(each)) for length, each in by_length.items()})

    def _cell(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes & np.uint64(len(self.may_begin) - 1)).astype(np.int64)

    def found(self, runs: WordRuns) -> dict[int, np.ndarray]:
        """Return for each number of words the first word of every run that is a unit."""
        found, places = {}, None
        for length in _LENGTHS:
            hashes = runs.hashes(length, places)
            may_begin = np.flatnonzero(self.may_begin[self._cell(hashes)])
            places, hashes = may_begin if places is None else places[may_begin], hashes[may_begin]
            found[length] = places[self.tables[length].holds(hashes)]
            places = places[places < len(runs.firsts) - length]  # there is a word more
        return found


class _Table:
    """A set of hashes, to look many up at once: each has a slot, and what found its slot taken another one behind."""

    def __init__(self, hashes: np.ndarray):
        self.levels: list[np.ndarray] = []
        while len(hashes):
            slots: np.ndarray = np.zeros(1 << (_SLOTS * len(hashes)).bit_length(), np.uint64)
            self.levels.append(slots)
            where = self._slots(hashes, len(self.levels) - 1)
            slots[where] = hashes
            hashes = hashes[slots[where] != hashes]

    def _slots(self, hashes: np.ndarray, level: int) -> np.ndarray:
        """Each level looks at other bits."""
        return ((hashes >> np.uint64(11 * level % 44)) & np.uint64(len(self.levels[level]) - 1)).astype(np.int64)

    def holds(self, hashes: np.ndarray) -> np.ndarray:
        """Tell which hashes are here."""
        found: np.ndarray = np.zeros(len(hashes), bool)
        for level, slots in enumerate(self.levels):
            found |= slots[self._slots(hashes, level)] == hashes
        return found


def units_of(parts: Sequence[PreparedData]) -> Units | None:
    """Return the units of data folders with one tokenizer, all together; None where none keeps any."""
    kept = [part for part in parts if has_units(part.manifest)]
    words = kept[0].words if kept else None
    return Units.of([read_units(part) for part in kept], words) if words else None


def has_units(manifest: dict[str, Any]) -> bool:
    """Whether a data folder keeps units that can be read."""
    return bool(manifest.get("units", {}).get("version") == _VERSION)


def read_units(data: PreparedData) -> Collocations:
    """Read the units that a data folder keeps."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        columns = load_file(data.folder / UNITS)
        return Collocations(**{name: column.astype(_WIDE[column.dtype.kind]) for name, column in columns.items()})
    except (OSError, SafetensorError, TypeError):
        raise UserError(f"{data.folder / UNITS} cannot be read; prepare the data again (--overwrite)") from None


def with_units(data: PreparedData, wanted: int, overwrite: bool = False) -> PreparedData:
    """Find units in prepared data, unless they are there, and keep them with it."""
    known = data.manifest["units"]["wanted"] if has_units(data.manifest) else None
    if known == wanted:
        return data
    if known is not None and not overwrite:
        raise UserError(
            f"{data.folder} keeps the units of --pmi {known}; leave --pmi away, or pass --overwrite for others"
        )
    words = words_to_find(data.words, f"the tokenizer of {data.folder}")
    place = Workplace(data.folder)
    lock = place.lock()
    try:
        return _add(data, words, wanted, place.folder / UNITS)
    finally:
        place.remove()
        lock.release()


def words_to_find(words: bytes | None, whose: str) -> bytes:
    """Return what tells words apart, or refuse a tokenizer that does not."""
    if words is None:
        raise UserError(f"--pmi finds units of words, and the pieces of {whose} do not tell where they begin")
    return words


def _add(data: PreparedData, words: bytes, wanted: int, aside: Path) -> PreparedData:
    from safetensors.numpy import save

    shards = part_of(data.shards("train"), MOST_TOKENS)
    tokens = sum(shard.tokens for shard in shards)
    say(f"looking for units of 2 to {LONGEST} words in {tokens:,} tokens")
    found = find_collocations(shards, data.token_bytes, words, wanted)
    aside.write_bytes(save({name: column.astype(_NARROW[name]) for name, column in asdict(found).items()}))
    sync(aside)
    if data.units_checksum:
        data = with_file(data, UNITS, None, units=None)  # killed in between, it is whole without any
    counts = np.bincount(found.words, minlength=LONGEST + 1)[2:].tolist()
    record = file_record(aside)
    aside.replace(data.folder / UNITS)
    data = with_file(
        data, UNITS, record, units={"version": _VERSION, "wanted": wanted, "tokens": tokens, "found": counts}
    )
    fewer = "" if sum(counts) == wanted else f" (less than {wanted:,}: the text has no more of some length)"
    say(f"units: {units_text(counts)}{fewer}")
    return data


def units_text(counts: Sequence[int]) -> str:
    """Say how many units of each number of words there are."""
    each = ", ".join(f"{count:,} of {words}" for words, count in enumerate(counts, 2))
    return f"{sum(counts):,}: {each} words"


def best_units(data: PreparedData, each: int) -> list[str]:
    """Return the text of the best units of each number of words."""
    found, tokenizer = read_units(data), data.tokenizer
    numbers = [n for length in range(2, LONGEST + 1) for n in np.flatnonzero(found.words == length)[:each].tolist()]
    return [" ".join(tokenizer.decode(found.of(number)).split()) for number in numbers]
