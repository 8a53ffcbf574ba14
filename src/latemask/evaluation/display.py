"""Results → tables for a terminal, Markdown and CSV. Computes nothing new."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import CSV, TABLE, Results, Summary, Trial
from latemask.evaluation.verdicts import verdict
from latemask.ground.console import printable
from latemask.ground.files import write_text_atomically
from latemask.ground.tables import escaped, markdown_table, show_table


def show(results: Results) -> None:
    """Print the table, what it says in words, and what has to be known to read it."""
    show_table(_rows(results))
    for line in (*verdict(results), "", *notes(results)):
        Console(highlight=False).print(line, markup=False, soft_wrap=True)


def write_tables(results: Results) -> None:
    """Write the table beside the results, as Markdown and CSV."""
    results.write()
    write_text_atomically(results.path.with_name(TABLE), as_markdown(results))
    write_text_atomically(results.path.with_name(CSV), as_csv(results))


def as_markdown(results: Results) -> str:
    """Return the table, its notes and every trial as Markdown."""
    every = [["encoder", "task", "learning rate", "seed", "score", "metrics", "epoch", "collapsed"]]
    for trial in results.ordered():
        of = [printable(trial.encoder), trial.task, f"{trial.learning_rate:g}", str(trial.seed), _percent(trial.score)]
        every.append([*of, _metrics(trial.metrics), str(trial.epoch), "collapsed" if trial.collapsed else ""])
    table = markdown_table(_rows(results))
    said, noted = ([f"- {escaped(line)}" for line in lines] for lines in (verdict(results), notes(results)))
    parts = [*table, "", *said, "", "How to read it:", "", *noted, "", "Every run:", "", *markdown_table(every)]
    return "\n".join([*parts, ""])


def as_csv(results: Results) -> str:
    """Return one line for every trial, then one for every floor, which has neither learning rate nor seed."""
    floors = [(task, floor) for task in results.tasks for floor in results.floors(task)]
    measured = [*(trial.metrics for trial in results.ordered()), *(floor.metrics for _, floor in floors)]
    metrics = list(dict.fromkeys(name for found in measured for name in found))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = ("encoder", "task", "part", "learning_rate", "seed", "score")
    writer.writerow([*names, *metrics, "constant", "epoch", "collapsed", "precision"])
    for trial in results.ordered():
        task = results.tasks[trial.task]
        row = [trial.encoder, trial.task, task["part"], f"{trial.learning_rate:g}", trial.seed, trial.score]
        row += [*_values(trial.metrics, metrics), task["constant"]["score"]]
        writer.writerow([*row, trial.epoch, int(trial.collapsed), trial.precision])
    for name, floor in floors:
        task = results.tasks[name]
        row = [floor.name, name, task["part"], "", "", floor.score, *_values(floor.metrics, metrics)]
        writer.writerow([*row, task["constant"]["score"], "", "", ""])
    return file.getvalue()


def _values(found: dict[str, float | None], metrics: Iterable[str]) -> list[Any]:
    return ["" if (value := found.get(name)) is None else value for name in metrics]


def _rows(results: Results) -> list[list[str]]:
    """Encoders down, then floors, tasks across: median and range, in per cent."""
    tasks = list(results.tasks)
    names = [f"{task}*" if results.tasks[task]["part"] else task for task in tasks]
    several = len(tasks) > 1
    rows = [["encoder", *names, *(["average"] if several else [])]]
    for encoder in results.encoders:
        cells = [_score(results.summary(encoder, task)) for task in tasks]
        average = results.average(encoder)
        is_whole = average is not None and average["tasks"] == tasks  # means over other tasks cannot be compared
        mean = [_percent(average["score"]) if average and is_whole else "–"] if several else []
        who = printable(encoder) + (" (never trained)" if results.is_control(encoder) else "")
        rows.append([who, *cells, *mean])
    by_task = [{floor.name: floor.score for floor in results.floors(task)} for task in tasks]
    for name in dict.fromkeys(name for floors in by_task for name in floors):
        scores = [floors[name] for floors in by_task if name in floors]
        cells = [_percent(floors[name]) if name in floors else "–" for floors in by_task]
        mean = [_percent(sum(scores) / len(scores)) if len(scores) == len(tasks) else "–"] if several else []
        rows.append([printable(name), *cells, *mean])
    return rows


def _score(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    spread = f" ({_percent(summary.lowest)}–{_percent(summary.highest)})" if len(summary.scores) > 1 else ""
    flag = f" !{summary.collapsed}" if summary.collapsed else ""
    return f"{_percent(summary.median)}{spread}{flag}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def notes(results: Results) -> list[str]:
    """Return what has to be known to read the table."""
    return [_how(results), *_parts(results), *_details(results), *_floors(results), *_warnings(results)]


def _how(results: Results) -> str:
    measures = "; ".join(f"{task} {' + '.join(record['headline'])}" for task, record in results.tasks.items())
    epoch = "best dev epoch" if results.protocol.select == "best" else "last epoch"
    several = any(len(summary.tried) > 1 for summary in results.summaries())
    chosen = ", learning rate chosen on dev" if several else ""
    method = results.protocol.method
    given = results.protocol.options_in_words
    by = "" if method == Protocol.method else f", fine-tuned by {METHODS[method].words or method}"
    by += f" ({given})" if given else ""
    return f"median over seeds (lowest–highest), per cent, on dev, {epoch}{chosen}{by}; mean of: {measures}"


def _parts(results: Results) -> Iterable[str]:
    parts = {task: record["part"] for task, record in results.tasks.items() if record["part"]}
    yield from (f"* {task}: part, {part}" for task, part in parts.items())
    if len(results.tasks) > 1:
        only = f"; of {', '.join(parts)} only a part (*)" if parts else ""
        yield f"the average is over {', '.join(results.tasks)}{only}"


def _details(results: Results) -> Iterable[str]:
    for summary in results.summaries():
        deviation = "" if summary.deviation is None else f" ± {_percent(summary.deviation)}"
        tried = ", ".join(f"{rate}: {_percent(median)}" for rate, median in summary.tried.items())
        yield (
            f"{summary.task}, {printable(summary.encoder)}: mean {_percent(summary.mean)}{deviation}, "
            f"{len(summary.scores)} seeds: {', '.join(map(_percent, summary.scores))}; {_metrics(summary.metrics)}; "
            f"learning rate {summary.learning_rate:g}" + (f" (medians {tried})" if len(summary.tried) > 1 else "")
        )
        trials = [trial for trial in results.trials if (trial.encoder, trial.task) == (summary.encoder, summary.task)]
        if trials[0].step_bytes:  # older ones do not say
            yield f"{summary.task}, {printable(summary.encoder)}: {cost_of(trials)}"


def cost_of(trials: list[Trial]) -> str:
    """Say what the trials of one encoder on one task took, in the middle."""
    seconds = statistics.median(trial.seconds for trial in trials)
    step = max(trial.step_bytes for trial in trials)
    return (
        f"{trials[0].trained_weights:,} weights of the encoder trained, {decimal(trials[0].stored_bytes)} to store, "
        f"{decimal(step)} of activations and gradients in a step at most, {seconds:,.0f} s a run"
    )


def _floors(results: Results) -> Iterable[str]:
    for task in results.tasks:
        for floor in results.floors(task):
            if floor.words:
                yield f"{task}, {printable(floor.name)}: {_metrics(floor.metrics)}; {printable(floor.words)}"


def _warnings(results: Results) -> Iterable[str]:
    if collapsed := [trial for trial in results.ordered() if trial.collapsed]:
        which = "; ".join(f"{c.task}, {printable(c.encoder)}, lr {c.learning_rate:g}, seed {c.seed}" for c in collapsed)
        yield f"! collapsed: the model says the same of everything, and is counted all the same: {which}"
    for task, record in results.tasks.items():
        for encoder, splits in record["cut"].items():
            if any(splits.values()):
                counts = ", ".join(f"{count:,} of {name}" for name, count in splits.items() if count)
                yield f"{task}, {printable(encoder)}: texts cut to the encoder's length: {counts}"
        if doubled := {split: found["rows"] for split, found in record.get("overlap", {}).items() if found["rows"]}:
            counts = ", ".join(f"{count:,} of {split}" for split, count in doubled.items())
            yield f"{task}: rows that stand in the training file, too: {counts}"
        yield from (f"{task}, {where}: {words}" for where, words in record.get("in_corpus", {}).items())
    precisions = Counter(trial.precision for trial in results.trials)
    if len(precisions) > 1:
        runs = ", ".join(f"{count} in {name}" for name, count in precisions.items())
        yield f"the runs were trained in different precisions: {runs} (results.csv says which)"


def _metrics(metrics: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_percent(value)}" for name, value in metrics.items() if value is not None)
