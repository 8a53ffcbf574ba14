"""`latemask pretrain`: recipe + data → a run folder with a plain encoder in it. transformers' Trainer is the engine."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, set_seed
from transformers.trainer_callback import PrinterCallback

from latemask.budget import planned_steps, sequence_flops, with_budget
from latemask.console import say
from latemask.errors import Interrupted, UserError
from latemask.exporting import export
from latemask.masking import COLLATORS, SampleDataset
from latemask.model import build_model, complete_recipe
from latemask.recipe import Recipe, check_recipe, load_recipe
from latemask.run_folder import RunFolder, step_of
from latemask.text import Mixture
from latemask.text.tokenizer import copy_tokenizer, load_tokenizer
from latemask.training.allocator import keep_freed_memory
from latemask.training.arguments import check_training, mixed_precision, training_arguments
from latemask.training.callbacks import MetricsCallback, ProgressCallback, StepRandomness, StopOnSignal
from latemask.training.checkpoints import checkpoint_to_resume
from latemask.training.peak import measured_peak


def pretrain(
    recipe: Recipe | str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    out: Path | None = None,
    max_steps: int | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> RunFolder:
    """Pre-train an encoder.

    Args:
        recipe: A recipe file, or the name of one that comes with latemask.
        data: Folder that `latemask prepare` made; several, FOLDER:WEIGHT each, are mixed.
        out: Run folder to write; by default runs/ and the recipe's name.
        max_steps: Budget in optimizer steps, instead of the recipe's.
        tokens: Budget in tokens of text, instead of the recipe's.
        flops: Budget in floating-point operations, instead of the recipe's.
        resume: Go on from the last checkpoint in the run folder.
        overwrite: Replace a run that is in the run folder.
    """
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite starts again: give one of them")
    if isinstance(recipe, (str, Path)):
        out = out or Path("runs") / Path(recipe).stem
        recipe = load_recipe(recipe)
    if out is None:
        raise UserError("say where the run goes: --out")
    run = RunFolder(Path(out))
    job = _plan(with_budget(recipe, max_steps, tokens, flops), Mixture.open(data))
    run.refuse_what_cannot_be(resume)
    lock = run.lock()
    try:
        _train(job, run, resume, overwrite)
    finally:
        lock.release()
    return run


@dataclass(frozen=True)
class Job:
    """A run that can be run: a recipe that is spelled out, data, steps."""

    recipe: Recipe
    data: Mixture
    steps: int

    @property
    def batch_tokens(self) -> int:
        """Tokens of a step."""
        return self.recipe.train.batch_size * self.recipe.length

    @property
    def row_flops(self) -> float:
        """FLOPs of a row, forward and backward."""
        return sequence_flops(self.recipe).training

    @property
    def batch_flops(self) -> float:
        """FLOPs of a step."""
        return self.recipe.train.batch_size * self.row_flops

    def collator(self) -> Any:
        """Return what draws masks and makes batches."""
        return COLLATORS[self.recipe.objective](self.recipe.counts, self.data.vocabulary, self.recipe.seed)

    def train_samples(self, done: int) -> SampleDataset:
        """Return the samples after the first `done` steps."""
        batch = self.recipe.train.batch_size
        rows, weights = self.data.rows("train", self.recipe.length)
        return SampleDataset(rows, self.steps * batch, weights=weights, seed=self.recipe.seed, first=done * batch)

    def validation_samples(self) -> SampleDataset | None:
        """Return the samples to validate on, the same every time; None if there are none."""
        rows, weights = self.data.rows("validation", self.recipe.length)
        total = sum(weights)
        once = min((int(len(part) * total / weight) for part, weight in zip(rows, weights, strict=True)), default=0)
        count = min(max(once, 1), self.recipe.train.eval_rows) if rows else 0
        return SampleDataset(rows, count, weights=weights, seed=self.recipe.seed, shuffle=False) if count else None


def _plan(recipe: Recipe, data: Mixture) -> Job:
    check_recipe(recipe)
    recipe = complete_recipe(recipe, data.vocabulary)
    check_recipe(recipe)
    check_training(recipe.train)
    _check_tokenizer(recipe, data)
    for part in data.parts:
        if not len(part.rows("train", recipe.length)):
            raise UserError(
                f"{part.folder} holds {part.tokens('train')} tokens to train on, less than one row of "
                f"{recipe.length}; give more text or lower --length"
            )
    return Job(recipe, data, planned_steps(recipe))


def _check_tokenizer(recipe: Recipe, data: Mixture) -> None:
    """A checkpoint goes on only with the tokenizer it was trained with."""
    start = recipe.encoder.init
    if start is None:
        return
    if load_tokenizer(start).get_vocab() != data.tokenizer.get_vocab():
        raise UserError(
            f"{data.label} was prepared with another tokenizer than the encoder at '{start}'; "
            f"prepare the data with --tokenizer {start}"
        )


def _train(job: Job, run: RunFolder, resume: bool, overwrite: bool) -> None:
    checkpoint = None
    if resume:
        run.check_same(job.recipe, job.data.record)
        if run.is_finished():
            say(f"{run.path} is finished already: nothing to do")
            return
        checkpoint = checkpoint_to_resume(run)
    keep_freed_memory()
    set_seed(job.recipe.seed)
    model = build_model(job.recipe, job.data.vocabulary)  # before the folder says that there is a run
    if not resume:
        run.start(job.recipe, job.data.record, overwrite)
    done = step_of(checkpoint) if checkpoint else 0
    run.forget_metrics_after(done)
    with StopOnSignal() as stop:
        trainer = build_trainer(job, run, model, done, stop)
        _announce(job, run, trainer.model, done)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if trainer.state.global_step < job.steps:
            _stopped(job, run, trainer.state.global_step, stop.received)
    _finish(job, run, trainer.model)


class CountingTrainer(Trainer):
    """The Trainer, counting FLOPs as the plan does; its own guess counts every weight for every label."""

    row_flops = 0.0

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return what a batch costs, forward and backward."""
        return round(self.row_flops * len(inputs["labels"]))


def build_trainer(job: Job, run: RunFolder, model: Any, done: int, stop: StopOnSignal) -> Trainer:
    """Return the Trainer of a run, ready to train; `done` steps were done before."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(run.path / "tensorboard")  # the Trainer's only way to be told
    validation = job.validation_samples()
    if validation is None:
        say("no validation: the held-out part is shorter than one row (prepare with a larger --validation)")
    arguments = training_arguments(job.recipe, run, job.steps, validation is not None)
    peak = measured_peak(arguments.device, mixed_precision(job.recipe.train) or torch.float32) * arguments.world_size
    trainer = CountingTrainer(
        model=model,
        args=arguments,
        data_collator=job.collator(),
        train_dataset=job.train_samples(done),
        eval_dataset=validation,
        callbacks=[
            MetricsCallback(run, job.batch_tokens, job.batch_flops, validation is not None),
            ProgressCallback(job.batch_tokens, job.batch_flops / peak),
            StepRandomness(job.recipe.seed),
            stop,
        ],
    )
    trainer.row_flops = job.row_flops
    trainer.remove_callback(PrinterCallback)
    return trainer


def _announce(job: Job, run: RunFolder, model: Any, done: int) -> None:
    recipe = job.recipe
    parameters = sum(weight.numel() for weight in model.encoder.parameters())
    run.update(status="running", steps=job.steps, encoder_parameters=parameters)
    say(
        f"{recipe.objective} masking, {recipe.encoder.family} {recipe.encoder.layers} x {recipe.encoder.width} "
        f"({parameters / 1e6:.1f} M weights), {job.steps:,} steps of {job.batch_tokens:,} tokens, "
        f"{job.steps * job.batch_flops:.3g} FLOPs" + (f"; going on from step {done:,}" if done else "")
    )


def _stopped(job: Job, run: RunFolder, step: int, received: int | None) -> None:
    run.update(status="stopped", stopped_at=step)
    command = shlex.join(
        [
            "latemask",
            "pretrain",
            str(run.recipe_file),
            *(word for argument in job.data.arguments for word in ("--data", argument)),
            "--out",
            str(run.path),
            "--resume",
        ]
    )
    raise Interrupted(
        f"stopped at step {step:,} of {job.steps:,}, checkpoint saved. Go on with:\n  {command}",
        received or 0,
    )


def _finish(job: Job, run: RunFolder, model: Any) -> None:
    aside = run.path / ".model"
    model.save_pretrained(str(aside))
    copy_tokenizer(job.data.tokenizer_folder, aside, job.recipe.max_length)
    if run.model.exists():  # a crash after the last step, before the run was marked finished
        shutil.rmtree(run.model)
    aside.rename(run.model)
    run.update(tokens=job.steps * job.batch_tokens, flops=job.steps * job.batch_flops)
    export(run.path, out=run.encoder, overwrite=True)
    run.update(status="finished")
    say(f"finished: {run.path}\nencoder:  {run.encoder}")
