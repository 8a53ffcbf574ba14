"""Results of a grammar test: what is counted, what is on disk while it works, and the record that is left.

OUT/grammar.json    the record: every model with its accuracies and floors
OUT/grammar.md      the table
OUT/pairs.csv       every pair, with the scores that each model gave
OUT/scores/         scores of sentences, written while it works: the same command goes on after a kill
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latemask.evaluation.minimal_pairs import MinimalPairs
from latemask.evaluation.results import provenance
from latemask.ground.console import printable, say
from latemask.ground.errors import Interrupted, UserError
from latemask.ground.files import json_digest, write_json_atomically, write_text_atomically
from latemask.ground.signals import SignalFlag

if TYPE_CHECKING:
    from latemask.evaluation.language_models import LanguageModel
    from latemask.evaluation.pseudo_likelihood import Sentences

FORMAT = 1
RECORD, TABLE, EVERY_PAIR, SCORES = "grammar.json", "grammar.md", "pairs.csv", "scores"
Score = Literal["token", "word"]
UNIGRAM, UNTRAINED = "unigram", "untrained"
FLOORS = {UNIGRAM: "word frequencies", UNTRAINED: "never trained"}
_SECONDS_BETWEEN_WRITES = 20.0
_TIE = 1e-5  # nats: less is rounding
_OTHER = "other pairs, or by another --score; choose another --out"


@dataclass(frozen=True)
class Accuracies:
    """Per cent of pairs whose good sentence is more likely, by paradigm; a tie counts one half."""

    by_paradigm: dict[tuple[str, str], tuple[float, float]]
    """(term, paradigm) → accuracy and its standard error."""
    counts: dict[tuple[str, str], int]

    @classmethod
    def of(cls, pairs: MinimalPairs, differences: Sequence[float | None]) -> Accuracies:
        """Count who is right; pairs without a difference are left out."""
        points: dict[tuple[str, str], list[float]] = {}
        for paradigm, difference in zip(pairs.paradigms, differences, strict=True):
            if difference is not None:
                right = 0.5 if abs(difference) < _TIE else float(difference > 0)
                points.setdefault(paradigm, []).append(right)
        found = {paradigm: (100 * statistics.fmean(of), _error(of)) for paradigm, of in points.items()}
        return cls(found, {paradigm: len(of) for paradigm, of in points.items()})

    @property
    def count(self) -> int:
        """Pairs."""
        return sum(self.counts.values())

    @property
    def terms(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(term for term, _ in self.by_paradigm))

    @property
    def mean(self) -> float:
        """The mean over paradigms."""
        return statistics.fmean(value for value, _ in self.by_paradigm.values())

    @property
    def error(self) -> float:
        """Its standard error, by the sampling of pairs."""
        return _of_mean([error for _, error in self.by_paradigm.values()])

    def term(self, name: str) -> dict[str, float]:
        """Return the mean over a term's paradigms, its standard error and its size."""
        own = [paradigm for paradigm in self.by_paradigm if paradigm[0] == name]
        values, errors = zip(*(self.by_paradigm[paradigm] for paradigm in own), strict=True)
        return {
            "mean": statistics.fmean(values),
            "error": _of_mean(errors),
            "pairs": sum(self.counts[paradigm] for paradigm in own),
            "paradigms": len(own),
        }


def _error(points: Sequence[float]) -> float:
    return 100 * math.sqrt(statistics.pvariance(points) / len(points))


def _of_mean(errors: Sequence[float]) -> float:
    return math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)


@dataclass
class GrammarStudy:
    """The folder of a grammar test, and what is known of its sentences."""

    out: Path
    pairs: MinimalPairs
    score: Score

    def __post_init__(self) -> None:
        self.sentences = list(dict.fromkeys([*self.pairs.good, *self.pairs.bad]))
        numbers = {sentence: number for number, sentence in enumerate(self.sentences)}
        self.good = [numbers[sentence] for sentence in self.pairs.good]
        self.bad = [numbers[sentence] for sentence in self.pairs.bad]
        self.record = self._begun()

    def _begun(self) -> dict[str, Any]:
        asked = {"name": self.pairs.name, "identity": self.pairs.identity, "count": len(self.pairs)}
        record: dict[str, Any] = {
            "format": FORMAT,
            "made_by": [],
            "pairs": asked,
            "score": self.score,
            "models": [],
        }
        if (self.out / RECORD).exists():
            record = read_record(self.out / RECORD)
            if (record["pairs"]["identity"], record["score"]) != (self.pairs.identity, self.score):
                raise UserError(f"{printable(str(self.out))} holds results of {_OTHER}")
        record["made_by"].append(provenance())
        return record

    def sample(self, most: int, differences: Sequence[float | None]) -> list[int]:
        """Return the sentences of at most so many scored pairs of each paradigm, at even distances."""
        by_paradigm: dict[tuple[str, str], list[int]] = {}
        for row, paradigm in enumerate(self.pairs.paradigms):
            if differences[row] is not None:
                by_paradigm.setdefault(paradigm, []).append(row)
        rows = [row for own in by_paradigm.values() for row in own[:: -(-len(own) // most)]]
        return sorted({number for row in rows for number in (self.good[row], self.bad[row])})

    def scores(
        self, model: LanguageModel, sentences: Sentences, numbers: Sequence[int] | None = None
    ) -> list[float | None]:
        """Return the scores of all sentences, or of some, and keep them; None for the others and what is too long."""
        from latemask.evaluation.pseudo_likelihood import scored
        from latemask.text.progress import ProgressWatch

        kept = KeptScores(self, model.checksum)
        numbers = range(len(sentences)) if numbers is None else numbers
        chunks = sentences.chunks(numbers, model.longest)
        done = {number for number, chunk in enumerate(chunks) if kept.values[chunk[0]] is not None}
        if len(done) == len(chunks):
            return kept.values
        say(f"{printable(model.label)}: {len(numbers):,} sentences" + (", going on" if done else ""))
        sizes = [len(chunk) * len(sentences.ids[chunk[0]]) ** 2 for chunk in chunks]
        with SignalFlag("stopping; what is scored is kept (once more ends at once)") as stop:
            with ProgressWatch("scoring", sizes, done=done) as watch:
                left = [number for number in range(len(chunks)) if number not in done]
                scores = scored(model, sentences, [chunks[number] for number in left], self.score)
                for number, found in zip(left, scores, strict=True):
                    kept.add(chunks[number], found)
                    watch.finish(number)
                    if stop.received is not None:
                        break
            kept.write()
        if stop.received is not None:
            raise Interrupted(
                f"stopped; what is scored is in {printable(str(kept.path))}. The same command goes on", stop.received
            )
        return kept.values

    def differences(self, scores: Sequence[float | None]) -> list[float | None]:
        """Return by how much the good sentence of each pair is more likely; None where one has no score."""
        both = ((scores[good], scores[bad]) for good, bad in zip(self.good, self.bad, strict=True))
        return [None if good is None or bad is None else good - bad for good, bad in both]

    def keep(self, entry: dict[str, Any]) -> None:
        """Write down what came out; the same model is written once."""
        others = [other for other in self.record["models"] if other["identity"] != entry["identity"]]
        self.record["models"] = [*others, entry]
        write_json_atomically(self.out / RECORD, self.record)
        write_text_atomically(self.out / EVERY_PAIR, self._every_pair())

    def _every_pair(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        models = {model["model"]: KeptScores(self, model["identity"]).values for model in self.record["models"]}
        columns = [f"{side}: {name}" for name in models for side in ("good", "bad")]
        writer.writerow(["term", "paradigm", "good", "bad", *columns])
        for row, (good, bad) in enumerate(zip(self.good, self.bad, strict=True)):
            scores = [values[side] for values in models.values() for side in (good, bad)]
            shown = ["" if value is None else f"{value:.5f}" for value in scores]
            writer.writerow([*self.pairs.paradigms[row], self.sentences[good], self.sentences[bad], *shown])
        return file.getvalue()


class KeptScores:
    """The scores of sentences by one model, on disk as far as they are."""

    def __init__(self, study: GrammarStudy, checksum: str):
        self.path, self.written = study.out / SCORES / f"{checksum[:16]}.json", time.monotonic()
        self.of = {"model": checksum, "pairs": study.pairs.identity, "score": study.score}
        self.values: list[float | None] = [None] * len(study.sentences)
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            record = json.loads(self.path.read_text("utf-8"))
            if record.pop("sha256") != json_digest(record):
                raise ValueError
            if record["of"] != self.of:
                raise UserError(f"{printable(str(self.path))} holds scores of {_OTHER}")
            self.values = record["values"]
        except (ValueError, LookupError, TypeError, AttributeError):
            say(f"{printable(str(self.path))} is damaged; what it held is scored again")

    def add(self, numbers: Sequence[int], scores: Sequence[float]) -> None:
        """Note scores, now and then on disk, too."""
        for number, score in zip(numbers, scores, strict=True):
            if not math.isfinite(score):
                raise UserError("the model gives no numbers (NaN): its training diverged")
            self.values[number] = score
        if time.monotonic() - self.written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Write all of them, in one piece."""
        record = {"of": self.of, "values": self.values}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.path, {**record, "sha256": json_digest(record)})
        self.written = time.monotonic()


def read_record(path: Path) -> dict[str, Any]:
    """Read what a grammar test wrote: the file, or the folder it is in."""
    path = path / RECORD if path.is_dir() else path
    try:
        record = dict(json.loads(path.read_text("utf-8")))
        if record["format"] != FORMAT:
            raise UserError(f"{path}: a grammar record of format {record['format']}, this latemask reads {FORMAT}")
        for model in record["models"]:
            _check_model(model)
        str(record["pairs"]["identity"]), str(record["score"]), list(record["made_by"])
        return record
    except FileNotFoundError:
        raise UserError(f"{printable(str(path))}: no such file") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError):
        raise UserError(
            f"{printable(str(path))} is damaged, or no grammar record of latemask; put it right or move it away"
        ) from None


def _check_model(model: dict[str, Any]) -> None:
    """Raise something if what is used later is missing or of another kind."""
    floors = [name for name in FLOORS if model[name] is not None]
    numbers = [model["mean"], model["error"], model["pairs"], *(model[name] for name in floors)]
    numbers += [model["errors_of_floors"][name] for name in floors]
    for term in model["terms"].values():
        numbers += [term["mean"], term["error"], *(term[name] for name in floors if term[name] is not None)]
    names = [model["model"], model["identity"], *([] if model["run"] is None else [model["run"]])]
    is_whole = all(math.isfinite(number) for number in numbers) and all(isinstance(name, str) for name in names)
    if not is_whole or not isinstance(model["step"], (int, type(None))) or not isinstance(model["paradigms"], dict):
        raise ValueError
