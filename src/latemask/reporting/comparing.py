"""`latemask compare` and `latemask report`: runs → report.html, figures and tables."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import write_text_atomically
from latemask.recipe import dump_recipe
from latemask.reporting.grammar import GrammarTests, grammar_figures, grammar_table, read_grammar
from latemask.reporting.page import Page, Progress, Section, Table
from latemask.reporting.plots import FIGURES, curves, ends, scores, split
from latemask.reporting.probes import Probes, probe_figures, probe_tables, read_probes
from latemask.reporting.runs import Run, common_ground, read_run, read_runs, recipe_differences, spent_together
from latemask.reporting.scores import ByContest, Scores, read_scores
from latemask.reporting.verdict import Arm, arms_of, verdict

PAGE = "report.html"
_FIGURE_FILES = [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
_LOSSES_NOTE = (
    "Training losses (lines) are higher where more of the text is hidden. Validation (marks) hides the same 15 % "
    "of the same rows from every run, so these can be compared."
)


def compare(
    runs: Sequence[str | Path],
    *,
    glue: Sequence[Path] | None = None,
    grammar: Sequence[Path] | None = None,
    probe: Sequence[Path] | None = None,
    out: Path = Path("report"),
) -> Path:
    """Put runs side by side: loss curves, downstream scores, compute, and a verdict in words.

    Args:
        runs: Run folders, finished or not.
        glue: results.json that `latemask glue` or `finetune` wrote for their encoders, or its folder.
        grammar: grammar.json that `latemask grammar` wrote for them, or its folder.
        probe: Files that `latemask probe --out` wrote for their encoders: layers and effective rank.
        out: Folder to write report.html, figures (SVG, PNG) and tables (CSV) into.
    """
    found, problems = read_runs(_paths(runs))
    for problem in problems:
        say(problem)
    if not found:
        raise UserError("none of these is a run that can be read: nothing to compare")
    judged = _judgements(found, glue, grammar, probe)
    unequal = common_ground(found) if len(found) > 1 else []
    said = [f"{run.name}: {problem}" for run in found for problem in run.problems] + unequal
    said += judged.problems
    for problem in said:
        say(problem)
    arms = arms_of(found, judged.scores)
    title = f"{len(found)} runs side by side" if len(found) > 1 else found[0].name
    words = [*verdict(arms, judged.scores), *judged.grammar.words]
    page = _page(title, found, arms, judged, problems=problems + said, verdict=words)
    written = _write(page, Path(out), found, judged.scores)
    for sentence in page.verdict:
        say(sentence)
    say(f"report: {written}")
    return written


def report(
    run: str | Path,
    *,
    glue: Sequence[Path] | None = None,
    grammar: Sequence[Path] | None = None,
    probe: Sequence[Path] | None = None,
    out: Path | None = None,
) -> Path:
    """Show one run on a page, finished or still running: how far it is, its losses, where the compute goes.

    Args:
        run: The run folder.
        glue: results.json that `latemask glue` or `finetune` wrote for its encoder, or its folder.
        grammar: grammar.json that `latemask grammar` wrote for it, or its folder.
        probe: Files that `latemask probe --out` wrote for its encoder: layers and effective rank.
        out: Folder to write report.html, figures (SVG, PNG) and tables (CSV) into; by default report/ in the run.
    """
    found = read_run(Path(run))
    judged = _judgements([found], glue, grammar, probe)
    page = _page_of_one(found, judged)
    written = _write(page, Path(out) if out else found.folder.report, [found], judged.scores)
    for line in (_progress(found).sentence, *page.problems, f"report: {written}"):
        say(line)
    return written


def write_page(run: Path) -> Path:
    """Write the page about a run into it, and nothing else: what the end of every run does."""
    found = read_run(run)
    page = _page_of_one(found, _judgements([found]))
    found.folder.report.mkdir(exist_ok=True)
    write_text_atomically(found.folder.report / PAGE, page.html())
    return found.folder.report / PAGE


def _paths(given: str | Path | Sequence[str | Path] | None) -> list[Path]:
    return [Path(path) for path in ([given] if isinstance(given, (str, Path)) else given or [])]


@dataclass(frozen=True)
class _Judgements:
    """All that was measured of the runs' models beside their losses."""

    scores: Scores
    grammar: GrammarTests
    probes: Probes

    @property
    def problems(self) -> list[str]:
        return self.scores.problems + self.grammar.problems + self.probes.problems


_Given = Sequence[Path] | None


def _judgements(runs: Sequence[Run], glue: _Given = None, grammar: _Given = None, probe: _Given = None) -> _Judgements:
    scores, tests = read_scores(_paths(glue), runs), read_grammar(_paths(grammar), runs)
    return _Judgements(scores, tests, read_probes(_paths(probe)))


def _page_of_one(run: Run, judged: _Judgements) -> Page:
    problems, arms = run.problems + judged.problems, arms_of([run], judged.scores)
    beside = {"problems": problems, "verdict": judged.grammar.words, "progress": _progress(run)}
    return _page(f"{run.name}: {run.method}", [run], arms, judged, **beside)


def _progress(run: Run) -> Progress:
    spent = f"{run.tokens / 1e6:.3g} M tokens, {run.flops:.3g} FLOPs"
    words = [f"{run.status.capitalize()}: step {run.done:,} of {run.steps:,}, {spent}"]
    if run.tokens_a_second is not None:
        words.append(f"{_time(run.seconds)} of training, {run.tokens_a_second:,.0f} tokens a second")
    if (start := run.record.get("start_seconds")) is not None:
        words.append(f"{_time(start)} of that to count the corpus, before the first step")
    if run.seconds_left is not None:
        words.append(f"about {_time(run.seconds_left)} to go")
    return Progress("; ".join(words) + ".", run.steps, run.done)


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _page(title: str, runs: Sequence[Run], arms: Sequence[Arm], judged: _Judgements, **beside: Any) -> Page:
    results, tests, probes = judged.scores, judged.grammar, judged.probes
    parts = ", ".join(f"{contest.label} ({contest.part})" for contest in results.contests if contest.part)
    note = f"On a part of the task's data, so not GLUE scores: {parts}." if parts else ""
    differ, same_test = len({run.recipe.mask for run in runs}) > 1, len({run.validated_on for run in runs}) == 1
    losses = _LOSSES_NOTE if differ and same_test else ""
    sections = [
        Section("scores", "Downstream", note, scores(arms, results), _score_tables(arms, results)),
        Section("grammar", "Grammar", "", grammar_figures(tests), [grammar_table(t) for t in tests.tests.values()]),
        Section("probes", "Layers", "", probe_figures(probes), probe_tables(probes)),
        Section("losses", "Loss", losses, [*ends(arms), *curves(runs)]),
        Section("compute", "Compute", _together(runs), [split(runs)], [_totals(runs)]),
        Section("differences", "What differs between the recipes", "", (), _difference_tables(runs)),
    ]
    recipes = [(run.name, dump_recipe(run.recipe)) for run in runs]
    return Page(title, sections=sections, recipes=recipes, **beside)


def _score_tables(arms: Sequence[Arm], results: Scores) -> list[Table]:
    labels = [contest.label for contest in results.contests]

    def row(name: str, flops: str, runs: int, means: Sequence[float], found: Sequence[ByContest]) -> list[Any]:
        tasks = ([score for one in found if label in one for score in one[label].values] for label in labels)
        return [name, flops, runs or "–", _spread(means), *map(_spread, tasks)]

    by_arm = [(arm, [results.by_run[run.name] for run in arm.runs]) for arm in arms]
    means = results.control_averages
    rows = [
        *(row(arm.label, f"{arm.flops:.3g}", arm.scored_runs, arm.scores, own) for arm, own in by_arm if any(own)),
        *(row(f"{name} (not finished)", "–", 0, [], [found]) for name, found in results.unfinished.items()),
        *(
            row(f"never trained ({name})", "0", 0, means.get(name, []), [found])
            for name, found in results.controls.items()
            if found
        ),
    ]
    if rows:
        rows += _floor_rows(results)
    columns = ["", "FLOPs", "runs", "mean of shared tasks", *labels]
    return [Table(columns, rows, frozenset(range(1, len(columns))))] if rows else []


def _floor_rows(results: Scores) -> list[list[Any]]:
    """What the tasks give without an encoder."""
    means, floors = results.floor_averages, [contest.floors for contest in results.contests]
    return [
        [name, "–", "–", *(_spread([found[name]] if name in found else []) for found in (means, *floors))]
        for name in dict.fromkeys(name for found in floors for name in found)
    ]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    median = f"{statistics.median(values):.1f}"
    return f"{median} ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else median


def _together(runs: Sequence[Run]) -> str:
    """Say what branches cost in all."""
    if len(runs) < 2 or not any(run.stem.step for run in runs):
        return ""
    flops, tokens = spent_together(runs)
    spent = f"{flops:.3g} FLOPs and {tokens / 1e6:.3g} M tokens"
    return f"Together {spent}: a stem that several runs branched from is counted once."


def _totals(runs: Sequence[Run]) -> Table:
    rows = [
        {
            "run": run.name,
            "masking": run.method,
            "status": run.status,
            "steps": f"{run.done:,} / {run.steps:,}",
            "M tokens": f"{run.tokens / 1e6:.3g}",
            "FLOPs": f"{run.flops:.3g}",
            "a sequence / MLM": f"{sum(run.split.values()):.2f}",
            "time": _time(run.seconds),
            "validation loss": "–" if run.last_validation is None else f"{run.last_validation:.3f}",
        }
        for run in runs
    ]
    return Table(list(rows[0]), [list(row.values()) for row in rows], frozenset(range(3, len(rows[0]))))


def _difference_tables(runs: Sequence[Run]) -> list[Table]:
    if len(runs) < 2:
        return []
    if differing := recipe_differences(runs):
        return [Table(["key", *(run.name for run in runs)], [[key, *values] for key, values in differing.items()])]
    return [Table(["run", "recipe"], [[run.name, "the same"] for run in runs])]


def _write(page: Page, out: Path, runs: Sequence[Run], results: Scores) -> Path:
    """Write all files; where a page of ours was, over it, and elsewhere only if nothing is in the way."""
    tables = {"curves.csv": _curve_rows(runs), "scores.csv": _score_rows(runs, results)}
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    if not ((out / PAGE).is_file() and Page.MARK in (out / PAGE).read_text("utf-8", errors="replace")[:2000]):
        for name in (PAGE, *tables, *_FIGURE_FILES):
            if (out / name).exists():
                raise UserError(f"{out / name} was not written by latemask; choose another --out")
    html = page.html()
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out / PAGE, html)  # first: it says that the rest is ours
    for name in _FIGURE_FILES:
        (out / name).unlink(missing_ok=True)  # of a page that was here before
    for figure in (figure for section in page.sections for figure in section.figures):
        figure.save(out)
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_text_atomically(out / name, text.getvalue())
    return out / PAGE


def _curve_rows(runs: Sequence[Run]) -> Iterable[Sequence[Any]]:
    keys = ("step", "tokens", "flops", "seconds", "loss", "eval_loss", "learning_rate", "grad_norm")
    yield ["run", *keys]
    for run in runs:
        yield from ([run.name, *(row.get(key, "") for key in keys)] for row in run.rows)


def _score_rows(runs: Sequence[Run], results: Scores) -> Iterable[Sequence[Any]]:
    yield ["run", "masking", "pretraining_seed", "flops", "task", "learning_rate", "seed", "score"]
    by_run = {**results.unfinished, **results.by_run}
    found = [([run.name, run.method, run.recipe.seed, run.flops], by_run.get(run.name, {})) for run in runs]
    found += [([name, "never trained", "", 0], tasks) for name, tasks in results.controls.items()]
    for who, tasks in found:
        for label, task in tasks.items():
            yield from ([*who, label, task.learning_rate, seed, score] for seed, score in task.by_seed.items())
    for contest in results.contests:
        yield from (
            [name, "no encoder", "", "", contest.label, "", "", score] for name, score in contest.floors.items()
        )
