"""`latemask glue`: the whole table, for one encoder or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from latemask.evaluation.display import show, write_tables
from latemask.evaluation.glue_files import load_glue, tasks_present
from latemask.evaluation.protocol import ROBERTA, SEEDS, Protocol, refuse_seeds
from latemask.evaluation.results import RESULTS, Results, results_in
from latemask.evaluation.tasks import GLUE, GlueName
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError


def glue(
    encoders: Sequence[str],
    *,
    data: Path | None = None,
    tasks: Sequence[GlueName] | None = None,
    out: Path = Path("glue-results"),
    seeds: int = SEEDS,
    lrs: Sequence[float] | None = None,
    protocol: Protocol = ROBERTA,
    tokenizer: str | None = None,
    overwrite: bool = False,
) -> Results:
    """Fine-tune one encoder or several on GLUE, and write the table.

    Args:
        encoders: Run folders, encoder folders, Hub ids, or random:RECIPE for a never-trained control.
        data: Folder with GLUE in its own layout (FOLDER/SST-2/train.tsv); by default it comes from the Hub.
        tasks: Which tasks; by default all that are there.
        out: Folder to write results.json, results.md and results.csv into; the same command goes on there.
        seeds: How many runs of each task, with seeds 0, 1, 2 and so on.
        lrs: Peak learning rates to try; by default one that suits the encoder's size.
        protocol: How it is done; by default as RoBERTa's authors do it.
        tokenizer: Tokenizer for random: encoders: that of a run, an encoder or a data folder.
        overwrite: Start again where results are.
    """
    protocol.check()
    refuse_seeds(seeds)
    folder = Path(data) if data else None
    names = _names(folder, tasks)
    loaded = [load_glue(name, folder).limited(protocol.max_train) for name in names]
    from latemask.evaluation.encoders import open_encoders  # not for --help: it loads torch
    from latemask.evaluation.grid import refuse_settings, run_grid

    opened = open_encoders([encoders] if isinstance(encoders, str) else encoders, tokenizer)
    refuse_settings(protocol, opened, lrs)
    with results_in(Path(out), protocol, overwrite) as results:
        run_grid(opened, loaded, lrs, seeds, results)
        write_tables(results)
    show(results)
    say(f"results: {Path(out) / RESULTS}, .md and .csv")
    return results


def _names(data: Path | None, tasks: Sequence[str] | None) -> list[str]:
    wanted = list(dict.fromkeys(tasks)) if tasks else None
    if wanted is not None or data is None:
        return wanted or list(GLUE)
    present = tasks_present(data)
    if not present:
        raise UserError(
            f"{printable(str(data))}: holds no GLUE task; GLUE's layout is FOLDER/SST-2/train.tsv and so on"
        )
    if missing := [name for name in GLUE if name not in present]:
        say(f"{printable(str(data))}: no {', '.join(missing)} in it; the table goes without")
    return present
