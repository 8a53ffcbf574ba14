"""From a job to a finished run: begin or go on, train, rewind, stop, finish."""

from __future__ import annotations

import math
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latemask.exporting import write_stock
from latemask.ground.console import say
from latemask.ground.errors import Interrupted, TimeIsUp, UserError
from latemask.ground.files import replace_folder
from latemask.ground.precision import precision_name
from latemask.ground.processes import (
    decided_by_the_first,
    idle_devices,
    is_first,
    join,
    launcher,
    leave,
    machines,
    own_device,
    world_size,
)
from latemask.ground.sealed import damage, seal
from latemask.ground.signals import StopRequest
from latemask.model import build_model, model_like
from latemask.recipe import OBJECTIVES, load_recipe
from latemask.reporting import write_page
from latemask.run_folder import RunFolder, step_of
from latemask.starts import start, start_head
from latemask.text.tokenizer import copy_tokenizer
from latemask.training.branching import Branch
from latemask.training.calibration import measured_peak
from latemask.training.checkpoints import (
    checkpoint_to_resume,
    load_progress,
    load_weights,
    model_state,
    read_config,
    save_checkpoint,
)
from latemask.training.job import Job
from latemask.training.logs import Listener, LossWatch, Metrics, Progress
from latemask.training.loop import Loop, NonFinite, run_loop
from latemask.training.selecting import Selection
from latemask.training.trackers import TRACKERS

_NEW, _READY, _FINISHED = "new", "ready", "finished"
_MOST_REWINDS = 10
_LONG_STEP = 600  # seconds


@dataclass(frozen=True)
class Wishes:
    """How a run begins, and goes on where it cannot."""

    resume: bool
    allow_changes: bool
    overwrite: bool
    on_nan: str
    deadline: float
    branch: Branch | None = None


def run_job(job: Job, run: RunFolder, wishes: Wishes) -> None:
    """Do a job in a run folder, with all processes that were started for it."""
    join()
    with ExitStack() as held:
        decided_by_the_first(lambda: _take(run, wishes.resume, held))
        if decided_by_the_first(lambda: _begun(job, run, wishes)) == _READY:
            _train_to_the_end(job, run, wishes)  # with all that holds on to the other processes: gone before we part
    leave()


def _train_to_the_end(job: Job, run: RunFolder, wishes: Wishes) -> None:
    with StopRequest(wishes.deadline) as stop:
        loop = _trained(job, run, stop, wishes.on_nan)
        if loop.done < job.steps:
            decided_by_the_first(lambda: _say_how_to_go_on(job, run, loop.done, stop))
    _finish(job, run, loop)


# Begin


def _take(run: RunFolder, resume: bool, held: ExitStack) -> None:
    run.refuse_what_cannot_be(resume)
    held.enter_context(run.held())


def _begun(job: Job, run: RunFolder, wishes: Wishes) -> str:
    """Make the run folder ready, or see that it is."""
    if not wishes.resume:
        _start(job, run, wishes.overwrite, wishes.branch)
        reference = {"reference": job.reference.record} if job.reference else {}
        run.update(on_nan=wishes.on_nan, **reference)
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
    _refuse_another_part(job, run)
    reference = _same_reference(job, run, wishes.allow_changes)
    run.go_on(job.recipe, job.data.record, wishes.allow_changes)
    run.update(**reference)
    return _READY


def _same_reference(job: Job, run: RunFolder, allow_changes: bool) -> dict[str, Any]:
    """Return what is noted of the reference; refuse one that changed, as rows are chosen by its losses."""
    if job.reference is None:
        return {}
    now = job.reference.record
    if run.record.get("reference", now)["checksum"] == now["checksum"]:
        return {"reference": now}
    if not allow_changes:
        problem = f"its reference {now['folder']} is another model than when it began (--allow-changes, if you mean it)"
        raise UserError(f"cannot resume {run.path}: {problem}")
    return {"reference": now, "changes": [*run.record.get("changes", []), [f"the weights of {now['folder']}"]]}


def _refuse_another_part(job: Job, run: RunFolder) -> None:
    """Refuse to go back to late masks where the [MASK]s have moved to the input."""
    if job.recipe == load_recipe(run.recipe_file):
        return
    checkpoint = next((one for one in run.all_checkpoints() if damage(one) is None), None)
    if checkpoint is None:
        return
    there, wanted = read_config(checkpoint).get("objective"), job.recipe_after(step_of(checkpoint)).objective
    if there and there != wanted and OBJECTIVES[there].finish != wanted:
        raise UserError(
            f"{checkpoint.name} is past the step at which the [MASK]s moved to the input, and with this budget and "
            "train.finish_early they would move later: keep both, or branch from an earlier checkpoint"
        )


def _start(job: Job, run: RunFolder, overwrite: bool, branch: Branch | None) -> None:
    init = str(branch.checkpoint) if branch else job.recipe.encoder.init
    if overwrite and init and Path(init).resolve().is_relative_to(run.path.resolve()):
        raise UserError(f"the run starts from {init}, which --overwrite would remove; choose another --out")
    if branch:
        branch.refuse_what_does_not_fit(job)
        run.start(job.recipe, job.data.record, overwrite, branch.record(job), lambda new: branch.bring(job, new))
        return
    with nullcontext() if init else torch.device("meta"):  # without weights
        # Before the folder says that there is a run.
        model = build_model(job.recipe, job.data.vocabulary, job.new_pieces)
    run.start(job.recipe, job.data.record, overwrite)
    if init:
        run.update(head="kept" if model.has_trained_head else "new")
        head = "its head is kept" if model.has_trained_head else "it has no masked-language-modelling head: a new one"
        say(f"going on from {init}: {head}; learning rate {job.recipe.train.learning_rate:g} (train.learning_rate)")
        if job.new_pieces:
            say(f"{len(job.new_pieces):,} new pieces, started from the mean of the old ones that spelled each")


# Train


def _trained(job: Job, run: RunFolder, stop: StopRequest, on_nan: str) -> Loop:
    """Train to the end or to a stop; rewind where that was asked for."""
    tries = Counter[Path | None]()
    while True:  # until the end, a stop, or what cannot be helped; also where [MASK]s move to the input
        checkpoint, left_out = decided_by_the_first(lambda: _from_where(run))
        tries[checkpoint] += 1
        model = model_of(job, checkpoint)
        if checkpoint is None and not model.has_trained_head:
            _give_first_weights(job, run, model)
        loop = loop_of(job, model, checkpoint)
        _announce(job, run, loop)
        try:
            stops = train(job, run, loop, stop, left_out)
        except NonFinite as error:
            if on_nan == "stop":
                raise UserError(
                    f"{error}: the run has diverged, and that step was not applied. Lower train.learning_rate or raise "
                    "train.warmup, or leave such samples out with --on-nan rewind; checkpoints are in "
                    f"{run.checkpoints}"
                ) from None
            if tries[checkpoint] == _MOST_REWINDS:
                raise UserError(
                    f"{_MOST_REWINDS} times back to step {step_of(checkpoint) if checkpoint else 0:,}, and the "
                    "gradient is still no number: it is not the samples. Lower train.learning_rate or raise "
                    "train.warmup"
                ) from None
            _leave_out(job, run, error.step, left_out)
        else:
            if stops or loop.done == job.steps:
                return loop
            say("from here on the [MASK]s stand in the input")
        del loop, model


def _from_where(run: RunFolder) -> tuple[Path | None, list[int]]:
    """Return the checkpoint to go on from, and the batches that are left out."""
    checkpoint = checkpoint_to_resume(run) if run.all_checkpoints() or run.record.get("status") != _NEW else None
    run.forget_metrics_after(step_of(checkpoint) if checkpoint else -1)
    return checkpoint, list(run.record.get("left_out_batches", []))


def model_of(job: Job, checkpoint: Path | None) -> Any:
    """Return the model as it was when the checkpoint was written; a new one before its start."""
    torch.manual_seed(job.recipe.seed)
    recipe = job.recipe_after(step_of(checkpoint) if checkpoint else 0)
    if checkpoint and recipe.encoder.init:  # which may be gone; the checkpoint has all of it
        model = model_like(checkpoint, recipe)
    else:
        model = build_model(recipe, job.data.vocabulary, job.new_pieces)
    if checkpoint:
        load_weights(checkpoint, model, job.data.vocabulary.mask)
    return model


def _give_first_weights(job: Job, run: RunFolder, model: Any) -> None:
    """Start what is new, and note how: too little text is one reason why the recipe is not followed."""
    if job.recipe.encoder.init:
        if start_head(model, job.recipe, job.data) != "random":
            say("the new head starts with how frequent each token is in the data")
        return
    began = time.monotonic()
    name = start(model, job.recipe, job.data)
    seconds = time.monotonic() - began
    if is_first() and name != "random":
        run.update(start=name, start_seconds=round(seconds, 3))
        say(f"started with what was counted in the corpus, in {seconds:.0f} s")


def loop_of(job: Job, model: Any, checkpoint: Path | None = None) -> Loop:
    """Return the model in training, with all that the checkpoint knows besides weights."""
    loop = Loop(job.recipe, job.steps, model, own_device(), step_of(checkpoint) if checkpoint else 0)
    if job.reference is not None:
        loop.selection = Selection(job, loop.done, loop.device)
    if checkpoint:
        load_progress(checkpoint, loop, job.data.vocabulary.mask)
    return loop


def train(job: Job, run: RunFolder, loop: Loop, stop: StopRequest, left_out: Sequence[int]) -> bool:
    """Run the loop, and tell everybody who listens how it goes; return whether it was stopped."""
    validation = job.validation_samples()
    if validation is None:
        say("no validation: the held-out part is shorter than one row (prepare with a larger --validation)")
    peak = measured_peak(loop.device, loop.dtype or torch.float32) * world_size()
    seconds_at_peak = (job.flops(job.steps) - job.flops(loop.done)) / max(1, job.steps - loop.done) / peak
    if seconds_at_peak > _LONG_STEP:
        say(
            f"a step takes at least {seconds_at_peak / 60:,.0f} minutes here, even at the machine's peak: lower "
            "train.batch_size or length (latemask plan shows what a step costs)"
        )
    progress = Progress(loop.done, job.steps, job.batch_tokens, seconds_at_peak)
    listeners: list[Listener] = []
    if is_first():
        trackers = [TRACKERS[name](run, job.recipe) for name in job.recipe.train.report_to]
        listeners = [Metrics(run, job.spent), progress, LossWatch(job.steps), *trackers]

    def log(values: dict[str, float]) -> None:
        if is_first():
            run.refuse_if_gone()
        for listener in listeners:
            listener(loop.done, values)

    def save() -> None:
        decided_by_the_first(run.refuse_if_gone)
        save_checkpoint(loop, run)

    def is_stopped() -> bool:
        progress.move(loop.done)
        return stop.is_asked()

    def validate() -> dict[str, float]:
        assert validation is not None
        return {"eval_loss": loop.validate(job.validation_batches(validation, began))}

    began = loop.done
    try:
        if validation and not began and job.recipe.encoder.init:  # what the encoder can do already
            log(known := validate())
            if not math.isfinite(known["eval_loss"]):
                raise UserError(
                    f"before the first step the loss is {known['eval_loss']}: the weights at {job.recipe.encoder.init} "
                    "hold numbers that are none, or are too large for train.precision"
                )
        stops = run_loop(
            loop,
            job.batches(began, left_out),
            len(job.read),
            log=log,
            validate=validate if validation else None,
            save=save,
            is_stopped=is_stopped,
            until=job.until(began),
        )
        stop.largest_of_all.settled()
        return stops
    finally:
        for listener in listeners:
            listener.close()


def _leave_out(job: Job, run: RunFolder, step: int, left_out: Sequence[int]) -> None:
    """Note the batch of a step, so that this run and any that resumes it pass it by."""
    rows, first = job.recipe.rows_read, job.first_sample(step - 1)
    sample = int(job.train_samples(0, left_out).index_of(np.array([first]))[0])
    number = (sample - job.first_sample(0)) // rows
    say(f"step {step}: the gradient is no number; going back, and leaving out samples {sample} to {sample + rows - 1}")
    decided_by_the_first(lambda: run.update(left_out_batches=[*left_out, number]))


def _announce(job: Job, run: RunFolder, loop: Loop) -> None:
    if not is_first():
        return  # the others look at nothing that the first may be writing
    recipe, done = job.recipe, loop.done
    parameters = sum(weight.numel() for weight in loop.model.encoder.parameters())
    precision = precision_name(recipe.train.precision)
    precisions = run.record.get("precision") or (["fp32"] if done else [])
    if done and precisions[-1] != precision:
        say(f"the run was in {precisions[-1]} so far and goes on in {precision}")
    if idle := idle_devices():
        say(f"{idle} more GPU(s) of this machine could take part: torchrun --nproc-per-node gpu -m latemask pretrain …")
    if precisions[-1:] != [precision]:
        precisions = [*precisions, precision]
    several = {"processes": world_size(), "machines": machines(), "sharded": loop.is_sharded, "precision": precisions}
    run.update(status="running", steps=job.steps, encoder_parameters=parameters, **several)
    encoder, objective = recipe.encoder, job.recipe_after(done).objective
    selected = f"the best of {recipe.rows_read:,} rows each, " if job.reference else ""
    say(
        f"{objective} masking, {encoder.family} {encoder.layers} x {encoder.width} "
        f"({parameters / 1e6:.1f} M weights), {job.steps:,} steps of {job.batch_tokens:,} tokens, "
        f"{selected}{job.flops(job.steps):.3g} FLOPs, {precision}" + (f"; going on from step {done:,}" if done else "")
    )


# Stop, or finish


def _say_how_to_go_on(job: Job, run: RunFolder, step: int, stop: StopRequest) -> None:
    run.update(status="stopped", stopped_at=step)
    words = [*(launcher() if machines() > 1 else []), "latemask", "resume", str(run.path)]
    message = f"stopped at step {step:,} of {job.steps:,}, checkpoint saved. Go on with:\n  {shlex.join(words)}"
    if stop.received is None:
        raise TimeIsUp(message)
    raise Interrupted(message, stop.received)


def _finish(job: Job, run: RunFolder, loop: Loop) -> None:
    with loop.judged():
        weights = model_state(loop)  # all processes: each has its part
        decided_by_the_first(lambda: _finished(job, run, loop, weights))
    say(f"finished: {run.path}\nencoder:  {run.encoder}")
    if is_first():
        write_report(run)


def write_report(run: RunFolder) -> None:
    """Write the page about the run; the run is whole without it."""
    try:
        say(f"report:   {write_page(run.path)}")
    except Exception as error:  # whatever a drawing may run into
        say(f"no report was written: {error}")


def _finished(job: Job, run: RunFolder, loop: Loop, weights: Any) -> None:
    aside = run.path / ".model"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    copy_tokenizer(job.data.tokenizer_folder, aside, job.recipe.max_length)  # first: beside our config it would warn
    loop.model.save_pretrained(str(aside), state_dict=weights)
    seal(aside)
    replace_folder(aside, run.model)  # one may be there: a crash before the run was marked finished
    run.update(**job.spent(job.steps))
    write_stock(run.path, run.encoder, overwrite=True)
    run.update(status="finished")
