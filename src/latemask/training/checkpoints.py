"""Which checkpoint a run goes on from: the newest that can be read. One that cannot is named and passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.trainer_pt_utils import safe_globals

from latemask.console import say
from latemask.errors import UserError
from latemask.run_folder import RunFolder


def checkpoint_to_resume(run: RunFolder) -> Path | None:
    """Return the newest good checkpoint, or None where the run stopped before it wrote one."""
    found = run.all_checkpoints()
    for checkpoint in found:
        problem = _problem(checkpoint)
        if problem is None:
            return checkpoint
        say(f"{problem}; passing over {checkpoint.name}")
    if found:
        raise UserError(f"no checkpoint in {run.checkpoints} can be read; --overwrite starts the run again")
    say(f"{run.path} has no checkpoint yet: starting from the first step")
    return None


def _problem(checkpoint: Path) -> str | None:
    for name, read in _READERS.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{path} is missing"
        try:
            read(path)
        except Exception:  # whatever a reader says of garbage, it is garbage
            return f"{path} is damaged"
    return None


def _read_json(path: Path) -> None:
    json.loads(path.read_text("utf-8"))


def _read_safetensors(path: Path) -> None:
    with safe_open(path, "pt") as file:
        file.keys()


def _read_torch(path: Path) -> None:
    with safe_globals():  # the numpy types in a generator's state; still no arbitrary pickle
        torch.load(path, map_location="cpu", weights_only=True)


_READERS: dict[str, Callable[[Path], None]] = {
    "trainer_state.json": _read_json,  # the Trainer writes it last
    "config.json": _read_json,
    "model.safetensors": _read_safetensors,
    "optimizer.pt": _read_torch,
    "scheduler.pt": _read_torch,
    "rng_state.pth": _read_torch,
}
