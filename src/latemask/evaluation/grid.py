"""All trials of a table, one after another: those that are done are not run again, and the best models may be kept."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from latemask.evaluation.best_models import keep_if_best, may_be_kept, part_models
from latemask.evaluation.encoders import Encoder
from latemask.evaluation.floors import floors_of
from latemask.evaluation.identity import encoder_record, task_record
from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results
from latemask.evaluation.tasks import Task
from latemask.evaluation.trials import Observer, prepare_task, run_trial
from latemask.ground.console import printable, progress_bar, say
from latemask.ground.errors import Interrupted, UserError
from latemask.ground.signals import SignalFlag

_SILENCE = 30.0  # seconds without a line are enough


class _Wanted(NamedTuple):
    """The trials that are missing for one encoder on one task."""

    encoder: Encoder
    task: Task
    runs: list[tuple[float, int]]
    steps: int
    """Of one run, if it does not stop early."""


def refuse_settings(protocol: Protocol, encoders: Sequence[Encoder], rates: Sequence[float] | None) -> None:
    """Refuse what does not suit the encoders, before anything is written or removed."""
    for encoder in encoders:
        protocol.rates(rates, encoder.width)
        protocol.length_for(encoder.longest)
        if protocol.checkpointing and not encoder.skeleton().supports_gradient_checkpointing:
            kind = encoder.config.model_type
            said = f"transformers cannot compute layers of '{kind}' again; leave --checkpointing away"
            raise UserError(f"{printable(encoder.name)}: {said}")
        if problem := METHODS[protocol.method].problem(encoder, protocol):
            raise UserError(f"{printable(encoder.name)}, --method {protocol.method}: {problem}")


def run_grid(
    encoders: Sequence[Encoder],
    tasks: Sequence[Task],
    rates: Sequence[float] | None,
    seeds: int,
    results: Results,
    keep: bool = False,
) -> None:
    """Run what is missing of encoders x tasks x learning rates x seeds; `keep` the best model of each task."""
    for task in tasks:
        for encoder in encoders:
            results.enter(encoder_record(encoder), task_record(task))
    results.write()
    part_models(results)
    wanted = [_missing(encoder, task, rates, seeds, results) for task in tasks for encoder in encoders]
    count = sum(len(one.runs) for one in wanted)
    if results.trials:
        say(f"{len(results.trials):,} runs are done already, {count:,} to go")
    steps = sum(len(one.runs) * one.steps for one in wanted)
    stop = SignalFlag("stopping; finished runs are kept (once more ends at once)")
    try:
        for task in tasks:
            _find_floors(task, results)
        with stop, GridProgress(count, steps, stop) as progress:
            for one in wanted:
                _run(one, results, progress, keep)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {len(results.trials):,} finished runs are in {printable(str(results.path))}. "
            "The same command goes on from there",
            stop.received or signal.SIGINT,
        ) from None


def _find_floors(task: Task, results: Results) -> None:
    """Score the floors of a task, once."""
    record = results.tasks[task.name]
    if "floors" not in record:
        say(f"{task.name}: scoring what needs no encoder, {len(task.train):,} training rows")
        record["floors"] = floors_of(task)
        results.write()


def _missing(encoder: Encoder, task: Task, rates: Sequence[float] | None, seeds: int, results: Results) -> _Wanted:
    grid = product(results.protocol.rates(rates, encoder.width), range(seeds))
    runs = [(rate, seed) for rate, seed in grid if not results.has((encoder.name, task.name, rate, seed))]
    return _Wanted(encoder, task, runs, results.protocol.steps_for(len(task.train)))


def _run(one: _Wanted, results: Results, progress: GridProgress, keep: bool) -> None:
    if not one.runs:
        return
    prepared = prepare_task(one.encoder, one.task, results.protocol)
    for name, rows in prepared.splits.items():
        for line in rows.fit.lines(one.task.splits[name].source, prepared.max_length):
            say(line)
    cuts = results.tasks[one.task.name]["cut"]
    cuts[one.encoder.name] = {name: rows.cut for name, rows in prepared.splits.items()}
    who = printable(one.encoder.name) + (" (never trained)" if one.encoder.is_random else "")
    may_keep = keep and may_be_kept(one.encoder.name, results)
    for rate, seed in one.runs:
        progress.check()
        progress.begin(f"{one.task.name} {who} lr {rate:g} seed {seed}", one.steps)
        trial, model = run_trial(prepared, rate, seed, progress, keep=may_keep)
        progress.end()
        if model is not None:
            keep_if_best(trial, model, prepared, results)
        results.add(trial)


class GridProgress(Observer):
    """Shows how far all trials are. Steps that early stopping saves are taken off the total."""

    def __init__(self, trials: int, steps: int, stop: SignalFlag):
        self.trials, self.total, self.stop = trials, steps, stop
        self.done, self.number, self.left_in_trial = 0, 0, 0
        self.label, self.state = "", ""
        self.bar = progress_bar("{task.fields[state]}")
        self.task = self.bar.add_task("fine-tuning", total=self.total, state="")

    def __enter__(self) -> GridProgress:
        self.started = self.last_line = time.monotonic()
        self.bar.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.bar.stop()

    def begin(self, label: str, steps: int) -> None:
        """A trial of so many steps begins."""
        self.number += 1
        self.label, self.left_in_trial, self.state = label, steps, ""

    def end(self) -> None:
        """The trial is done, perhaps early."""
        self.total -= self.left_in_trial
        self.left_in_trial = 0

    def before_training(self, words: str) -> None:
        """Show what goes on before the first step."""
        self.check()
        self.state = f"  {words}"
        self.bar.update(self.task, state=self._text())
        if self.bar.disable and time.monotonic() - self.last_line > _SILENCE:
            self.last_line = time.monotonic()
            say(self._text())

    def step(self) -> None:
        """Move on."""
        self.done += 1
        self.left_in_trial -= 1
        self.bar.update(self.task, completed=self.done, total=self.total, state=self._text())
        if self.bar.disable and time.monotonic() - self.last_line > _SILENCE:
            self._line()

    def epoch(self, number: int, score: float) -> None:
        """Show the score."""
        self.state = f"  epoch {number}: {100 * score:.1f}"
        if self.bar.disable:
            self._line()

    def check(self) -> None:
        """Stop if somebody asked for it."""
        if self.stop.received is not None:
            raise KeyboardInterrupt

    def _text(self) -> str:
        return f"{self.number}/{self.trials} {self.label}{self.state}"

    def _line(self) -> None:
        self.last_line = time.monotonic()
        left = (self.last_line - self.started) / max(self.done, 1) * max(self.total - self.done, 0)
        minutes, seconds = divmod(round(left), 60)
        say(f"{self._text()}  left {minutes // 60}:{minutes % 60:02}:{seconds:02}")
