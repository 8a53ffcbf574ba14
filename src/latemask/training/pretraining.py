"""`latemask pretrain`: recipe + data → a run folder with a plain encoder in it. transformers' Trainer is the engine."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback

from latemask.budget import planned_steps, sequence_flops, spent, with_budget
from latemask.console import say
from latemask.errors import Interrupted, TimeIsUp, UserError
from latemask.exporting import export
from latemask.files import replace_folder
from latemask.masking import COLLATORS, MaskSchedule, SampleDataset
from latemask.model import build_model, complete_recipe
from latemask.processes import decided_by_the_first, is_first, join, leave, world_size
from latemask.recipe import Recipe, check_recipe, load_recipe
from latemask.reporting import write_page
from latemask.run_folder import RunFolder, step_of
from latemask.sealed import damage, seal
from latemask.text import Mixture
from latemask.text.tokenizer import copy_tokenizer, load_tokenizer
from latemask.training.allocator import keep_freed_memory
from latemask.training.arguments import check_training, mixed_precision, training_arguments
from latemask.training.callbacks import (
    LossWatch,
    MetricsCallback,
    ProgressCallback,
    StepRandomness,
    StopOnRequest,
    seconds_of,
)
from latemask.training.checkpoints import CheckpointWriter, checkpoint_to_resume, refuse_another_model
from latemask.training.peak import measured_peak
from latemask.training.trainer import NonFinite, PretrainingTrainer

_NEW, _READY, _FINISHED = "new", "ready", "finished"
_MOST_REWINDS = 10


def pretrain(
    recipe: Recipe | str | Path,
    *,
    data: str | Path | Sequence[str | Path],
    out: Path | None = None,
    max_steps: int | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    stop_after: str | None = None,
    on_nan: Literal["stop", "rewind"] = "stop",
    resume: bool = False,
    allow_changes: bool = False,
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
        stop_after: Save and stop after this much time (90m, 2h, 1h30m), with exit code 75; --resume goes on.
        on_nan: At a gradient that is no number, stop; or rewind to the last checkpoint and leave those samples out.
        resume: Go on from the last checkpoint in the run folder.
        allow_changes: Resume although the data or the recipe changed; the model's shape and the batch cannot.
        overwrite: Replace a run that is in the run folder.
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
    run = RunFolder(Path(out))
    stop = StopOnRequest(None if stop_after is None else seconds_of(stop_after, "--stop-after"))
    job = _plan(with_budget(recipe, max_steps, tokens, flops), Mixture.open(data, verify=is_first()))
    join()
    with ExitStack() as held:
        decided_by_the_first(lambda: _take(run, resume, held))
        _pretrain(job, run, stop, _Wishes(resume, allow_changes, overwrite, on_nan))
    leave()
    return run


@dataclass(frozen=True)
class _Wishes:
    """How a run begins, and goes on where it cannot."""

    resume: bool
    allow_changes: bool
    overwrite: bool
    on_nan: str


def _take(run: RunFolder, resume: bool, held: ExitStack) -> None:
    run.refuse_what_cannot_be(resume)
    held.callback(run.lock().release)


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

    def flops(self, done: int) -> float:
        """Return the FLOPs of the first steps."""
        return spent(self.recipe, self.steps, done)

    def collator(self, validation: bool = False) -> Any:
        """Return what draws masks and makes batches; one validates with the rate that the run ends with."""
        counts = self.recipe.at(1).counts if validation else MaskSchedule(self.recipe, self.steps)
        return COLLATORS[self.recipe.objective](counts, self.data.vocabulary, self.recipe.seed)

    def train_samples(self, done: int, left_out: Sequence[int] = ()) -> SampleDataset:
        """Return the samples after the first `done` steps; some batches may be left out, the next then move up."""
        batch = self.recipe.train.batch_size
        rows, weights = self.data.rows("train", self.recipe.length)
        return SampleDataset(
            rows,
            self.steps * batch,
            weights=weights,
            seed=self.recipe.seed,
            first=done * batch,
            gaps=[number * batch for number in sorted(left_out)],
            gap=batch,
        )

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


def _pretrain(job: Job, run: RunFolder, stop: StopOnRequest, wishes: _Wishes) -> None:
    begun = decided_by_the_first(lambda: _begun(job, run, wishes))
    if begun == _FINISHED:
        return
    keep_freed_memory()
    with stop:
        trainer = _trained(job, run, stop, wishes.on_nan)
        if trainer.state.global_step < job.steps:
            _stopped(job, run, trainer.state.global_step, stop)
    _finish(job, run, trainer)


def _begun(job: Job, run: RunFolder, wishes: _Wishes) -> str:
    """Make the run folder ready, or see that it is."""
    if not wishes.resume:
        _start(job, run, wishes.overwrite)
        return _READY
    if run.is_finished():
        problem = damage(run.model) or (None if run.encoder.is_dir() else f"{run.encoder} is missing")
        if problem is None and not (wishes.allow_changes and run.is_changed(job.recipe, job.data.record)):
            run.check_same(job.recipe, job.data.record)
            say(f"{run.path} is finished already: nothing to do")
            return _FINISHED
        if problem:
            say(f"{problem}; writing the model again")
    done = step_of(run.all_checkpoints()[0]) if run.all_checkpoints() else 0
    if done > job.steps:
        raise UserError(f"{run.path} has done {done:,} steps, and the budget is {job.steps:,}: raise it")
    run.go_on(job.recipe, job.data.record, wishes.allow_changes)
    return _READY


def _start(job: Job, run: RunFolder, overwrite: bool) -> None:
    start = job.recipe.encoder.init
    if overwrite and start and Path(start).resolve().is_relative_to(run.path.resolve()):
        raise UserError(f"the run starts from {start}, which --overwrite would remove; choose another --out")
    with nullcontext() if start else torch.device("meta"):  # without weights
        build_model(job.recipe, job.data.vocabulary)  # before the folder says that there is a run
    run.start(job.recipe, job.data.record, overwrite)


def _trained(job: Job, run: RunFolder, stop: StopOnRequest, on_nan: str) -> PretrainingTrainer:
    """Train to the end or to a stop; rewind where that was asked for."""
    tries = Counter[Path | None]()
    while True:
        checkpoint = decided_by_the_first(lambda: _from_where(run))
        done = step_of(checkpoint) if checkpoint else 0
        tries[checkpoint] += 1
        left_out = run.record.get("left_out_batches", [])
        set_seed(job.recipe.seed)
        model = build_model(job.recipe, job.data.vocabulary)
        if checkpoint:
            _check_model(model, checkpoint)
        trainer = build_trainer(job, run, model, done, stop, left_out)
        _announce(job, run, trainer, done)
        try:
            trainer.train(str(checkpoint) if checkpoint else None)
        except NonFinite as error:
            if on_nan == "stop":
                raise _advice(error, run) from None
            if tries[checkpoint] == _MOST_REWINDS:
                raise UserError(
                    f"{_MOST_REWINDS} times back to step {done:,}, and the gradient is still no number: it is not the "
                    "samples. Lower train.learning_rate or raise train.warmup"
                ) from None
            _leave_out(job, run, error.step, left_out)
        else:
            return trainer


def _from_where(run: RunFolder) -> Path | None:
    checkpoint = checkpoint_to_resume(run) if run.all_checkpoints() or run.record.get("status") != _NEW else None
    run.forget_metrics_after(step_of(checkpoint) if checkpoint else 0)
    return checkpoint


def _check_model(model: Any, checkpoint: Path) -> None:
    decided_by_the_first(lambda: refuse_another_model(checkpoint, model.config.to_dict()))


def _advice(error: NonFinite, run: RunFolder) -> UserError:
    return UserError(
        f"{error}: the run has diverged, and that step was not applied. Lower train.learning_rate or raise "
        f"train.warmup, or leave such samples out with --on-nan rewind; checkpoints are in {run.checkpoints}"
    )


def _leave_out(job: Job, run: RunFolder, step: int, left_out: Sequence[int]) -> None:
    """Note the batch of a step, so that this run and any that resumes it pass it by."""
    batch = job.recipe.train.batch_size
    number = int(job.train_samples(0, left_out).index_of(np.array([(step - 1) * batch]))[0]) // batch
    say(
        f"step {step}: the gradient is no number; going back, and leaving out samples {number * batch} to "
        f"{number * batch + batch - 1}"
    )
    decided_by_the_first(lambda: run.update(left_out_batches=[*left_out, number]))


def build_trainer(
    job: Job, run: RunFolder, model: Any, done: int, stop: StopOnRequest, left_out: Sequence[int] = ()
) -> PretrainingTrainer:
    """Return the Trainer of a run, ready to train; `done` steps were done before."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(run.path / "tensorboard")  # the Trainer's only way to be told
    validation = job.validation_samples()
    if validation is None:
        say("no validation: the held-out part is shorter than one row (prepare with a larger --validation)")
    arguments = training_arguments(job.recipe, run, job.steps, validation is not None)
    peak = measured_peak(arguments.device, mixed_precision(job.recipe.train) or torch.float32) * arguments.world_size
    trainer = PretrainingTrainer(
        model=model,
        args=arguments,
        data_collator=job.collator(),
        eval_collator=job.collator(validation=True),
        train_dataset=job.train_samples(done, left_out),
        eval_dataset=validation,
        callbacks=[
            MetricsCallback(run, job.batch_tokens, job.flops, validation is not None),
            ProgressCallback(job.batch_tokens, job.flops(job.steps) / job.steps / peak),
            StepRandomness(job.recipe.seed),
            LossWatch(),
            stop,
        ],
        checkpoints=CheckpointWriter(run, job.recipe.train.keep_checkpoints),
        row_flops=job.row_flops,
        sharded=job.recipe.train.sharded,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _announce(job: Job, run: RunFolder, trainer: PretrainingTrainer, done: int) -> None:
    recipe = job.recipe
    parameters = sum(weight.numel() for weight in trainer.model.encoder.parameters())
    if is_first():
        several = {"processes": world_size(), "sharded": trainer.sharded}
        run.update(status="running", steps=job.steps, encoder_parameters=parameters, **several)
    say(
        f"{recipe.objective} masking, {recipe.encoder.family} {recipe.encoder.layers} x {recipe.encoder.width} "
        f"({parameters / 1e6:.1f} M weights), {job.steps:,} steps of {job.batch_tokens:,} tokens, "
        f"{job.flops(job.steps):.3g} FLOPs" + (f"; going on from step {done:,}" if done else "")
    )


def _stopped(job: Job, run: RunFolder, step: int, stop: StopOnRequest) -> None:
    decided_by_the_first(lambda: _say_how_to_go_on(job, run, step, stop))


def _say_how_to_go_on(job: Job, run: RunFolder, step: int, stop: StopOnRequest) -> None:
    run.update(status="stopped", stopped_at=step)
    several = ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), "-m"]
    command = shlex.join(
        [
            *(several if world_size() > 1 else []),
            "latemask",
            "pretrain",
            str(run.recipe_file),
            *(word for argument in job.data.arguments for word in ("--data", argument)),
            "--out",
            str(run.path),
            "--resume",
        ]
    )
    message = f"stopped at step {step:,} of {job.steps:,}, checkpoint saved. Go on with:\n  {command}"
    if stop.received is None:
        raise TimeIsUp(message)
    raise Interrupted(message, stop.received)


def _finish(job: Job, run: RunFolder, trainer: PretrainingTrainer) -> None:
    aside = run.path / ".model"
    if is_first():
        shutil.rmtree(aside, ignore_errors=True)
    trainer.save_model(str(aside))  # all processes: each has its part
    decided_by_the_first(lambda: _finished(job, run, aside))
    say(f"finished: {run.path}\nencoder:  {run.encoder}")
    if is_first():
        _write_report(run)


def _finished(job: Job, run: RunFolder, aside: Path) -> None:
    copy_tokenizer(job.data.tokenizer_folder, aside, job.recipe.max_length)
    seal(aside)
    replace_folder(aside, run.model)  # one may be there: a crash before the run was marked finished
    run.update(tokens=job.steps * job.batch_tokens, flops=job.flops(job.steps))
    export(run.path, out=run.encoder, overwrite=True)
    run.update(status="finished")


def _write_report(run: RunFolder) -> None:
    """Write the page about the run; the run is whole without it."""
    try:
        say(f"report:   {write_page(run.path)}")
    except Exception as error:  # whatever a drawing may run into: the run is finished
        say(f"no report was written: {error}")
