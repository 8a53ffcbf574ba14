"""`latemask export`: run → a folder any Hugging Face program opens. A copy, not a conversion."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

from latemask.card import model_card
from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import replace_folder
from latemask.recipe import load_recipe
from latemask.run_folder import RunFolder
from latemask.text.tokenizer import copy_tokenizer


def export(run: Path, *, out: Path, layers: int | None = None, mlm: bool = False, overwrite: bool = False) -> Path:
    """Write the encoder of a run as a stock Hugging Face folder, with its tokenizer and a model card.

    Args:
        run: Run folder (finished, or stopped: then its last checkpoint is taken), or a saved pre-training model.
        out: Folder to write.
        layers: Keep only so many layers from below; `latemask probe --layers` says whether an earlier one is better.
        mlm: Write a stock masked language model (…ForMaskedLM: encoder and head), for fill-mask pipelines. The run must
            have had [MASK]s in its input, from the beginning or at the end (`pretrain --finish-early`).
        overwrite: Replace an encoder that is there.
    """
    out = Path(out)
    write_stock(Path(run), out, layers, mlm, overwrite)
    say(f"exported: {out}")
    return out


def write_stock(run: Path, out: Path, layers: int | None = None, mlm: bool = False, overwrite: bool = False) -> None:
    """Write the folder; the run may be the user's wish, or only a step on the way to something else."""
    folder = RunFolder(run)
    source = folder.newest_model()
    from latemask.model import load_model, masked_language_model  # not for --help: it loads torch

    _refuse_or_pass(out, overwrite)
    model = load_model(source)
    if mlm:
        _refuse_what_knows_no_mask(folder, model, layers)
    whole = model.encoder.config.num_hidden_layers
    if layers is not None and not 1 <= layers <= whole:
        raise UserError(f"--layers {layers}: the encoder has {whole}; give 1 to {whole}")
    if layers is not None:
        model.family.shorten(model.encoder, layers)
    aside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        written = masked_language_model(model) if mlm else model.encoder
        written.save_pretrained(str(aside))
        copy_tokenizer(folder.tokenizer_folder(source), aside, model.family.longest(model.encoder.config))
        (aside / "README.md").write_text(model_card(folder, source, model, whole, mlm), "utf-8")
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    replace_folder(aside, out)
    if source.parent == folder.checkpoints:
        say(f"the run is not finished: exported its checkpoint {source.name}")


def _refuse_what_knows_no_mask(run: RunFolder, model: Any, layers: int | None) -> None:
    if layers is not None:
        raise UserError("--mlm with --layers: the head reads the last layer; leave one out")
    if not model.objective.mask_in_input:
        raise UserError(
            f"{run.path} never had [MASK]s in its input, and its encoder has to learn its mask token: {_advice(run)}"
        )


def _advice(run: RunFolder) -> str:
    """Say how a run comes to a masked language model."""
    if not run.recipe_file.is_file():
        return "pretrain with --finish-early 0.05"
    recipe, path = load_recipe(run.recipe_file), shlex.quote(str(run.path))
    if recipe.train.finish_early and not run.is_finished():
        return f"it was to come at the end of the run (latemask resume {path})"
    return (
        f"pretrain with --finish-early 0.05, or give this run such an end (latemask pretrain {path}/recipe.yaml "
        f"--branch {path} --finish-early 0.05, with its --data, another --out and a larger budget)"
    )


def _refuse_or_pass(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "config.json").is_file():
        raise UserError(f"{out} is not empty and holds no encoder; choose another --out")
    from latemask.model.load import is_ours

    if is_ours(out):
        raise UserError(f"{out} holds a pre-training model; choose another --out for the encoder")
    if not overwrite:
        raise UserError(f"{out} already holds an encoder; choose another --out or pass --overwrite")
