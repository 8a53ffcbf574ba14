"""Results → tables for a terminal, Markdown and CSV. Computes nothing new."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results, Summary
from latemask.ground.console import printable

_CONSTANT = "no reading (majority class or mean)"
Rows = list[list[str]]


def show(results: Results) -> None:
    """Print the table and its notes."""
    console = Console(highlight=False)
    table = Table()
    head, *rows = _rows(results)
    for number, name in enumerate(head):
        table.add_column(Text(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for note in notes(results):
        console.print(note, markup=False, soft_wrap=True)


def as_markdown(results: Results) -> str:
    """Return the table, its notes and every cell as Markdown."""
    every = [
        ["encoder", "task", "learning rate", "seed", "score", "metrics", "epoch", "collapsed"],
        *([*row[:5], row[5], row[6], row[7]] for row in _cell_rows(results)),
    ]
    return "\n".join(
        [
            *_markdown_table(_rows(results)),
            "",
            *(f"- {_escaped(note)}" for note in notes(results)),
            "",
            "Every run:",
            "",
            *_markdown_table(every),
            "",
        ]
    )


def as_csv(results: Results) -> str:
    """Return one line for every cell."""
    metrics = list(dict.fromkeys(name for cell in results.ordered() for name in cell.metrics))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = ("encoder", "task", "part", "learning_rate", "seed", "score")
    writer.writerow([*names, *metrics, "constant", "epoch", "collapsed", "precision"])
    for cell in results.ordered():
        task = results.tasks[cell.task]
        values = ["" if (value := cell.metrics.get(name)) is None else value for name in metrics]
        row = [cell.encoder, cell.task, task["part"], f"{cell.learning_rate:g}", cell.seed, cell.score, *values]
        writer.writerow([*row, task["constant"]["score"], cell.epoch, int(cell.collapsed), cell.precision])
    return file.getvalue()


def _rows(results: Results) -> Rows:
    """Encoders down, tasks across: median and range, in per cent."""
    tasks = list(results.tasks)
    names = [f"{task}*" if results.tasks[task]["part"] else task for task in tasks]
    several = len(tasks) > 1
    rows = [["encoder", *names, *(["average"] if several else [])]]
    for encoder in results.encoders:
        cells = [_score(results.summary(encoder, task)) for task in tasks]
        average = results.average(encoder)
        is_whole = average is not None and average["tasks"] == tasks  # means over other tasks cannot be compared
        rows.append(
            [printable(encoder), *cells, *([_percent(average["score"]) if average and is_whole else "–"] * several)]
        )
    constants = [results.tasks[task]["constant"]["score"] for task in tasks]
    mean = [_percent(sum(constants) / len(constants))] if several else []
    return [*rows, [_CONSTANT, *map(_percent, constants), *mean]]


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
    found = [_how(results), *_parts(results), *_details(results)]
    return [*found, *_collapses(results), *_cuts(results), *_precisions(results)]


def _collapses(results: Results) -> Iterable[str]:
    collapsed = [cell for cell in results.ordered() if cell.collapsed]
    if collapsed:
        which = "; ".join(f"{c.task}, {printable(c.encoder)}, lr {c.learning_rate:g}, seed {c.seed}" for c in collapsed)
        yield f"! collapsed: the model says the same of everything, and is counted all the same: {which}"


def _precisions(results: Results) -> Iterable[str]:
    counts = Counter(cell.precision for cell in results.cells)
    if len(counts) > 1:
        runs = ", ".join(f"{count} in {name}" for name, count in counts.items())
        yield f"the runs were trained in different precisions: {runs} (results.csv says which)"


def _how(results: Results) -> str:
    headlines = {task: " + ".join(record["headline"]) for task, record in results.tasks.items()}
    measures = "; ".join(f"{task} {name}" for task, name in headlines.items())
    epoch = "best dev epoch" if results.protocol.select == "best" else "last epoch"
    several = any(len(summary.tried) > 1 for summary in results.summaries())
    chosen = ", learning rate chosen on dev" if several else ""
    method = results.protocol.method
    by = "" if method == Protocol.method else f", fine-tuned by {METHODS[method].words or method}"
    return f"median over seeds (lowest–highest), per cent, on dev, {epoch}{chosen}{by}; mean of: {measures}"


def _parts(results: Results) -> list[str]:
    parts = [f"{task}: part, {record['part']}" for task, record in results.tasks.items() if record["part"]]
    if len(results.tasks) > 1:
        some = [task for task, record in results.tasks.items() if record["part"]]
        which = f"the average is over {', '.join(results.tasks)}"
        parts.append(which + (f"; of {', '.join(some)} only a part (*)" if some else ""))
    return [f"* {part}" if ": part, " in part else part for part in parts]


def _details(results: Results) -> Iterable[str]:
    for summary in results.summaries():
        deviation = "" if summary.deviation is None else f" ± {_percent(summary.deviation)}"
        metrics = ", ".join(f"{name} {_percent(v)}" for name, v in summary.metrics.items() if v is not None)
        tried = ", ".join(f"{rate}: {_percent(median)}" for rate, median in summary.tried.items())
        yield (
            f"{summary.task}, {printable(summary.encoder)}: mean {_percent(summary.mean)}{deviation}, "
            f"{len(summary.scores)} seeds: {', '.join(map(_percent, summary.scores))}; {metrics}; "
            f"learning rate {summary.learning_rate:g}" + (f" (medians {tried})" if len(summary.tried) > 1 else "")
        )


def _cuts(results: Results) -> Iterable[str]:
    for task, record in results.tasks.items():
        for encoder, splits in record["cut"].items():
            if any(splits.values()):
                counts = ", ".join(f"{count:,} of {name}" for name, count in splits.items() if count)
                yield f"{task}, {printable(encoder)}: texts cut to the encoder's length: {counts}"


def _cell_rows(results: Results) -> Iterable[list[str]]:
    for cell in results.ordered():
        metrics = ", ".join(f"{name} {_percent(v)}" for name, v in cell.metrics.items() if v is not None)
        collapsed = "collapsed" if cell.collapsed else ""
        row: list[Any] = [printable(cell.encoder), cell.task, f"{cell.learning_rate:g}", cell.seed]
        yield [*map(str, row), _percent(cell.score), metrics, str(cell.epoch), collapsed]


def _markdown_table(rows: Rows) -> list[str]:
    head, *body = ([_escaped(cell) for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _escaped(text: str) -> str:
    """Keep what was read from files from becoming Markdown or HTML."""
    return "".join(f"&#{ord(c)};" if c in "<>&`|[]" else c for c in text)
