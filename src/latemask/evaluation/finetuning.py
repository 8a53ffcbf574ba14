"""`latemask finetune`: encoders and labelled tasks → scores beside their floors, a verdict, and the best models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latemask.evaluation.contamination import corpora_of, found_in, open_corpora
from latemask.evaluation.display import show, write_tables
from latemask.evaluation.glue_files import load_glue
from latemask.evaluation.identity import RANDOM
from latemask.evaluation.own_files import NO_FILES, OwnFiles, load_own
from latemask.evaluation.protocol import ROBERTA, SEEDS, Protocol, refuse_seeds
from latemask.evaluation.results import RESULTS, Results, results_in
from latemask.evaluation.tasks import GLUE, Task
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError, nearest

_MOST_NAMES = 3  # in the name of a folder


def finetune(
    encoders: str | Sequence[str],
    *,
    task: str | Sequence[str] | None = None,
    data: Path | None = None,
    out: Path | None = None,
    seeds: int = SEEDS,
    lrs: Sequence[float] | None = None,
    own: OwnFiles = NO_FILES,
    protocol: Protocol = ROBERTA,
    tokenizer: str | None = None,
    no_control: bool = False,
    corpus: Sequence[Path] | None = None,
    overwrite: bool = False,
    **files: Any,
) -> Results:
    """Fine-tune encoders on GLUE tasks or on your own labelled files, over several seeds, and say which one to use.

    Args:
        encoders: Run folders, exported folders, any Hugging Face encoder folders or Hub ids, or random:RECIPE.
        task: GLUE tasks: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.
        data: Folder with GLUE in its own layout (FOLDER/SST-2/train.tsv); by default it comes from the Hub.
        out: Folder to write; by default finetuned/ and the names of encoders and tasks.
        seeds: How many runs, with seeds 0, 1, 2 and so on.
        lrs: Peak learning rates to try; by default one that suits the encoder's size.
        own: Your own files; in Python each of its fields is also a keyword: finetune(…, train="a.csv").
        protocol: How it is done; by default as RoBERTa's authors do it.
        tokenizer: Tokenizer for a random: encoder: that of a run, an encoder or a data folder.
        no_control: Do not fine-tune a never-trained encoder of the same architecture beside the trained ones.
        corpus: Data folders to look the rows of dev up in; by default those that the encoders' runs were trained on.
        overwrite: Start again where results are.
    """
    protocol.check()
    refuse_seeds(seeds)
    encoders = [encoders] if isinstance(encoders, str) else list(encoders)
    words = [task] if isinstance(task, str) else task or ()
    wanted = list(dict.fromkeys(name for word in words for name in word.split(",")))
    loaded = _load_tasks(wanted, Path(data) if data else None, replace(own, **files))
    out = Path(out) if out else Path("finetuned") / _out_name(encoders, loaded)
    return tabulate(
        encoders,
        loaded,
        out,
        seeds=seeds,
        lrs=lrs,
        protocol=protocol,
        tokenizer=tokenizer,
        has_control=not no_control,
        corpus=corpus,
        keep=True,
        overwrite=overwrite,
    )


def tabulate(
    encoders: str | Sequence[str],
    tasks: Sequence[Task],
    out: Path,
    *,
    seeds: int,
    lrs: Sequence[float] | None,
    protocol: Protocol,
    tokenizer: str | None,
    has_control: bool,
    corpus: Sequence[Path] | None,
    keep: bool,
    overwrite: bool,
) -> Results:
    """Run what is missing of a table, write it and show it; `keep` the best model of each task."""
    from latemask.evaluation.best_models import model_folders  # these load torch: not for --help
    from latemask.evaluation.encoders import controls_for, open_encoders
    from latemask.evaluation.grid import refuse_settings, run_grid

    tasks = [task.limited(protocol.max_train) for task in tasks]
    if protocol.class_weights != "none" and (numbers := [task.name for task in tasks if task.kind == "regression"]):
        say(f"--class-weights: {', '.join(numbers)} has no classes, and is trained as without")
    opened = open_encoders([encoders] if isinstance(encoders, str) else encoders, tokenizer)
    refuse_settings(protocol, opened, lrs)
    controls = controls_for(opened) if has_control else []
    in_corpus = _looked_up(tasks, corpus, [encoder.name for encoder in opened if not encoder.is_random])
    with results_in(out, protocol, overwrite) as results:
        for control in controls:
            say(f"{control.name}: the same architecture, never trained, runs beside it (not with --no-control)")
        run_grid([*opened, *controls], tasks, lrs, seeds, results, keep)
        for name, words in in_corpus.items():
            results.tasks[name].setdefault("in_corpus", {}).update(words)
        write_tables(results)
    show(results)
    say(f"results: {out / RESULTS}, .md and .csv")
    for task, folder in model_folders(results).items():
        if folder.is_dir():
            say(f"model:   {folder}  (the best run on dev of {task}; latemask predict takes it)")
    return results


def _looked_up(
    tasks: Sequence[Task], corpus: Sequence[Path] | None, encoders: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Say how much of each task's dev stands in the pre-training text; by task and corpus."""
    for encoder in () if corpus else encoders:
        if not corpora_of(encoder):
            unknown = "its pre-training text is not known or gone; whether dev is in it cannot be told"
            say(f"{printable(encoder)}: {unknown} (--corpus DATA)")
    corpora = open_corpora(corpus, encoders)
    where = ", ".join(printable(str(data.folder)) for data in corpora)
    said: dict[str, dict[str, str]] = {}
    for task in tasks if corpora else ():
        texts = [" ".join(text) if isinstance(text, list) else text for text in task.dev.texts]
        rows = texts if task.dev.pairs is None else list(zip(texts, task.dev.pairs, strict=True))
        words = found_in(corpora, rows).words("rows of dev")
        said[task.name] = {where: words}
        say(f"{task.name}, {where}: {words}")
    return said


def _load_tasks(names: Sequence[str], data: Path | None, own: OwnFiles) -> list[Task]:
    if names:
        if given := own.given():
            raise UserError(f"--task {names[0]} has its own files and columns: leave {given[0]} away")
        if unknown := [name for name in names if name not in GLUE]:
            raise UserError(
                f"unknown task '{printable(unknown[0])}'{nearest(unknown[0], GLUE)}; your own is --train and --dev"
            )
        return [load_glue(name, data) for name in names]
    if data is not None:
        raise UserError("--data is for --task; your own files are --train and --dev")
    return load_own(own)


def _out_name(encoders: Sequence[str], tasks: Sequence[Task]) -> str:
    """Return a folder's name: of trained encoders, for a control beside them belongs there, too, and of tasks."""
    trained = [name for name in encoders if not name.startswith(RANDOM)] or encoders
    return "-".join([*_some([_short(name) for name in trained]), *_some([_plain(task.name) for task in tasks])])


def _some(names: Sequence[str]) -> list[str]:
    more = len(names) - _MOST_NAMES
    return [*names[:_MOST_NAMES], *([f"{more}-more"] if more > 0 else [])]


def _short(encoder: str) -> str:
    """Return a folder's name for an encoder: runs/small/encoder is small."""
    path = Path(encoder.removeprefix(RANDOM))
    is_inside = path.name in ("encoder", "model", "recipe.yaml") and path.parent.name
    name = path.parent.name if is_inside else path.name.removesuffix(".yaml")
    name = _plain(name) or "encoder"
    return f"random-{name}" if encoder.startswith(RANDOM) else name


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
