"""`latemask pretrain`: recipe + data → a run folder with a plain encoder in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from latemask.budget.flops import with_budget
from latemask.ground.errors import UserError
from latemask.ground.processes import is_first
from latemask.ground.signals import deadline
from latemask.recipe import OBJECTIVES, ROOT, Recipe, check_recipe, load_recipe
from latemask.references import Reference
from latemask.run_folder import RunFolder
from latemask.text import Mixture


def pretrain(
    recipe: Recipe | str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    out: Path | None = None,
    max_steps: int | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    finish_early: float | None = None,
    branch: str | None = None,
    stop_after: str | None = None,
    on_nan: Literal["stop", "rewind"] = "stop",
    resume: bool = False,
    allow_changes: bool = False,
    overwrite: bool = False,
    verify: bool = False,
) -> RunFolder:
    """Pre-train an encoder.

    Args:
        recipe: A recipe file, or the name of one that comes with latemask.
        data: Folder that `latemask prepare` made; several, FOLDER:WEIGHT each, are mixed.
        out: Run folder to write; by default runs/ and the recipe's name.
        max_steps: Budget in optimizer steps, instead of the recipe's.
        tokens: Budget in tokens of text, instead of the recipe's.
        flops: Budget in floating-point operations, instead of the recipe's.
        finish_early: Share of the steps, such as 0.05, that a run with late masks spends at the end with [MASK]s in the
            input; then `latemask export --mlm` gives a masked language model.
        branch: RUN@STEP: begin with that checkpoint of another run, optimizer and all. The recipe may have another
            schedule, length, mask or data; a budget counts what the other run spent until there.
        stop_after: Save and stop after this much time (90m, 2h, 1h30m), with exit code 75; --resume goes on.
        on_nan: At a gradient that is no number, stop; or rewind to the last checkpoint and leave those samples out.
        resume: Go on from the last checkpoint in the run folder.
        allow_changes: Resume although the data or the recipe changed; the model's shape and the batch cannot.
        overwrite: Replace a run that is in the run folder.
        verify: Read all of the data and compare it with its checksums, not only files that changed since they matched.
    """
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite starts again: give one of them")
    if isinstance(recipe, (str, Path)):
        out = out or Path("runs") / Path(recipe).stem
        recipe = load_recipe(recipe)
    if out is None:
        raise UserError("say where the run goes: --out")
    if allow_changes and not resume:
        raise UserError("--allow-changes is about a run that goes on: add --resume")
    stop_at = deadline(stop_after, "--stop-after")
    recipe = with_budget(recipe, max_steps, tokens, flops)
    if finish_early is not None:
        if finish_early and not OBJECTIVES[recipe.objective].finish:
            raise UserError(
                f"--finish-early is for late masks, and this run's objective is '{recipe.objective}': leave it out"
            )
        recipe = replace(recipe, train=replace(recipe.train, finish_early=finish_early))
    check_recipe(recipe)
    if recipe.encoder.init is not None and not resume and branch is None:
        from latemask.model import checkpoint_shape  # not for --help: it loads torch

        checkpoint_shape(recipe.encoder, recipe.length)  # refused before all the data are read
    if reference := Reference.of(recipe):  # the same
        reference.refuse_itself(Path(out))
    mixture = Mixture.open(data, verify=is_first(), everything=verify)
    from latemask.training.branching import Branch
    from latemask.training.job import plan_job
    from latemask.training.running import Wishes, run_job

    run = RunFolder(Path(out))
    stem = Branch.of(branch) if branch and not resume else None
    goes_on = run.recipe_file if resume and run.all_checkpoints() else None
    known = load_recipe(goes_on).encoder if goes_on else stem.recipe.encoder if stem else None
    job = plan_job(recipe, mixture, known, stem.stem if stem else run.stem if resume else ROOT)
    run_job(job, run, Wishes(resume, allow_changes, overwrite, on_nan, stop_at, stem))
    return run
