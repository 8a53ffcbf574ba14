"""Grammar tests, brought together with the runs whose models they judge, and drawn against FLOPs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latemask.evaluation.grammar import verdict
from latemask.evaluation.grammar_results import FLOORS, read_record
from latemask.evaluation.identity import encoder_checksum
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.reporting.page import Table
from latemask.reporting.plots import INK, Figure, fitting, legend, looks, style
from latemask.reporting.runs import Run

_DASHES = ((0, (5, 2)), (0, (1, 1.5)))
_FLOOR_LOOKS = {name: {"color": INK, "linestyle": dash} for name, dash in zip(FLOORS, _DASHES, strict=True)}


@dataclass(frozen=True)
class Judged:
    """A model and what it scored."""

    name: str
    flops: float | None
    """What its pre-training had spent; None for a model that is none of the runs."""
    record: dict[str, Any]


@dataclass
class GrammarTest:
    """One set of pairs, scored in one way, and all models that took it."""

    name: str
    judged: list[Judged] = field(default_factory=list)


@dataclass
class GrammarTests:
    """All tests that were given, and what is wrong with them."""

    tests: dict[tuple[str, str], GrammarTest] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """What the tests say, a sentence for every model."""
        return [
            f"Grammar ({test.name}): {verdict({**one.record, 'model': one.name})}."
            for test in self.tests.values()
            for one in test.judged
        ]


def read_grammar(paths: Sequence[Path], runs: Sequence[Run]) -> GrammarTests:
    """Read the records of grammar tests (or the folders they are in)."""
    found = GrammarTests()
    for path in paths:
        try:
            record = read_record(path)
        except UserError as error:
            found.problems.append(f"left out: {error}")
            continue
        key = (record["pairs"]["identity"], record["score"])
        by = ", by word" if record["score"] == "word" else ""
        test = found.tests.setdefault(key, GrammarTest(f"{printable(record['pairs']['name'])}{by}"))
        for model in record["models"]:
            _collect(model, test, runs, found.problems)
    return found


def _collect(model: dict[str, Any], test: GrammarTest, runs: Sequence[Run], problems: list[str]) -> None:
    if any(one.record["identity"] == model["identity"] for one in test.judged):
        return
    run = next((run for run in runs if model["run"] == str(run.folder.path.resolve())), None)
    run = run or next((run for run in runs if model["identity"] == _checksum(run)), None)
    if run is None:
        test.judged.append(Judged(printable(model["model"]), None, model))
    elif model["step"] is not None:
        flops = run.flops_at(model["step"])
        test.judged.append(Judged(f"{run.name} (step {model['step']:,})", flops, model))
    elif _checksum(run) not in (None, model["identity"]):
        problems.append(f"{run.name}: its grammar was tested with other weights than it has now; left out")
    else:
        test.judged.append(Judged(run.name, run.flops, model))


def _checksum(run: Run) -> str | None:
    """Return the checksum of a run's final model; None where it is gone."""
    try:
        return encoder_checksum(run.folder.model) if (run.folder.model / "config.json").is_file() else None
    except UserError:
        return None


def grammar_table(test: GrammarTest) -> Table:
    """Every model with its mean, its floors and its terms."""
    terms = list(dict.fromkeys(term for one in test.judged for term in one.record["terms"]))
    columns = [test.name, "FLOPs", "mean over paradigms", *FLOORS.values(), *map(printable, terms)]
    rows = []
    for one in test.judged:
        record = one.record
        floors = ("–" if record[name] is None else f"{record[name]:.1f}" for name in FLOORS)
        by_term = (f"{record['terms'][term]['mean']:.1f}" if term in record["terms"] else "–" for term in terms)
        flops = "–" if one.flops is None else f"{one.flops:.3g}"
        rows.append([one.name, flops, f"{record['mean']:.1f} ± {record['error']:.1f}", *floors, *by_term])
    return Table(columns, rows, frozenset(range(1, len(columns))))


def grammar_figures(tests: GrammarTests) -> list[Figure]:
    """Per cent right against FLOPs, a panel for every test; broken lines are floors."""
    drawn = [test for test in tests.tests.values() if any(one.flops is not None for one in test.judged)]
    if not drawn:
        return []
    names = list(dict.fromkeys(one.name for test in drawn for one in test.judged if one.flops is not None))
    by_name = dict(zip(names, looks(len(names)), strict=True))
    with style("grammar") as pyplot:
        size = (0.6 + 4.0 * len(drawn), 3.6)
        drawing, panels = pyplot.subplots(1, len(drawn), figsize=size, layout="constrained", squeeze=False)
        for axis, test in zip(panels.flat, drawn, strict=True):
            _draw(axis, test, by_name)
        shown = {name: {**look, "linestyle": "none"} for name, look in by_name.items()}
        entries = dict(zip(fitting(list(shown)), shown.values(), strict=True))
        legend(drawing, {**entries, **{FLOORS[name]: look for name, look in _FLOOR_LOOKS.items()}})
        pyplot.close(drawing)
    caption = (
        "Minimal pairs, zero-shot: per cent of pairs whose right sentence is more likely, mean over paradigms, with "
        "its standard error. Broken lines: floors, the median where models have floors of their own."
    )
    return [Figure("grammar", "Grammar against FLOPs", caption, drawing)]


def _draw(axis: Any, test: GrammarTest, by_name: dict[str, dict[str, Any]]) -> None:
    for one in test.judged:
        if one.flops is not None:
            look = by_name[one.name]
            how = {"color": look["color"], "marker": look["marker"], "markersize": 5, "capsize": 3, "linestyle": "none"}
            axis.errorbar([one.flops], [one.record["mean"]], [one.record["error"]], **how)
    for name, look in _FLOOR_LOOKS.items():
        if floors := [one.record[name] for one in test.judged if one.record[name] is not None]:
            axis.axhline(statistics.median(floors), linewidth=1, **look)
    axis.set(xlabel="FLOPs of pre-training", ylabel="per cent right", title=test.name)
    axis.margins(x=0.15, y=0.15)
