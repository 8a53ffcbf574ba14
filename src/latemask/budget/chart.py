"""The cost table as a picture: where the compute goes. Drawn by matplotlib, computes nothing new."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latemask.budget.table import LAYERS, MASKS, SIZES, Cell
from latemask.ground.errors import UserError
from latemask.objectives.late import KINDS

_KINDS_OF_PICTURES = (".png", ".svg", ".pdf")
_BARS = "50 %"
_COLOURS = {"encoder": "#4477aa", "decoder": "#ccbb44", "head": "#ee6677"}
_DOTS: dict[str, Any] = {"s": 18, "color": "black", "facecolors": "white", "zorder": 3}
_MARKERS = dict(zip((masking for masking in MASKS if masking != _BARS), "osD^", strict=True))


def check_picture(path: Path) -> None:
    """Refuse a name that says no kind of picture we draw."""
    if path.suffix.lower() not in _KINDS_OF_PICTURES:
        raise UserError(f"--plot {path}: the name must end in one of {', '.join(_KINDS_OF_PICTURES)}")


def draw_table(cells: Sequence[Cell], path: Path) -> None:
    """Draw bars for half of the tokens masked, split into parts, and a mark for each other way of masking."""
    import matplotlib

    matplotlib.use("agg")  # no window, wherever it runs
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SIZES), figsize=(11, 5.5), sharey=True, layout="constrained")
    for axis, size in zip(axes, SIZES, strict=True):
        _panel(axis, size, [cell for cell in cells if cell.size == size])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, fontsize=8)
    figure.suptitle("FLOPs of a sequence; masked language modelling at 15 % is 1 (RoBERTa, length 512)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, size: str, cells: Sequence[Cell]) -> None:
    rows = [(kind, layers) for kind in KINDS for layers in LAYERS]
    places = {row: len(rows) - number for number, row in enumerate(rows)}
    bars = [cell for cell in cells if cell.masking == _BARS]
    left = [0.0] * len(bars)
    for part, colour in _COLOURS.items():
        widths = [getattr(cell, part) for cell in bars]
        axis.barh([places[cell.kind, cell.layers] for cell in bars], widths, 0.7, left, color=colour, label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for masking, marker in _MARKERS.items():
        others = [cell for cell in cells if cell.masking == masking]
        ratios, heights = [cell.ratio for cell in others], [places[cell.kind, cell.layers] for cell in others]
        axis.scatter(ratios, heights, marker=marker, label=masking, **_DOTS)
    axis.axvline(1, color="grey", linewidth=1)
    axis.set_yticks(list(places.values()), [f"{kind} {layers}" for kind, layers in rows])
    shape = f"{size}, {SIZES[size].layers} x {SIZES[size].width}"
    axis.set_title(f"{shape} (bars: {_BARS} masked)", fontsize=9)
    axis.set_xlim(0, 1.05)
