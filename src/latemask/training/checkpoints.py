"""The checkpoints of a run. One is there whole or not at all, and an old one goes only when a newer one is there.

It is written to checkpoints/.writing, sealed, and renamed; one that is damaged later is named and passed over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import remove_folder, replace_folder, write_json_atomically
from latemask.ground.sealed import damage, seal
from latemask.run_folder import RunFolder, step_of

PROGRESS = "progress.json"
# What a config says that pre-training does not compute with.
_BOOKKEEPING = (
    "architectures",
    "classifier_pooling",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
)


class CheckpointWriter:
    """Takes what the Trainer writes, and makes a checkpoint of it."""

    def __init__(self, run: RunFolder, keep: int):
        self.run, self.keep = run, keep

    @property
    def aside(self) -> Path:
        """Where the Trainer writes; a folder that no reader looks at."""
        return self.run.checkpoints / ".writing"

    def begin(self) -> None:
        """Clear what an interrupted writer left."""
        for leftover in (self.aside, *self.run.checkpoints.glob(".checkpoint-*.old")):
            shutil.rmtree(leftover, ignore_errors=True)

    def commit(self, step: int, progress: dict[str, Any]) -> None:
        """Make what was written the newest checkpoint; `progress` is what the Trainer does not save."""
        written, target = self.aside / f"checkpoint-{step}", self.run.checkpoints / f"checkpoint-{step}"
        write_json_atomically(written / PROGRESS, {"step": step, **progress})
        self.run.sync_metrics()  # the lines up to here must not be lost when the checkpoint is not
        seal(written)
        replace_folder(written, target)  # one may be there, of a run that was set back
        self.run.update(last_checkpoint=step)
        found = self.run.all_checkpoints()
        kept = [checkpoint for checkpoint in found if step_of(checkpoint) <= step][: self.keep]
        for checkpoint in found:
            if checkpoint not in kept:  # old, or passed over when the run was set back
                remove_folder(checkpoint)
        shutil.rmtree(self.aside)


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """Return what `commit` was told."""
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
