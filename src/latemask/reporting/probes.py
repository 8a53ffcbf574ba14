"""Records of `latemask probe` on a page: what each layer knows, and how many dimensions it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from latemask.evaluation.probe_records import ProbeRecord, layer_rows, probe_rows, rank_rows, read_probe
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.tables import Rows
from latemask.reporting.page import Table
from latemask.reporting.plots import INK, Figure, fitting, legend, looks, style


@dataclass
class Probes:
    """All records that were given, and what is wrong with them."""

    records: list[ProbeRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_probes(paths: Sequence[Path]) -> Probes:
    """Read the files that `latemask probe --out` wrote."""
    found = Probes()
    for path in paths:
        try:
            found.records.append(read_probe(path))
        except UserError as error:
            found.problems.append(f"left out: {error}")
    return found


def probe_tables(probes: Probes) -> list[Table]:
    """For each encoder: its probes, and layer by layer where that was asked for."""
    tables = []
    for record in probes.records:
        name = printable(record.encoder)
        tables.append(_table(probe_rows(record.probes), f"{name}, probes on {printable(record.text)}"))
        if record.probes[0].layers:
            tables.append(_table(layer_rows(record.probes), f"{name}, layer"))
        if record.rank is not None:
            tables.append(_table(rank_rows(record.rank), f"{name}, effective rank of layer"))
    return tables


def _table(rows: Rows, corner: str) -> Table:
    (_, *columns), *body = rows
    return Table([corner, *columns], body, frozenset(range(1, len(columns) + 1)))


def probe_figures(probes: Probes) -> list[Figure]:
    """Effective rank layer by layer, a line for every encoder."""
    ranked = [record for record in probes.records if record.rank is not None]
    ranks = [record.rank for record in ranked if record.rank is not None]
    if not ranks:
        return []
    with style("rank") as pyplot:
        drawing, axis = pyplot.subplots(figsize=(4.6, 3.6), layout="constrained")
        entries = dict(zip(fitting([printable(record.encoder) for record in ranked]), looks(len(ranks)), strict=True))
        for rank, look in zip(ranks, entries.values(), strict=True):
            layers = [layer.layer for layer in rank.encoder]
            axis.plot(layers, [100 * layer.clean for layer in rank.encoder], linewidth=1.2, markersize=4.5, **look)
        control = ranks[0].random
        never = {"color": INK, "linestyle": (0, (5, 2))}
        axis.plot([one.layer for one in control], [100 * one.clean for one in control], linewidth=1, **never)
        axis.set(xlabel="layer", ylabel="effective rank, % of the width", ylim=(0, None))
        legend(drawing, {**entries, "never trained": never})
        pyplot.close(drawing)
    caption = (
        "Effective rank: the share of dimensions that hold 90 % of the variance of real tokens' states, with no [MASK] "
        "in the input. Broken line: the first one's architecture, never trained."
    )
    return [Figure("rank", "Effective rank, layer by layer", caption, drawing)]
