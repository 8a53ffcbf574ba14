"""From a job to a finished run: begin or go on, train, rewind, stop, save. transformers' Trainer is the engine."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback

from latemask.exporting import export
from latemask.ground.allocator import keep_freed_memory
from latemask.ground.console import say
from latemask.ground.errors import Interrupted, TimeIsUp, UserError
from latemask.ground.files import replace_folder
from latemask.ground.precision import attention_kernels, mixed_precision, precision_name
from latemask.ground.processes import decided_by_the_first, is_first, join, leave, world_size
from latemask.ground.sealed import damage, seal
from latemask.model import build_model
from latemask.reporting import write_page
from latemask.run_folder import RunFolder, step_of
from latemask.text.tokenizer import copy_tokenizer
from latemask.training.arguments import training_arguments
from latemask.training.callbacks import LossWatch, MetricsCallback, ProgressCallback, StepRandomness, StopOnRequest
from latemask.training.checkpoints import CheckpointWriter, checkpoint_to_resume, refuse_another_model
from latemask.training.job import Job
from latemask.training.peak import measured_peak
from latemask.training.trainer import NonFinite, PretrainingTrainer

_NEW, _READY, _FINISHED = "new", "ready", "finished"
_MOST_REWINDS = 10


@dataclass(frozen=True)
class Wishes:
    """How a run begins, and goes on where it cannot."""

    resume: bool
    allow_changes: bool
    overwrite: bool
    on_nan: str
    deadline: float


def run_job(job: Job, run: RunFolder, wishes: Wishes) -> None:
    """Do a job in a run folder, with all processes that were started for it."""
    stop = StopOnRequest(wishes.deadline)
    join()
    with ExitStack() as held:
        decided_by_the_first(lambda: _take(run, wishes.resume, held))
        _pretrain(job, run, stop, wishes)
    leave()


def _take(run: RunFolder, resume: bool, held: ExitStack) -> None:
    run.refuse_what_cannot_be(resume)
    held.callback(run.lock().release)


def _pretrain(job: Job, run: RunFolder, stop: StopOnRequest, wishes: Wishes) -> None:
    begun = decided_by_the_first(lambda: _begun(job, run, wishes))
    if begun == _FINISHED:
        return
    keep_freed_memory()
    with stop:
        trainer = _trained(job, run, stop, wishes.on_nan)
        if trainer.state.global_step < job.steps:
            _stopped(job, run, trainer.state.global_step, stop)
    _finish(job, run, trainer)


def _begun(job: Job, run: RunFolder, wishes: Wishes) -> str:
    """Make the run folder ready, or see that it is."""
    if not wishes.resume:
        _start(job, run, wishes.overwrite)
        return _READY
    if run.is_finished():
        problem = damage(run.model) or (None if run.encoder.is_dir() else f"{run.encoder} is missing")
        if problem is None and not (wishes.allow_changes and run.changes(job.recipe, job.data.record)):
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
    kind = mixed_precision(job.recipe.train.precision)
    peak = measured_peak(arguments.device, kind or torch.float32) * arguments.world_size
    trainer = PretrainingTrainer(
        model=model,
        args=arguments,
        data_collator=job.collator(),
        eval_collator=job.validation_collator(),
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
        attention=partial(attention_kernels, arguments.device, kind, job.recipe.length),
        sharded=job.recipe.train.sharded,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _announce(job: Job, run: RunFolder, trainer: PretrainingTrainer, done: int) -> None:
    recipe = job.recipe
    parameters = sum(weight.numel() for weight in trainer.model.encoder.parameters())
    precision = precision_name(recipe.train.precision)
    precisions = run.record.get("precision") or (["fp32"] if done else [])
    if done and precisions[-1] != precision:
        say(f"the run was in {precisions[-1]} so far and goes on in {precision}")
    if is_first():
        if precisions[-1:] != [precision]:
            precisions = [*precisions, precision]
        several = {"processes": world_size(), "sharded": trainer.sharded, "precision": precisions}
        run.update(status="running", steps=job.steps, encoder_parameters=parameters, **several)
    say(
        f"{recipe.objective} masking, {recipe.encoder.family} {recipe.encoder.layers} x {recipe.encoder.width} "
        f"({parameters / 1e6:.1f} M weights), {job.steps:,} steps of {job.batch_tokens:,} tokens, "
        f"{job.flops(job.steps):.3g} FLOPs, {precision}" + (f"; going on from step {done:,}" if done else "")
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
