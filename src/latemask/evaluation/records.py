"""What identifies an encoder and a task in a record."""

from __future__ import annotations

import hashlib
from typing import Any

from latemask.evaluation.encoders import Encoder
from latemask.evaluation.metrics import constant_metrics, score_of
from latemask.evaluation.results import finite
from latemask.evaluation.tasks import Examples, Task


def encoder_record(encoder: Encoder) -> dict[str, Any]:
    """Return what identifies an encoder."""
    return {
        "name": encoder.name,
        "identity": encoder.checksum,
        "random": encoder.is_random,
        "type": encoder.config.model_type,
        "layers": encoder.config.num_hidden_layers,
        "width": encoder.width,
        "longest": encoder.longest,
    }


def task_record(task: Task) -> dict[str, Any]:
    """Return what identifies a task and its data, and what one scores on it without reading."""
    constant = constant_metrics(task)
    columns = [f"{name}={column}" for name, column in task.columns.items()]
    splits = [f"{split.checksum} {len(split)}" for split in task.splits.values()]
    identity = [task.kind, *task.labels, *columns, *splits]
    return {
        "name": task.name,
        "identity": hashlib.sha256("\n".join(identity).encode()).hexdigest(),
        "kind": task.kind,
        "labels": list(task.labels),
        "part": task.part,
        "data": {name: _split_record(task.splits[name]) for name in task.splits},
        "constant": {"score": score_of(task, constant), "metrics": finite(constant)},
        "headline": list(task.headline or task.metrics),
        "cut": {},
    }


def _split_record(examples: Examples) -> dict[str, Any]:
    """Return what identifies one split."""
    return {
        "source": examples.source,
        "sha256": examples.checksum,
        "rows": len(examples),
        "empty": examples.empty,
        "skipped": examples.skipped,
    }
