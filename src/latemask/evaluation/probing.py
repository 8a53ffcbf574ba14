"""`latemask probe`: what a frozen encoder knows, by linear probes on the builtin text, against a random encoder."""

from __future__ import annotations

import json as json_format
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latemask.evaluation.builtin_tasks import builtin_documents, probe_tasks
from latemask.evaluation.results import ProbeResult, write_probe
from latemask.ground.console import printable
from latemask.ground.errors import UserError


def probe(
    encoder: str,
    *,
    examples: int = 2000,
    splits: int = 3,
    tokenizer: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> list[ProbeResult]:
    """Probe a frozen encoder on three small tasks made from text on this machine, against a random encoder.

    Args:
        encoder: Run folder, exported folder, any Hugging Face encoder folder or Hub id.
        examples: Examples of each task.
        splits: How often training and test documents are drawn anew.
        tokenizer: Tokenizer for a random: encoder.
        out: File to write the record to, as JSON.
        json: Print the record instead of a table.
    """
    if examples < 200:
        raise UserError(f"--examples {examples}: a probe needs 200 at least")
    if splits < 1:
        raise UserError(f"--splits {splits}: one at least")
    from latemask.evaluation.encoders import open_encoders  # not for --help: it loads torch
    from latemask.evaluation.probes import probed

    (opened,) = open_encoders([encoder], tokenizer)
    tasks = probe_tasks(builtin_documents(), examples)
    results = probed(opened, tasks, splits)
    record = write_probe(None if out is None else Path(out), opened.name, opened.checksum, results)
    print(json_format.dumps(record, indent=2)) if json else show_probes(results)
    return results


def show_probes(results: list[ProbeResult]) -> None:
    """Print the table."""
    table = Table()
    table.add_column("probe: accuracy, per cent")
    for name in ("this encoder", "random encoder", "majority"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            Text(printable(result.question)),
            _spread(result.encoder),
            _spread(result.random),
            f"{100 * result.majority:.1f}",
        )
    Console(highlight=False).print(table)


def _spread(scores: list[float]) -> str:
    return f"{100 * statistics.median(scores):.1f} ({100 * min(scores):.1f}–{100 * max(scores):.1f})"
