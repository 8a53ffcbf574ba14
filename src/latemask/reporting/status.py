"""`latemask status`: which runs are running, how far, how fast, until when."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.tables import show_table
from latemask.reporting.runs import Run, read_runs

_HOME = Path("runs")
_FEW_DAYS = 7


def status(runs: Sequence[str | Path] = (), *, json: bool = False) -> list[dict[str, Any]]:
    """Say of runs how far they are: one line each.

    Args:
        runs: Run folders; without any, all in runs/.
        json: Print one JSON object a run instead of a table.
    """
    paths = [Path(path) for path in ([runs] if isinstance(runs, (str, Path)) else runs)] or _all_in(_HOME)
    found, problems = read_runs(paths)
    rows = [_row(run) for run in found]
    if json:
        for row in rows:
            print(json_format.dumps(row))
    elif rows:
        columns = ["run", "status", "step", "done", "loss", "valid.", "tokens/s", "left", "until"]
        lines = [_cells(run.name, row) for run, row in zip(found, rows, strict=True)]
        show_table([columns, *lines], narrow=True)
    for problem in problems:
        say(problem)
    if not rows:
        raise UserError("none of these is a run that can be read")
    return rows


def _all_in(home: Path) -> list[Path]:
    found = sorted(path.parent for path in home.glob("*/recipe.yaml"))
    if not found:
        raise UserError(f"no run in {home}/: say which, latemask status RUN …")
    return found


def _row(run: Run) -> dict[str, Any]:
    losses, validated = run.points("loss"), run.points("eval_loss")
    left = run.seconds_left
    return {
        "run": str(run.folder.path),
        "status": run.status,
        "step": run.done,
        "steps": run.steps,
        "loss": losses[-1]["loss"] if losses else None,
        "validation_loss": validated[-1]["eval_loss"] if validated else None,
        "tokens_per_second": run.recent_tokens_a_second,
        "seconds_left": left,
        "until": None if left is None else _local(time.time() + left).isoformat(timespec="seconds"),
    }


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    def shown(value: Any, words: str) -> str:
        return "–" if value is None else words.format(value)

    minutes, seconds = divmod(round(row["seconds_left"] or 0), 60)
    left = None if row["seconds_left"] is None else f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return [
        name,
        row["status"],
        f"{row['step']:,}/{row['steps']:,}",
        f"{row['step'] / max(1, row['steps']):.0%}",
        shown(row["loss"], "{:.3f}"),
        shown(row["validation_loss"], "{:.3f}"),
        shown(row["tokens_per_second"], "{:,.0f}"),
        shown(left, "{}"),
        "–" if row["until"] is None else _clock(datetime.fromisoformat(row["until"])),
    ]


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def _clock(moment: datetime) -> str:
    """The hour, with the day unless it is today; the date alone, where it is more than some days away."""
    days = (moment.date() - _local(time.time()).date()).days
    return moment.strftime("%H:%M" if days == 0 else "%a %H:%M" if days < _FEW_DAYS else "%d %b %Y")
