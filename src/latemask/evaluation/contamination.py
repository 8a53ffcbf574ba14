"""Was the test in the pre-training text? Rows of a task, or sentences, are looked up in the n-grams of a corpus.

A text of 13 words or more counts as found if 13 words of it in a row stand in one document of the corpus, a shorter one
if its sentences stand there as whole sentences. Sentences of less than 5 words say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.run_folder import RunFolder
from latemask.text.ngram_table import CorpusNgrams
from latemask.text.ngrams import WORDS, Words, batches
from latemask.text.prepared import PreparedData

Row = str | Sequence[str]
"""A text, or several that belong together: a pair, or a premise and its hypothesis."""


@dataclass(frozen=True)
class Overlap:
    """What of some rows stands in a corpus."""

    is_found: np.ndarray
    """For each row whether one of its texts does."""
    is_too_short: np.ndarray
    """For each row whether nothing can be said of it."""
    by_chance: float
    """How many rows would be found, on average, if none stood there."""
    one_in: int
    """Of how many n-grams of the corpus one is kept."""
    silent: tuple[str, ...]
    """Data folders that keep no n-grams; all of them: nothing is known."""
    is_known: bool

    @property
    def found(self) -> int:
        """How many rows stand in the corpus."""
        return int(self.is_found.sum())

    def words(self, rows: str) -> str:
        """Say it; `rows` is what they are: pairs, or rows of dev."""
        silent = f"{', '.join(map(printable, self.silent))} (prepared without n-grams; prepare it again to have them)"
        if not self.is_known:
            return f"whether {rows} are in the pre-training text cannot be told from {silent}"
        said = f"{self.found:,} of {len(self.is_found):,} {rows} are found in the pre-training text "
        said += f"(about {self.by_chance:,.1f} by chance)"
        if short := int(self.is_too_short.sum()):
            said += f"; {short:,} are too short to tell"
        if self.one_in > 1:
            said += f"; these are at least: the corpus is large, and 1 in {self.one_in} of its n-grams is kept"
        return said + (f"; not looked up in {silent}" if self.silent else "")


def found_in(corpora: Sequence[PreparedData], rows: Sequence[Row]) -> Overlap:
    """Look rows up in the training text of data folders, one at least."""
    assert corpora
    tables = {str(data.folder): CorpusNgrams.of(data) for data in corpora}
    known = [table for table in tables.values() if table]
    texts_of = [[row] if isinstance(row, str) else list(row) for row in rows]
    texts = [text for several in texts_of for text in several]
    is_found: np.ndarray = np.zeros(len(texts), bool)
    can_be_told, missed_by_chance = is_found.copy(), np.ones(len(texts))
    for first, last in batches(texts):
        wanted = _Wanted(texts[first:last])
        can_be_told[first:last] = wanted.is_long | (wanted.sentences > 0)
        for table in known:
            found, chance = wanted.found_in(table)
            is_found[first:last] |= found
            missed_by_chance[first:last] *= 1 - chance
    ends = np.cumsum([0, *map(len, texts_of)])
    return Overlap(
        is_found=_of_rows(is_found, ends) > 0,
        is_too_short=_of_rows(can_be_told, ends) == 0,
        by_chance=float((1 - np.exp(_of_rows(np.log(missed_by_chance), ends))).sum()),
        one_in=max((table.table.one_in for table in known), default=1),
        silent=tuple(folder for folder, table in tables.items() if not table),
        is_known=bool(known),
    )


def _of_rows(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the sum over the texts of each row."""
    return np.diff(np.append(0, np.cumsum(values))[ends])


class _Wanted:
    """The hashes of some texts. T texts, H hashes."""

    def __init__(self, texts: Sequence[str]):
        words = Words.of(texts)
        self.is_long = np.bincount(words.text, minlength=len(texts)) >= WORDS  # [T]
        ngrams, ngram_text = words.ngrams()
        sentences, sentence_text = words.short_sentences(words.sentence)
        is_of_short = ~self.is_long[sentence_text]
        self.hashes = np.concatenate([ngrams, sentences[is_of_short]])  # [H]
        self.text = np.concatenate([ngram_text, sentence_text[is_of_short]])  # [H]
        self.sentences = np.bincount(sentence_text[is_of_short], minlength=len(texts))  # [T]

    def found_in(self, table: CorpusNgrams) -> tuple[np.ndarray, np.ndarray]:
        """Return for each text whether it stands in a corpus, and how probably it seems to if it does not. [T]"""
        is_kept = table.kept(self.hashes)
        is_hit = is_kept & table.holds(self.hashes)
        kept, hits = (np.bincount(self.text[which], minlength=len(self.is_long)) for which in (is_kept, is_hit))
        chance = table.table.chance
        found = np.where(self.is_long, hits > 0, (hits == self.sentences) & (hits > 0))
        of_short = np.where((kept == self.sentences) & (kept > 0), chance**self.sentences, 0)
        return found, np.where(self.is_long, 1 - (1 - chance) ** kept, of_short)


def corpora_of(encoder: str) -> list[PreparedData]:
    """Return the data that a run was trained on, for the run or a folder in it.

    None where it is no run, or where the data are gone or have changed since.
    """
    inside = Path(encoder)
    run = next((RunFolder(at) for at in (inside, *inside.parents[:2]) if (at / "recipe.yaml").is_file()), None)
    record = run.record.get("data", {}) if run else {}
    # Runs of earlier versions name only where the tokenizer is: with the first of the data folders.
    with_tokenizer = [Path(record["tokenizer"]).parent] if "tokenizer" in record else []
    try:
        corpora = [PreparedData.open(folder, verify=False) for folder in record.get("folders", with_tokenizer)]
    except UserError:
        return []
    here = {checksum for data in corpora for checksum in data.fingerprint.values()}
    return corpora if here == set(record.get("fingerprint", {}).values()) else []


def open_corpora(corpus: Sequence[str | Path] | None, encoders: Sequence[str]) -> list[PreparedData]:
    """Return the data folders to look in: those that the user names, or else those of the encoders' runs."""
    if corpus:
        return [PreparedData.open(folder, verify=False) for folder in corpus]
    found = {data.folder.resolve(): data for encoder in encoders for data in corpora_of(encoder)}
    return list(found.values())
