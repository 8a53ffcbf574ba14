"""The arms of the study: what is pre-trained, with how much, and on what it is judged. docs/study.md says why.

Written down before the runs. An arm that has a record is not changed any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNIT = 3.0e14  # FLOPs that shares are of
C = 2 * UNIT  # FLOPs of the baseline
RECIPE = "mini-base"
VOCABULARY = 12_544
TASKS = ("sst2", "mnli", "qqp", "mrpc", "stsb", "cola", "rte", "qnli")
# Rows that are used of GLUE's files, drawn once: at most so many of a task.
ROWS = {"train": 3_000, "dev": 1_000}
# What suits an encoder that was pre-trained, and one that was not: docs/study.md.
FINETUNING = {"seeds": 3, "epochs": 2, "select": "last"}
LEARNING_RATE, CONTROL_LEARNING_RATE = 1e-3, 3e-4


@dataclass(frozen=True)
class Arm:
    """A way of pre-training: what differs from recipes/mini-base, its share of UNIT, and its tasks.

    With no share it is not pre-trained at all.
    """

    name: str
    keys: dict[str, Any]
    share: float = 1.0
    seeds: int = 1
    tasks: tuple[str, ...] = TASKS
    learning_rate: float = CONTROL_LEARNING_RATE
    """Of the fine-tuning; by default the control's, which was that of the first protocol."""


EARLY = {"objective": "early", "mask.rate": 0.15}
LATE = {"objective": "late", "mask.rate": 0.4}
_TUNING = 0.25


def _tuning(name: str, keys: dict[str, Any], **changes: Any) -> Arm:
    words = "-".join(f"{key.split('.')[-1].replace('_', '')}{value:g}" for key, value in changes.items())
    return Arm(f"tune-{name}-{words}", {**keys, **changes}, share=_TUNING, tasks=())


def _rates(rate: float, batch: int) -> dict[str, Any]:
    return {"train.learning_rate": rate, "train.batch_size": batch}


# Learning rate and batch, for the baseline as for ours, at a quarter of UNIT. The last was added when
# batches of 16 had turned out as good as those of 8 in half the steps.
TUNING = [
    _tuning(name, keys, **_rates(rate, batch))
    for rate, batch in ((1e-3, 8), (5e-4, 8), (2e-3, 8), (1e-3, 16), (2e-3, 16))
    for name, keys in (("early", EARLY), ("late", LATE))
]
# What the tuning chose, pinned: mini-base itself may get other defaults.
CHOSEN = _rates(1e-3, 8)
# What the runs of 40 % late cost when they see as many tokens as the baseline does: 0.72 of it.
_CHEAPER = 0.72
# The first look, at half of C and by the first protocol (docs/study.md).
FIRST = [
    Arm("first-early-15", {**EARLY, **CHOSEN}),
    Arm("first-late-40", {**LATE, **CHOSEN}, share=_CHEAPER),
]
# The control: what the tasks' own rows teach an encoder that was never trained. Its first weights are drawn by the seed
# of the fine-tuning.
CONTROL = Arm("untrained", {}, share=0.0)
# The batch is the larger of the two that tied: these runs are eight times as long as those of the tuning.
LONGER = _rates(1e-3, 16)


def _judged(name: str, keys: dict[str, Any], share: float = 1.0, seeds: int = 1) -> Arm:
    return Arm(name, {**keys, **LONGER}, share=share * C / UNIT, seeds=seeds, learning_rate=LEARNING_RATE)


# Many short runs, judged by validation loss: where and how the [MASK]s join, and how much is hidden.
def _short(name: str, keys: dict[str, Any], **changes: Any) -> Arm:
    return Arm(f"short-{name}", {**keys, **LONGER, **changes}, share=_TUNING, tasks=())


_INSIDE = {**LATE, "join.kind": "inside", "join.layers": 2}
_JOINS = (("inside", 2), ("inside", 1), ("inside", 4), ("self", 1), ("self", 2), ("cross", 1), ("cross-only", 1))
SHORT = [
    *(_short(f"{kind}-{layers}", LATE, **{"join.kind": kind, "join.layers": layers}) for kind, layers in _JOINS),
    _short("early-15", EARLY),
    _short("early-40", EARLY, **{"mask.rate": 0.4}),
    _short("late-30", _INSIDE, **{"mask.rate": 0.3}),
    _short("late-50", _INSIDE, **{"mask.rate": 0.5}),
    _short("late-50-20", _INSIDE, **{"mask.rate": 0.5, "mask.rate_end": 0.2}),
    _short("late-30-drop-30", _INSIDE, **{"mask.rate": 0.3, "mask.drop": 0.3}),
]
MAIN = [
    _judged("early-15", EARLY, seeds=2),
    _judged("late-40", LATE, share=_CHEAPER, seeds=2),
    _judged("late-40-whole", LATE),
    _judged("early-40", {**EARLY, "mask.rate": 0.4}),
]
ARMS = [*TUNING, *FIRST, CONTROL, *MAIN, *SHORT]
BASELINE, CHEAPER, EQUAL = (arm.name for arm in MAIN[:3])
