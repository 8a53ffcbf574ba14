"""What tells an encoder or a task from another, in records. Light: reports read it without loading a model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latemask.evaluation.floors import constant_floor
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import sha256_of

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.tasks import Task

RANDOM = "random:"  # before a recipe's or an encoder's name: its shape, never trained


def encoder_checksum(folder: Path) -> str:
    """Return one checksum for config, weights and tokenizer."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{printable(str(folder))}: no safetensors in it; latemask opens no pickled weights")
    files = [folder / "config.json", *weights, folder / "tokenizer.json"]
    digests = [sha256_of(file.resolve()) for file in files if file.is_file()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def encoder_record(encoder: Encoder) -> dict[str, Any]:
    """Return what identifies an encoder."""
    return {
        "name": encoder.name,
        "identity": encoder.checksum,
        "random": encoder.is_random,
        "architecture": encoder.architecture,
        "type": encoder.config.model_type,
        "layers": encoder.config.num_hidden_layers,
        "width": encoder.width,
        "longest": encoder.longest,
    }


def task_record(task: Task) -> dict[str, Any]:
    """Return what identifies a task and its data, and what one scores on it without reading."""
    columns = [f"{name}={column}" for name, column in task.columns.items()]
    splits = [f"{split.checksum} {len(split)}" for split in task.splits.values()]
    identity = [task.kind, *task.labels, *columns, *splits]
    data = {
        name: {"source": of.source, "sha256": of.checksum, "rows": len(of)}
        | {"empty": of.empty, "skipped": of.skipped, "dropped": of.dropped}
        for name, of in task.splits.items()
    }
    return {
        "name": task.name,
        "identity": hashlib.sha256("\n".join(identity).encode()).hexdigest(),
        "kind": task.kind,
        "labels": list(task.labels),
        "part": task.part,
        "data": data,
        "overlap": task.overlap,
        "constant": constant_floor(task),
        "headline": list(task.headline or task.metrics),
        "cut": {},
    }
