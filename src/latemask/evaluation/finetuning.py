"""`latemask finetune`: an encoder and a labelled task → scores with their spread, and the best model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latemask.evaluation.display import show, write_tables
from latemask.evaluation.glue_files import load_glue
from latemask.evaluation.identity import RANDOM
from latemask.evaluation.own_files import NO_FILES, OwnFiles, load_own
from latemask.evaluation.protocol import ROBERTA, SEEDS, Protocol, refuse_seeds
from latemask.evaluation.results import MODEL, RESULTS, Results, results_in
from latemask.evaluation.tasks import GLUE, Task
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError, nearest


def finetune(
    encoder: str,
    *,
    task: str | None = None,
    data: Path | None = None,
    out: Path | None = None,
    seeds: int = SEEDS,
    lrs: Sequence[float] | None = None,
    own: OwnFiles = NO_FILES,
    protocol: Protocol = ROBERTA,
    tokenizer: str | None = None,
    overwrite: bool = False,
    **files: Any,
) -> Results:
    """Fine-tune an encoder on a GLUE task or on your own labelled files, over several seeds.

    Args:
        encoder: Run folder, exported folder, any Hugging Face encoder folder or Hub id, or random:RECIPE.
        task: A GLUE task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.
        data: Folder with GLUE in its own layout (FOLDER/SST-2/train.tsv); by default it comes from the Hub.
        out: Folder to write; by default finetuned/ and the names of encoder and task.
        seeds: How many runs, with seeds 0, 1, 2 and so on.
        lrs: Peak learning rates to try; by default one that suits the encoder's size.
        own: Your own files; in Python each of its fields is also a keyword: finetune(…, train="a.csv").
        protocol: How it is done; by default as RoBERTa's authors do it.
        tokenizer: Tokenizer for a random: encoder: that of a run, an encoder or a data folder.
        overwrite: Start again where results are.
    """
    protocol.check()
    refuse_seeds(seeds)
    loaded = [one.limited(protocol.max_train) for one in _load_tasks(task, data, replace(own, **files))]
    from latemask.evaluation.encoders import open_encoders  # not for --help: it loads torch
    from latemask.evaluation.grid import keep_best, refuse_settings, run_grid

    (opened,) = open_encoders([encoder], tokenizer)
    out = Path(out) if out else Path("finetuned") / f"{_short(encoder)}-{loaded[0].name}"
    refuse_settings(protocol, [opened], lrs)
    with results_in(out, protocol, overwrite) as results:
        names = [one.name for one in loaded]
        if results.trials and ([opened.name], names) != (list(results.encoders), list(results.tasks)):
            # The model in the folder is the best of one encoder on one task.
            held = f"'{printable(next(iter(results.encoders)))}' on {printable(next(iter(results.tasks)))}"
            raise UserError(f"{printable(str(results.path))} holds results of {held}; choose another --out")
        run_grid([opened], loaded, lrs, seeds, results, keep_best(out / MODEL, results))
        write_tables(results)
    show(results)
    say(f"results: {out / RESULTS}")
    if (out / MODEL).is_dir():
        say(f"model:   {out / MODEL}  (the best run on dev; latemask predict takes it)")
    return results


def _load_tasks(task: str | None, data: Path | None, own: OwnFiles) -> list[Task]:
    if task is not None:
        if given := own.given():
            raise UserError(f"--task {task} has its own files and columns: leave {given[0]} away")
        if task not in GLUE:
            raise UserError(f"unknown task '{printable(task)}'{nearest(task, GLUE)}; your own is --train and --dev")
        return [load_glue(task, Path(data) if data else None)]
    if data is not None:
        raise UserError("--data is for --task; your own files are --train and --dev")
    return load_own(own)


def _short(encoder: str) -> str:
    """Return a folder's name for an encoder: runs/small/encoder is small."""
    path = Path(encoder.removeprefix(RANDOM))
    is_inside = path.name in ("encoder", "model", "recipe.yaml") and path.parent.name
    name = path.parent.name if is_inside else path.name.removesuffix(".yaml")
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "encoder"
    return f"random-{name}" if encoder.startswith(RANDOM) else name
