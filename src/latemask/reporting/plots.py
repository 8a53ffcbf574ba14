"""Figures by matplotlib: files to keep, and SVG that takes the colours of the page it stands in."""

from __future__ import annotations

import io
import math
import re
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from latemask.reporting.runs import Run
from latemask.reporting.scores import Scores
from latemask.reporting.verdict import Arm

# Okabe and Ito's colours, told apart by all kinds of eyes; the page has lighter ones for a dark background.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fb0", "#8c6d31")
_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "osD^vP*X"
_PARTS = {"encoder": COLOURS[0], "decoder": COLOURS[4], "head": COLOURS[1], "scoring": COLOURS[5]}
INK, _GRID, _PAPER = "#1a1b1d", "#d0d1d3", "#fefefd"  # values that nothing else uses: the page replaces them
_AXES = {
    "steps": ("optimizer steps", 1),
    "tokens": ("tokens of text (millions)", 1e6),
    "flops": ("FLOPs, forward and backward", 1),
    "seconds": ("minutes of training", 60),
}
FIGURES = ("scores", "tasks", "grammar", "rank", "loss-end", *(f"loss-{axis}" for axis in _AXES), "compute")
"""Every name that a figure may have."""
_SMALL_PANELS_A_ROW = 3
_LONGEST_NAME = 28
_LONGEST_BESIDE_ANOTHER = 24
_APART = 0.02  # of the most FLOPs
_REM_AN_INCH = 7.0
_VARIABLES = {
    **{colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS)},
    INK: "var(--ink)",
    _GRID: "var(--line)",
    _PAPER: "var(--paper)",
}
_IN_A_TAG = r"(?=[^<>]*>)"  # in text, a colour is somebody's name: "#0072b2"

_Controls = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Figure:
    """A figure with a name for its files and words for those who cannot see it."""

    name: str
    title: str
    caption: str
    drawing: Any

    @property
    def rem(self) -> float:
        """How wide it is on a page at most, so that letters are as large in every figure."""
        return round(_REM_AN_INCH * float(self.drawing.get_figwidth()), 1)

    @property
    def inline(self) -> str:
        """SVG without size or background, whose colours are the page's variables."""
        svg = self._saved("svg", transparent=True).decode("utf-8")
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", svg)
        return re.sub(f"({'|'.join(_VARIABLES)}){_IN_A_TAG}", lambda colour: _VARIABLES[colour.group()], svg)

    def save(self, folder: Path) -> None:
        """Write NAME.svg and NAME.png."""
        for kind in ("svg", "png"):
            (folder / f"{self.name}.{kind}").write_bytes(self._saved(kind, transparent=False))

    def _saved(self, kind: str, transparent: bool) -> bytes:
        with style(self.name), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a name in letters that this machine cannot draw
            file = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            self.drawing.savefig(file, format=kind, dpi=160, transparent=transparent, metadata=metadata)
            return file.getvalue()


@contextmanager
def style(salt: str) -> Iterator[Any]:
    """No window, no formulas in names, the same bytes every time, and ids that differ between figures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": 9,
        "grid.color": _GRID,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "figure.facecolor": _PAPER,
        "axes.facecolor": "none",
        "savefig.facecolor": _PAPER,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        yield pyplot


def looks(count: int) -> list[dict[str, Any]]:
    """Return a colour, a dash and a marker for each series: no two the same, and none told by colour alone."""
    return [
        {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": _DASHES[(number // len(COLOURS) + number) % len(_DASHES)],
            "marker": _MARKERS[(number + number // len(COLOURS)) % len(_MARKERS)],
        }
        for number in range(count)
    ]


def fitting(names: Sequence[str]) -> list[str]:
    """Shorten names that would push a figure off its page, each in its middle, and keep them apart."""
    short = [name if len(name) <= _LONGEST_NAME else f"{name[:14]}…{name[-13:]}" for name in names]
    return [name if short.count(name) == 1 else f"{number} {name}" for number, name in enumerate(short, 1)]


def curves(runs: Sequence[Run]) -> list[Figure]:
    """Loss against steps, tokens, FLOPs and seconds: lines while training, marks where it was validated."""
    return [_curve(runs, axis) for axis in _AXES] if any(run.points("loss") for run in runs) else []


def _curve(runs: Sequence[Run], against: str) -> Figure:
    label, unit = _AXES[against]
    with style(f"loss-{against}") as pyplot:
        drawing, axis = pyplot.subplots(figsize=(4.6, 3.3), layout="constrained")
        for run, look in zip(runs, looks(len(runs)), strict=True):
            line = {"linestyle": look["linestyle"], "linewidth": 1.2}
            marks = {"linestyle": "none", "marker": look["marker"], "markersize": 4.5}
            for key, how in (("loss", line), ("eval_loss", marks)):
                rows = run.points(key)
                across = [run.place(row, against) / unit for row in rows]
                axis.plot(across, [row[key] for row in rows], color=look["color"], **how)
        axis.set(xlabel=label, ylabel="loss (nats)", xlim=(0, None))
        axis.locator_params(axis="x", nbins=6)
        legend(drawing, dict(zip(fitting([run.name for run in runs]), looks(len(runs)), strict=True)))
        pyplot.close(drawing)
    caption = f"Loss against {label}. Lines: training, with the masks of each run. Marks: validation, 15 % masked."
    return Figure(f"loss-{against}", f"Loss against {against}", caption, drawing)


def ends(arms: Sequence[Arm]) -> list[Figure]:
    """The last validation loss against FLOPs, a dot for every run; nothing where they were not validated alike."""
    losses, tests = [arm.losses for arm in arms], {run.validated_on for arm in arms for run in arm.runs}
    if len(arms) < 2 or len(tests) > 1 or not all(losses):
        return []
    drawing = _against_flops("loss-end", "last validation loss (nats)", arms, losses, {})
    caption = "Validation loss at the end, the same 15 % of the same rows masked for all. A dot for every run."
    return [Figure("loss-end", "Last validation loss against FLOPs", caption, drawing)]


def split(runs: Sequence[Run]) -> Figure:
    """Where the FLOPs of a sequence go, against masked language modelling of the same encoder."""
    with style("compute") as pyplot:
        drawing, axis = pyplot.subplots(figsize=(4.6, 1.1 + 0.32 * len(runs)), layout="constrained")
        heights, left = range(len(runs) - 1, -1, -1), [0.0] * len(runs)
        for part, colour in _PARTS.items():
            widths = [run.split[part] for run in runs]
            if not any(widths):
                continue  # no run has a decoder: no word about one
            axis.barh(heights, widths, 0.66, left, color=colour, label=part, edgecolor=_PAPER, linewidth=0.8)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        for height, total in zip(heights, left, strict=True):
            axis.text(total + 0.01, height, f"{total:.2f}", va="center")
        axis.axvline(1, color=INK, linewidth=0.8)
        axis.set_yticks(list(heights), fitting([run.name for run in runs]))
        axis.set(xlabel="FLOPs of a sequence; MLM at 15 % is 1", xlim=(0, max([1.0, *left]) * 1.12))
        axis.grid(visible=False, axis="y")
        drawing.legend(loc="outside upper center", ncols=3)
        pyplot.close(drawing)
    caption = "FLOPs of a sequence by where they go; masked language modelling at 15 % with the same encoder is 1."
    return Figure("compute", "Where the compute goes", caption, drawing)


def scores(arms: Sequence[Arm], found: Scores) -> list[Figure]:
    """Scores against FLOPs: a dot for every seed, a bar at the median, a line from lowest to highest."""
    scored = [arm for arm in arms if arm.scores]
    if not scored:
        return []
    controls, values = found.control_averages, [arm.scores for arm in scored]
    drawing = _against_flops("scores", "mean score (per cent)", scored, values, controls)
    floors = ", ".join(f"{name} {score:.1f}" for name, score in found.floor_averages.items())
    caption = f"{_caption(controls)} Mean over {', '.join(found.shared)}." + (f" Floors: {floors}." if floors else "")
    return [Figure("scores", "Downstream scores against FLOPs", caption, drawing), _task_panels(arms, found)]


def _caption(controls: Sized) -> str:
    dots = "A dot for every seed, a bar at the median, a line from lowest to highest."
    return f"{dots} Broken line: never trained, median and range." if controls else dots


def _against_flops(name: str, what: str, arms: Sequence[Arm], values: list[list[float]], controls: _Controls) -> Any:
    with style(name) as pyplot:
        drawing, axis = pyplot.subplots(figsize=(4.6, 3.6), layout="constrained")
        for dots, place, look in zip(values, places(arms), looks(len(arms)), strict=True):
            _dots(axis, place, dots, look)
        _levels(axis, controls)
        axis.set(xlabel=_flops_label(arms), ylabel=what)
        axis.margins(x=0.15, y=0.12)
        dots_only = ({**look, "linestyle": "none"} for look in looks(len(arms)))
        entries = dict(zip(fitting([arm.label for arm in arms]), dots_only, strict=True))
        legend(drawing, {**entries, **_level_looks(controls)})
        pyplot.close(drawing)
    return drawing


def _task_panels(arms: Sequence[Arm], found: Scores) -> Figure:
    labels = [contest.label for contest in found.contests]
    columns = min(_SMALL_PANELS_A_ROW, len(labels))
    rows = math.ceil(len(labels) / columns)
    size = (0.6 + 2.1 * columns, 0.7 + 1.8 * rows)
    with style("tasks") as pyplot:
        drawing, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
        for axis, label in zip(grid.flat, labels, strict=False):
            for arm, place, look in zip(arms, places(arms), looks(len(arms)), strict=True):
                if values := [score for run in arm.runs for score in found.of(run.name, label)]:
                    _dots(axis, place, values, look)
            _levels(axis, {name: scores[label].values for name, scores in found.controls.items() if label in scores})
            axis.set_title(label)
            axis.margins(x=0.25, y=0.15)
        for axis in list(grid.flat)[len(labels) :]:
            axis.set_visible(False)
        drawing.supxlabel(_flops_label(arms), fontsize=9)
        drawing.supylabel("score (per cent)", fontsize=9)
        pyplot.close(drawing)
    return Figure("tasks", "Task by task", f"Each task by itself, on dev. {_caption(found.controls)}", drawing)


def places(arms: Sequence[Arm]) -> list[float]:
    """Return where on the axis of FLOPs each arm stands; those with nearly the same stand side by side."""
    step = _APART * max(arm.flops for arm in arms)
    found: list[float] = []
    for arm in arms:
        place = arm.flops
        while any(abs(place - other) < 0.99 * step for other in found):  # FLOPs of whole steps are not quite the same
            place += step
        found.append(place)
    return found


def _flops_label(arms: Sequence[Arm]) -> str:
    moved = places(arms) != [arm.flops for arm in arms]
    return "FLOPs of pre-training" + (" (equal ones side by side)" if moved else "")


def _dots(axis: Any, flops: float, values: Sequence[float], look: dict[str, Any]) -> None:
    marks = {"color": look["color"], "linestyle": "none"}
    axis.plot([flops, flops], [min(values), max(values)], color=look["color"], linewidth=1, alpha=0.6)
    axis.plot([flops], [statistics.median(values)], marker="_", markersize=14, markeredgewidth=2.2, **marks)
    axis.plot([flops] * len(values), values, marker=look["marker"], markersize=4.5, alpha=0.75, **marks)


def _levels(axis: Any, controls: _Controls) -> None:
    """Draw what was never trained: it has no place on the axis of FLOPs."""
    for values, look in zip(controls.values(), _level_looks(controls).values(), strict=True):
        axis.axhspan(min(values), max(values), color=INK, alpha=0.08, linewidth=0)
        axis.axhline(statistics.median(values), linewidth=1, **look)


def _level_looks(controls: Iterable[str]) -> dict[str, dict[str, Any]]:
    names = (f"never trained ({name})" for name in fitting(list(controls)))
    return {name: {"color": INK, "linestyle": dashes} for name, dashes in zip(names, cycle(_DASHES[1:]), strict=False)}


def legend(drawing: Any, entries: Mapping[str, dict[str, Any]]) -> None:
    """Name what is drawn. With handles of our own: matplotlib leaves out what begins with an underscore."""
    if len(entries) < 2:
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=1.2, markersize=4.5, **look) for look in entries.values()]
    columns = 2 if len(entries) > 4 and max(map(len, entries)) <= _LONGEST_BESIDE_ANOTHER else 1
    drawing.legend(handles, list(entries), loc="outside lower center", ncols=columns)
