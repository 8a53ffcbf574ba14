"""`latemask glue`: the same table as `latemask finetune` makes, of GLUE's nine tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from latemask.evaluation.finetuning import tabulate
from latemask.evaluation.glue_files import load_glue, tasks_present
from latemask.evaluation.protocol import ROBERTA, SEEDS, Protocol, refuse_seeds
from latemask.evaluation.results import Results
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
    no_control: bool = False,
    corpus: Sequence[Path] | None = None,
    overwrite: bool = False,
) -> Results:
    """Fine-tune one encoder or several on GLUE, and write the table with its floors and a verdict; no model is kept.

    Args:
        encoders: Run folders, encoder folders, Hub ids, or random:RECIPE for a never-trained control.
        data: Folder with GLUE in its own layout (FOLDER/SST-2/train.tsv); by default it comes from the Hub.
        tasks: Which tasks; by default all that are there.
        out: Folder to write results.json, results.md and results.csv into; the same command goes on there.
        seeds: How many runs of each task, with seeds 0, 1, 2 and so on.
        lrs: Peak learning rates to try; by default one that suits the encoder's size.
        protocol: How it is done; by default as RoBERTa's authors do it.
        tokenizer: Tokenizer for random: encoders: that of a run, an encoder or a data folder.
        no_control: Do not fine-tune a never-trained encoder of the same architecture beside the trained ones.
        corpus: Data folders to look the rows of dev up in; by default those that the encoders' runs were trained on.
        overwrite: Start again where results are.
    """
    protocol.check()
    refuse_seeds(seeds)
    folder = Path(data) if data else None
    loaded = [load_glue(name, folder) for name in _names(folder, tasks)]
    return tabulate(
        encoders,
        loaded,
        Path(out),
        seeds=seeds,
        lrs=lrs,
        protocol=protocol,
        tokenizer=tokenizer,
        has_control=not no_control,
        corpus=corpus,
        keep=False,
        overwrite=overwrite,
    )


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
