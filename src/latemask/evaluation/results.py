"""Results: records with command, versions, seeds and checksums. Read and written here; everything else displays them.

A file holds the protocol, the encoders, the tasks and every cell. It is written anew, in one piece, after each cell,
so that an interrupted table goes on where it was.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latemask.evaluation.protocol import Protocol
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import write_json_atomically

FORMAT = 1
_PACKAGES = ("latemask", "torch", "transformers", "accelerate", "tokenizers", "scikit-learn", "scipy", "numpy")
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
_LATER = {"precision": "unknown"}  # what older cells do not say
_AVERAGED_OVER = "median over seeds at the learning rate that is best on dev"


def provenance() -> dict[str, Any]:
    """Return the command and the versions of what ran it."""
    return {
        "command": sys.argv,
        "versions": {"python": sys.version.split()[0], **{name: version(name) for name in _PACKAGES}},
    }


@dataclass
class Cell:
    """What came out of one fine-tuning."""

    encoder: str
    task: str
    learning_rate: float
    seed: int
    score: float
    metrics: dict[str, float | None]
    epoch: int
    """The epoch that is reported, from 1."""
    collapsed: bool
    """It says the same of everything."""
    epochs: list[dict[str, Any]] = field(default_factory=list)
    loss: list[list[float | None]] = field(default_factory=list)
    """[step, mean training loss since the step before]; none where it was no number."""
    steps: int = 0
    batch_size: int = 0
    max_length: int = 0
    precision: str = "unknown"
    """What its training steps computed in."""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, float, int]:
        """What makes it this cell and no other."""
        return self.encoder, self.task, self.learning_rate, self.seed


@dataclass
class Results:
    """All cells of a table, finished so far."""

    path: Path
    protocol: Protocol
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    made_by: list[dict[str, Any]] = field(default_factory=list)
    """Command and versions of every start."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file of results."""
        try:
            record = json.loads(path.read_text("utf-8"))
            if record["format"] != FORMAT:
                raise UserError(f"{path}: results of format {record['format']}, this latemask reads {FORMAT}")
            known = {entry.name for entry in fields(Cell)}
            cells = [Cell(**{name: {**_LATER, **cell}[name] for name in known}) for cell in record["cells"]]
            protocol = Protocol(**record["protocol"])
            results = cls(path, protocol, record["encoders"], record["tasks"], cells, list(record["made_by"]))
            results.check()
            return results
        except FileNotFoundError:
            raise UserError(f"{printable(str(path))}: no such file") from None
        except (*_DAMAGE, OSError):
            raise UserError(
                f"{printable(str(path))} is damaged, or no results of latemask; put it right or move it away"
            ) from None

    def check(self) -> None:
        """Raise one of many things if an entry that is used later is missing or of another kind."""
        for known in (self.encoders, self.tasks):
            for name, record in known.items():
                _must(record["name"] == name and isinstance(record["identity"], str))
        for record in self.tasks.values():
            _must(isinstance(record["part"], str) and all(isinstance(name, str) for name in record["headline"]))
            _must(all(sum(splits.values()) >= 0 for splits in record["cut"].values()))
        _must(all(math.isfinite(cell.score) and isinstance(cell.metrics, dict) for cell in self.cells))
        self.as_record()

    @classmethod
    def begin(cls, path: Path, protocol: Protocol) -> Results:
        """Go on with a file, or start one; refuse one that was made under another protocol."""
        results = cls.read(path) if path.exists() else cls(path, protocol)
        if not results.cells:  # nothing that another protocol could be mixed with
            results = cls(path, protocol, made_by=results.made_by)
        elif changed := protocol.differences(asdict(results.protocol)):
            raise UserError(
                f"{printable(str(path))} holds results of another protocol ({'; '.join(changed)}); "
                "choose another --out or pass --overwrite"
            )
        results.made_by.append(provenance())
        return results

    def enter(self, encoder: dict[str, Any], task: dict[str, Any]) -> None:
        """Write down an encoder and a task, or refuse one that is no longer the same."""
        self._enter(self.encoders, encoder)
        self._enter(self.tasks, task)

    def note_cut(self, encoder: str, task: str, cut: dict[str, int]) -> None:
        """Write down how many texts of each split were longer than an encoder takes."""
        self.tasks[task]["cut"][encoder] = cut

    def _enter(self, known: dict[str, Any], new: dict[str, Any]) -> None:
        if known.setdefault(new["name"], new)["identity"] != new["identity"]:
            raise UserError(
                f"'{printable(new['name'])}' is not what it was when {printable(str(self.path))} was begun; "
                "choose another --out or pass --overwrite"
            )

    def has(self, key: tuple[str, str, float, int]) -> bool:
        """Whether a cell is done."""
        return any(cell.key == key for cell in self.cells)

    def add(self, cell: Cell) -> None:
        """Note a finished cell, on disk, too."""
        self.cells.append(cell)
        self.write()

    def write(self) -> None:
        """Write everything, in one piece."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.path, self.as_record())

    def as_record(self) -> dict[str, Any]:
        """Return all that is written."""
        return {
            "format": FORMAT,
            "made_by": self.made_by,
            "protocol": asdict(self.protocol),
            "encoders": self.encoders,
            "tasks": self.tasks,
            "cells": [asdict(cell) for cell in self.ordered()],
            "summary": [asdict(summary) for summary in self.summaries()],
            "averages": {name: self.average(name) for name in self.encoders},
        }

    def ordered(self) -> list[Cell]:
        """Return the cells in the order of the table, whenever they were run."""
        return sorted(self.cells, key=self._order)

    def _order(self, cell: Cell) -> tuple[int, int, float, int]:
        encoders, tasks = list(self.encoders), list(self.tasks)
        return encoders.index(cell.encoder), tasks.index(cell.task), cell.learning_rate, cell.seed

    def summaries(self) -> list[Summary]:
        """Return one summary for each encoder and task that has cells."""
        pairs = [(encoder, task) for encoder in self.encoders for task in self.tasks]
        found = (self.summary(*pair) for pair in pairs)
        return [summary for summary in found if summary]

    def summary(self, encoder: str, task: str) -> Summary | None:
        """Return what the cells of one encoder on one task say; None where there are none."""
        cells = [cell for cell in self.cells if (cell.encoder, cell.task) == (encoder, task)]
        return summarised(cells, self.tasks[task]["constant"]["score"]) if cells else None

    def average(self, encoder: str) -> dict[str, Any] | None:
        """Return GLUE's average of an encoder over the tasks it has, and which they are."""
        found = {task: summary.median for task in self.tasks if (summary := self.summary(encoder, task))}
        if not found:
            return None
        return {
            "score": statistics.fmean(found.values()),
            "tasks": list(found),
            "parts": [task for task in found if self.tasks[task]["part"]],
            "over": _AVERAGED_OVER,
        }


def _must(condition: bool) -> None:
    if not condition:
        raise ValueError


@dataclass(frozen=True)
class Summary:
    """The cells of one encoder on one task."""

    encoder: str
    task: str
    learning_rate: float
    """The one with the best median on dev; the numbers are for this one."""
    tried: dict[str, float]
    """Median score of every learning rate."""
    seeds: list[int]
    scores: list[float]
    """One for each seed."""
    median: float
    mean: float
    lowest: float
    highest: float
    deviation: float | None
    metrics: dict[str, float | None]
    """Medians."""
    collapsed: int
    """How many of these runs say the same of everything."""
    constant: float
    """What the majority class or the mean scores."""


def summarised(cells: list[Cell], constant: float) -> Summary:
    """Summarise the cells of one encoder on one task."""
    rates = sorted({cell.learning_rate for cell in cells})
    medians = {rate: statistics.median(c.score for c in cells if c.learning_rate == rate) for rate in rates}
    best = max(rates, key=lambda rate: medians[rate])
    chosen = sorted((cell for cell in cells if cell.learning_rate == best), key=lambda cell: cell.seed)
    scores = [cell.score for cell in chosen]
    return Summary(
        encoder=cells[0].encoder,
        task=cells[0].task,
        learning_rate=best,
        tried={f"{rate:g}": median for rate, median in medians.items()},
        seeds=[cell.seed for cell in chosen],
        scores=scores,
        median=medians[best],
        mean=statistics.fmean(scores),
        lowest=min(scores),
        highest=max(scores),
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        metrics={name: _median(cell.metrics[name] for cell in chosen) for name in chosen[0].metrics},
        collapsed=sum(cell.collapsed for cell in chosen),
        constant=constant,
    )


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(numbers) if numbers else None


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Return metrics as JSON can say them: it has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


@dataclass(frozen=True)
class ProbeResult:
    """One linear probe: accuracies of this encoder and of an untrained one, for each split."""

    task: str
    question: str
    examples: int
    majority: float
    encoder: list[float]
    random: list[float]


def write_probe(path: Path | None, encoder: str, checksum: str, results: list[ProbeResult]) -> dict[str, Any]:
    """Return the record of a probe, and write it where a path is given."""
    record = {
        "format": FORMAT,
        "made_by": [provenance()],
        "encoder": {"name": encoder, "identity": checksum},
        "probes": [asdict(result) for result in results],
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(path, record)
    return record
