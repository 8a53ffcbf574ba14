"""All cells of a table, one after another: those that are done are not run again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from latemask.evaluation.cells import Prepared, prepare_task, run_cell
from latemask.evaluation.encoders import Encoder
from latemask.evaluation.progress import GridWatch
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.records import encoder_record, task_record
from latemask.evaluation.results import Cell, Results
from latemask.evaluation.tasks import Task
from latemask.ground.console import printable, say
from latemask.ground.errors import Interrupted
from latemask.ground.signals import SignalFlag

Saver = Callable[[Cell, Any, Prepared], None]


class _Wanted(NamedTuple):
    """The cells that are missing for one encoder on one task."""

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


def run_grid(
    encoders: Sequence[Encoder],
    tasks: Sequence[Task],
    rates: Sequence[float] | None,
    seeds: int,
    results: Results,
    save: Saver | None = None,
) -> None:
    """Run what is missing of encoders x tasks x learning rates x seeds; `save` gets each model that was fine-tuned."""
    for task in tasks:
        for encoder in encoders:
            results.enter(encoder_record(encoder), task_record(task))
    results.write()
    wanted = [_missing(encoder, task, rates, seeds, results) for task in tasks for encoder in encoders]
    count = sum(len(one.runs) for one in wanted)
    if results.cells:
        say(f"{len(results.cells):,} runs are done already, {count:,} to go")
    steps = sum(len(one.runs) * one.steps for one in wanted)
    stop = SignalFlag("stopping; finished runs are kept (once more ends at once)")
    try:
        with stop, GridWatch(count, steps, stop) as watch:
            for one in wanted:
                _run(one, results, watch, save)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {len(results.cells):,} finished runs are in {printable(str(results.path))}. "
            "The same command goes on from there",
            stop.received or signal.SIGINT,
        ) from None


def _missing(encoder: Encoder, task: Task, rates: Sequence[float] | None, seeds: int, results: Results) -> _Wanted:
    protocol = results.protocol
    runs = [
        (rate, seed)
        for rate in protocol.rates(rates, encoder.width)
        for seed in range(seeds)
        if not results.has((encoder.name, task.name, rate, seed))
    ]
    an_epoch = -(-len(task.train) // protocol.batch_for(len(task.train)))
    return _Wanted(encoder, task, runs, an_epoch * protocol.epochs)


def _run(one: _Wanted, results: Results, watch: GridWatch, save: Saver | None) -> None:
    if not one.runs:
        return
    prepared = prepare_task(one.encoder, one.task, results.protocol)
    _say_what_was_cut(prepared)
    results.note_cut(one.encoder.name, one.task.name, {name: rows.cut for name, rows in prepared.splits.items()})
    for rate, seed in one.runs:
        watch.check()
        watch.begin(f"{one.task.name} {printable(one.encoder.name)} lr {rate:g} seed {seed}", one.steps)
        cell, model = run_cell(prepared, rate, seed, watch, keep=save is not None)
        watch.end()
        if save is not None:
            save(cell, model, prepared)
        results.add(cell)


def _say_what_was_cut(prepared: Prepared) -> None:
    for name, rows in prepared.splits.items():
        if rows.cut:
            say(
                f"{prepared.task.splits[name].source}: {rows.cut:,} of {len(rows):,} texts are longer than "
                f"{prepared.max_length} tokens and were cut (the longest has {rows.longest:,})"
            )
