"""Results: records with command, versions, seeds and checksums. Read and written here; everything else displays them.

A file holds the protocol, the encoders, the tasks and every trial (as "cells"). It is written anew, in one piece, after
each one, so that an interrupted table goes on where it was. Its folder is taken by one process, and never overwritten
unasked.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latemask.evaluation.floors import CONSTANT, Floor
from latemask.evaluation.protocol import Protocol
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import exclusive_lock, write_json_atomically

FORMAT = 1
RESULTS, TABLE, CSV = "results.json", "results.md", "results.csv"
MODEL, MODELS = "model", "models"  # the best model; with several tasks a folder with the best of each
TASK_FILE = "latemask-task.json"  # inside of a model: what it was trained on
_PACKAGES = ("latemask", "torch", "transformers", "accelerate", "tokenizers", "scikit-learn", "scipy", "numpy")
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
# What older trials do not say.
_LATER: dict[str, Any] = {"precision": "unknown", "trained_weights": 0, "stored_bytes": 0, "step_bytes": 0}
_AVERAGED_OVER = "median over seeds at the learning rate that is best on dev"


def provenance() -> dict[str, Any]:
    """Return the command and the versions of what ran it."""
    return {
        "command": sys.argv,
        "versions": {"python": sys.version.split()[0], **{name: version(name) for name in _PACKAGES}},
    }


@dataclass
class Trial:
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
    trained_weights: int = 0
    """Of the encoder, by the method; the task's head is apart."""
    stored_bytes: int = 0
    """What whoever has the encoder stores of the fine-tuned one, the head apart."""
    step_bytes: int = 0
    """The most that activations and gradients took at once, in the step with the longest texts."""


@dataclass
class Results:
    """All trials of a table, finished so far."""

    path: Path
    protocol: Protocol
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    made_by: list[dict[str, Any]] = field(default_factory=list)
    """Command and versions of every start."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file of results."""
        try:
            record = json.loads(path.read_text("utf-8"))
            if record["format"] != FORMAT:
                raise UserError(f"{path}: results of format {record['format']}, this latemask reads {FORMAT}")
            known = {entry.name for entry in fields(Trial)}
            trials = [Trial(**{name: {**_LATER, **trial}[name] for name in known}) for trial in record["cells"]]
            protocol = Protocol(**record["protocol"])
            protocol = replace(protocol, options=protocol.options or None)
            results = cls(path, protocol, record["encoders"], record["tasks"], trials, list(record["made_by"]))
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
            _must(all(found["rows"] >= 0 for found in record.get("overlap", {}).values()))
            _must(all(isinstance(words, str) for words in record.get("in_corpus", {}).values()))
        for floor in (floor for task in self.tasks for floor in self.floors(task)):
            _must(isinstance(floor.name, str) and isinstance(floor.words, str))
            _must(math.isfinite(floor.score) and isinstance(floor.metrics, dict))
        _must(all(math.isfinite(trial.score) and isinstance(trial.metrics, dict) for trial in self.trials))
        self.as_record()

    @classmethod
    def begin(cls, path: Path, protocol: Protocol) -> Results:
        """Go on with a file, or start one; refuse one that was made under another protocol."""
        results = cls.read(path) if path.exists() else cls(path, protocol)
        changed = protocol.differences(results.protocol.as_record())
        if not results.trials:  # nothing that another protocol could be mixed with; floors are kept
            results = cls(path, protocol, tasks={} if changed else results.tasks, made_by=results.made_by)
        elif changed:
            raise UserError(
                f"{printable(str(path))} holds results of another protocol ({'; '.join(changed)}); "
                "choose another --out or pass --overwrite"
            )
        results.made_by.append(provenance())
        return results

    def enter(self, encoder: dict[str, Any], task: dict[str, Any]) -> None:
        """Write down an encoder and a task, or refuse one that is no longer the same."""
        for known, new in ((self.encoders, encoder), (self.tasks, task)):
            is_other = known.setdefault(new["name"], new)["identity"] != new["identity"]
            if is_other and not self.trials:
                known[new["name"]] = new
            elif is_other:
                raise UserError(
                    f"'{printable(new['name'])}' is not what it was when {printable(str(self.path))} was begun; "
                    "choose another --out or pass --overwrite"
                )

    def has(self, key: tuple[str, str, float, int]) -> bool:
        """Whether a trial is done, by its encoder, task, learning rate and seed."""
        return any((trial.encoder, trial.task, trial.learning_rate, trial.seed) == key for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Note a finished trial, on disk, too."""
        self.trials.append(trial)
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
            "protocol": self.protocol.as_record(),
            "encoders": self.encoders,
            "tasks": self.tasks,
            "cells": [asdict(trial) for trial in self.ordered()],
            "summary": [asdict(summary) for summary in self.summaries()],
            "averages": {name: self.average(name) for name in self.encoders},
        }

    def ordered(self) -> list[Trial]:
        """Return the trials in the order of the table, whenever they were run."""
        encoders, tasks = list(self.encoders), list(self.tasks)
        return sorted(
            self.trials,
            key=lambda one: (encoders.index(one.encoder), tasks.index(one.task), one.learning_rate, one.seed),
        )

    def summaries(self) -> list[Summary]:
        """Return one summary for each encoder and task that has trials."""
        found = (self.summary(encoder, task) for encoder in self.encoders for task in self.tasks)
        return [summary for summary in found if summary]

    def summary(self, encoder: str, task: str) -> Summary | None:
        """Return what the trials of one encoder on one task say; None where there are none."""
        trials = [trial for trial in self.trials if (trial.encoder, trial.task) == (encoder, task)]
        return summarised(trials, self.tasks[task]["constant"]["score"]) if trials else None

    def floors(self, task: str) -> list[Floor]:
        """Return what a task gives without an encoder; older records have the constant answer alone."""
        record = self.tasks[task]
        constant = Floor(CONSTANT, "", **record["constant"])
        return [constant, *(Floor(**floor) for floor in record.get("floors", ()))]

    def is_control(self, encoder: str) -> bool:
        """Whether an encoder was never trained."""
        return bool(self.encoders[encoder].get("random"))

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


@contextmanager
def results_in(out: Path, protocol: Protocol, overwrite: bool) -> Iterator[Results]:
    """Take a folder for results, this process alone; go on with those that are there, unless told to start again."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{printable(str(out))} is a file, not a folder")
    is_ours = (out / RESULTS).exists()
    if out.is_dir() and not is_ours and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"{printable(str(out))} is not empty and holds no results; choose another --out")
    lock = exclusive_lock(out / ".lock", f"{printable(str(out))} is in use by another process")
    try:
        if overwrite and is_ours:
            Results.read(out / RESULTS)  # what is not ours, or cannot be told, is not for us to remove
            for folder in (MODEL, MODELS):
                shutil.rmtree(out / folder, ignore_errors=True)
            for name in (TABLE, CSV, RESULTS):  # the one that says that the folder is ours goes last
                (out / name).unlink(missing_ok=True)
        yield Results.begin(out / RESULTS, protocol)
    finally:
        lock.release()


def _must(condition: bool) -> None:
    if not condition:
        raise ValueError


@dataclass(frozen=True)
class Summary:
    """The trials of one encoder on one task."""

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


def summarised(trials: list[Trial], constant: float) -> Summary:
    """Summarise the trials of one encoder on one task."""
    rates = sorted({trial.learning_rate for trial in trials})
    medians = {rate: statistics.median(c.score for c in trials if c.learning_rate == rate) for rate in rates}
    best = max(rates, key=lambda rate: medians[rate])
    chosen = sorted((trial for trial in trials if trial.learning_rate == best), key=lambda trial: trial.seed)
    scores = [trial.score for trial in chosen]
    return Summary(
        encoder=trials[0].encoder,
        task=trials[0].task,
        learning_rate=best,
        tried={f"{rate:g}": median for rate, median in medians.items()},
        seeds=[trial.seed for trial in chosen],
        scores=scores,
        median=medians[best],
        mean=statistics.fmean(scores),
        lowest=min(scores),
        highest=max(scores),
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        metrics={name: _median(trial.metrics[name] for trial in chosen) for name in chosen[0].metrics},
        collapsed=sum(trial.collapsed for trial in chosen),
        constant=constant,
    )


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(numbers) if numbers else None
