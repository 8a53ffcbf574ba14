"""The checkpoints of a run. One is there whole or not at all, and an old one goes only when a newer one is there.

It is written to checkpoints/.writing, sealed, and renamed; one that is damaged later is named and passed over. It holds
the model, the optimizer by the names of the weights (so that any number of processes, sharded or not, can go on), and
progress.json. Everything else about a step is a function of its number.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import remove_folder, replace_folder, write_json_atomically
from latemask.ground.processes import decided_by_the_first, rank, told_by_all, world_size
from latemask.ground.sealed import damage, seal
from latemask.recipe import OBJECTIVES
from latemask.run_folder import PROGRESS, RunFolder, step_of
from latemask.training.loop import Loop

_OPTIMIZER = "optimizer.pt"
_UNAVERAGED = "unaveraged.safetensors"
"""The weights that training goes on with, where model.safetensors is their average."""
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
# What a config says that pre-training does not compute with.
_BOOKKEEPING = (
    "architectures",
    "classifier_pooling",
    "dtype",
    "model_type",
    "objective",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
)


def save_checkpoint(loop: Loop, run: RunFolder) -> None:
    """Make a checkpoint of where the loop is; all processes take part."""
    aside = run.checkpoints / ".writing"
    optimizer = get_optimizer_state_dict(loop.model, loop.optimizer, options=_WHOLE)
    progress = {
        "step": loop.done,
        "loss_sums": told_by_all(loop.loss_sum.item()),
        "logged_at": loop.logged_at,
        "scaler": loop.scaler.state_dict(),
    }
    with loop.judged():
        model = model_state(loop)
        unaveraged = loop.average.held() if loop.average else None
        decided_by_the_first(lambda: _write(loop, run, aside, model, unaveraged, optimizer, progress))


def model_state(loop: Loop) -> dict[str, Any] | None:
    """Return the weights of a sharded model, put together; None where the model has them all."""
    return get_model_state_dict(loop.model, options=_WHOLE) if loop.is_sharded else None


def _write(
    loop: Loop,
    run: RunFolder,
    aside: Path,
    model: Any,
    unaveraged: dict[str, Any] | None,
    optimizer: dict[str, Any],
    progress: dict[str, Any],
) -> None:
    for leftover in (aside, *run.checkpoints.glob(".checkpoint-*.old")):  # of a writer that was interrupted
        shutil.rmtree(leftover, ignore_errors=True)
    loop.model.save_pretrained(str(aside), state_dict=model)
    if unaveraged:
        save_file(unaveraged, aside / _UNAVERAGED)
    torch.save(optimizer, aside / _OPTIMIZER)
    write_json_atomically(aside / PROGRESS, progress)
    run.sync_metrics()  # the lines up to here must not be lost when the checkpoint is not
    seal(aside)
    replace_folder(aside, run.checkpoints / f"checkpoint-{loop.done}")  # one may be there, of a run that was set back
    run.update(last_checkpoint=loop.done)
    found = run.all_checkpoints()
    kept = [checkpoint for checkpoint in found if step_of(checkpoint) <= loop.done]
    train = loop.recipe.train
    stay = {*kept[: train.keep_checkpoints], *(one for one in kept if step_of(one) in train.keep_at)}
    for checkpoint in found:
        if checkpoint not in stay:  # old, or passed over when it was set back
            remove_folder(checkpoint)


def load_weights(checkpoint: Path, model: Any, mask: int) -> None:
    """Give a model, not sharded yet, the weights of a checkpoint; `mask` is the mask token's id."""
    decided_by_the_first(lambda: refuse_another_model(checkpoint, model.config.to_dict()))
    if "head" not in read_config(checkpoint):
        model.take_head_of_before()
    model.load_state_dict(_weights_for(model, checkpoint, mask), assign=False)
    model.family.settle(model.encoder)


def read_config(checkpoint: Path) -> dict[str, Any]:
    """Return the config of a checkpoint's model."""
    return dict(json.loads((checkpoint / "config.json").read_text("utf-8")))


def _weights_for(model: Any, checkpoint: Path, mask: int, averaged: bool = False) -> dict[str, torch.Tensor]:
    """Return weights as a model takes them: where its objective follows another's, as that leaves them behind.

    Those that training goes on with or, where there is an average, that.
    """
    weights = load_file(checkpoint / "model.safetensors")
    if not averaged and (checkpoint / _UNAVERAGED).is_file():  # which has no buffers
        weights |= load_file(checkpoint / _UNAVERAGED)
    before = read_config(checkpoint).get("objective", model.config.objective)
    if before == model.config.objective:
        return weights
    words = next(name for name, weight in model.named_parameters() if weight is model.words)
    return OBJECTIVES[before].left_behind(weights, words, mask)


def load_progress(checkpoint: Path, loop: Loop, mask: int) -> None:
    """Go on where a checkpoint was written, with the settings that the recipe has now."""
    wanted = [{key: value for key, value in group.items() if key != "params"} for group in loop.optimizer.param_groups]
    state = torch.load(checkpoint / _OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
    there = {name for name, _ in loop.model.named_parameters()}
    state["state"] = {name: kept for name, kept in state["state"].items() if name in there}
    for group in state["param_groups"]:
        group.pop("initial_lr", None)  # of checkpoints that had a scheduler
        group["params"] = [name for name in group["params"] if name in there]
    set_optimizer_state_dict(loop.model, loop.optimizer, state, options=_WHOLE)
    for group, settings in zip(loop.optimizer.param_groups, wanted, strict=True):
        group.update(settings)
    if loop.average and (checkpoint / _UNAVERAGED).is_file():  # else a branch begins to average
        loop.average.load(_weights_for(loop.model, checkpoint, mask, averaged=True))
    progress = read_progress(checkpoint)
    sums = progress["loss_sums"]
    loop.loss_sum += sums[rank()] if len(sums) == world_size() else sum(sums) / len(sums)
    loop.logged_at = progress["logged_at"]
    if progress.get("scaler"):
        loop.scaler.load_state_dict(progress["scaler"])


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """Return how far a checkpoint is."""
    return dict(json.loads((checkpoint / PROGRESS).read_text("utf-8")))


def checkpoint_to_resume(run: RunFolder) -> Path | None:
    """Return the newest good checkpoint, or None where the run stopped before it wrote one."""
    found = run.all_checkpoints()
    for checkpoint in found:
        problem = damage(checkpoint)
        if problem is None and read_progress(checkpoint)["step"] != step_of(checkpoint):
            problem = f"{checkpoint} is of step {read_progress(checkpoint)['step']}, whatever its name"
        if problem is None:
            return checkpoint
        say(f"{problem}; passing over {checkpoint.name}")
    if found:
        raise UserError(f"no checkpoint in {run.checkpoints} can be read; --overwrite starts the run again")
    if last := run.record.get("last_checkpoint"):
        raise UserError(
            f"the checkpoints of {run.path} are gone (the last was of step {last}): put them back into "
            f"{run.checkpoints}, or start again with --overwrite"
        )
    say(f"{run.path} has no checkpoint yet: starting from the first step")
    return None


def refuse_another_model(checkpoint: Path, config: dict[str, Any]) -> None:
    """Refuse weights for a model that computes something else with them: most settings do not show in their shapes.

    A run's recipe.yaml is checked before; this sees what it does not say, such as a default that a newer latemask
    changed. Settings that only one side has are another version's of transformers.
    """
    before = dict(_settings(json.loads((checkpoint / "config.json").read_text("utf-8"))))
    now = dict(_settings(json.loads(json.dumps(config))))
    if changed := [f"{key} {before[key]} -> {now[key]}" for key in before if key in now and before[key] != now[key]]:
        raise UserError(
            f"{checkpoint} is of another model than its recipe makes now: {'; '.join(changed)}. Go on with the "
            "versions of latemask and transformers that began the run (run.json), or start again with --overwrite"
        )


def _settings(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        elif key not in _BOOKKEEPING:
            yield f"{prefix}{key}", value
