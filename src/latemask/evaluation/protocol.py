"""How a fine-tuning is done: RoBERTa's recipe, with a learning rate that suits the method and the encoder's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from latemask.evaluation.methods import METHODS
from latemask.ground.errors import UserError
from latemask.ground.typed import built, defaults_of

_SMALL_TRAINING_SET = 10_000
_LONGEST = 512
_SHORTEST = 8  # two texts and what stands around them
_BELOW = {"warmup": 1, "weight_decay": math.inf, "adam_beta2": 1, "adam_epsilon": math.inf, "clip": math.inf}

SEEDS = 3  # the least that shows a spread
Select = Literal["best", "last"]
ClassWeights = Literal["none", "balanced"]
FineTuningPrecision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Protocol:
    """How fine-tuning is done: the same for all trials of a table, and written into every record."""

    epochs: int = 10
    """Most passes over the training rows."""
    patience: int = 3
    """Epochs without a better dev score before a run stops."""
    select: Select = "best"
    """Epoch that is reported: best on dev, or last."""
    batch_size: int | None = None
    """Rows a step; by default 16 below 10,000 training rows and 32 above."""
    max_length: int | None = None
    """Tokens of a text, longer ones are cut; by default what the encoder takes, 512 at most."""
    max_train: int | None = None
    """Train on so many rows of a task only, chosen at random, for a quick look."""
    precision: FineTuningPrecision = "auto"
    """What training computes in; auto takes bf16 on a GPU or CPU that has it. Scores are in fp32."""
    class_weights: ClassWeights = "none"
    """What a class counts in the loss: balanced weighs rare ones more, so that all classes count the same."""
    warmup: float = 0.06
    """Share of all steps in which the learning rate rises; it falls in the others."""
    weight_decay: float = 0.1
    """AdamW's weight decay."""
    adam_beta2: float = 0.98
    """AdamW's second beta."""
    adam_epsilon: float = 1e-6
    """AdamW's epsilon."""
    clip: float = 1.0
    """Largest norm of a step's gradient; 0 clips nothing."""
    checkpointing: bool = False
    """Keep no activations of a layer for the backward pass, and compute them again there: less memory, more time."""
    method: str = field(default="full", metadata={"table": METHODS, "options": "options"})
    """How the model is changed to be trained: full trains every weight of encoder and head."""
    options: Any = None
    """The method's own: a mapping, or its dataclass; by default its defaults."""

    def check(self) -> None:
        """Refuse what means nothing."""
        assert self.of_method is not None  # refuses a name that is not in the table, and options that it does not have
        if self.checkpointing and not METHODS[self.method].checkpoints:
            raise UserError(f"--checkpointing: {self.method} keeps no activations anyway; leave it away")
        if self.select not in get_args(Select):
            raise UserError(f"--select {self.select}: best or last")
        if self.precision not in get_args(FineTuningPrecision):
            raise UserError(f"--precision {self.precision}: auto, fp32 or bf16")
        if self.class_weights not in get_args(ClassWeights):
            raise UserError(f"--class-weights {self.class_weights}: none or balanced")
        for name in ("epochs", "patience", "batch_size", "max_train"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: one at least")
        if self.max_length is not None and self.max_length < _SHORTEST:
            raise UserError(f"--max-length {self.max_length}: a text needs {_SHORTEST} tokens at least")
        for name, limit in _BELOW.items():
            if not 0 <= (value := getattr(self, name)) < limit:
                most = "" if limit == math.inf else f" and below {limit:g}"
                raise UserError(f"--{name.replace('_', '-')} {value}: 0 at least{most}")

    @property
    def of_method(self) -> Any:
        """The method's options, as its dataclass."""
        kind, given = METHODS[self.method].Options, self.options
        return given if isinstance(given, kind) else built(kind, given or {}, "options", f"{self.method}.")

    @property
    def options_in_words(self) -> str:
        """The method's options as tables and cards show them: `rank 8, alpha 16.0`; what is left open is not shown."""
        given = asdict(self.of_method).items()
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)

    def as_record(self) -> dict[str, Any]:
        """Return all of it, with the method's options spelled out."""
        return asdict(replace(self, options=self.of_method))

    def batch_for(self, rows: int) -> int:
        """Return the batch size for a training set: 16 for a small one, 32 otherwise."""
        return self.batch_size or (16 if rows < _SMALL_TRAINING_SET else 32)

    def steps_for(self, rows: int) -> int:
        """Return the steps of a run over a training set, if it does not stop early."""
        return -(-rows // self.batch_for(rows)) * self.epochs

    def length_for(self, longest: int) -> int:
        """Return the most tokens of a text for an encoder that takes `longest`."""
        if self.max_length is not None and self.max_length > longest:
            raise UserError(f"--max-length {self.max_length}: the encoder takes {longest} tokens at most")
        return self.max_length or min(longest, _LONGEST)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Say what differs from the protocol of a record; what an older one does not say is the default."""
        mine, theirs = self.as_record(), {**ROBERTA.as_record(), **other}
        found = [(name, theirs[name], mine[name]) for name in mine if name != "options"]
        if mine["method"] == theirs["method"]:  # options of two methods have nothing to do with each other
            before = {**defaults_of(METHODS[self.method].Options), **theirs["options"]}
            found += [(f"{self.method}.{name}", before[name], now) for name, now in mine["options"].items()]
        return [f"{name}: {before} -> {now}" for name, before, now in found if before != now]

    def rates(self, given: Sequence[float] | None, width: int) -> list[float]:
        """Return the learning rates to try, each once; by default the method's for the encoder's width."""
        rates = list(dict.fromkeys(given)) if given else [METHODS[self.method].learning_rate(width)]
        for rate in rates:
            if not 0 < rate < math.inf:
                raise UserError(f"--lrs {rate}: a learning rate is positive")
        return rates


ROBERTA = Protocol()


def refuse_seeds(seeds: int) -> None:
    """There must be one at least."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: one at least")
