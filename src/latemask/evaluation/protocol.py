"""How a fine-tuning is done: RoBERTa's recipe, with learning rates that suit the encoder's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from latemask.ground.errors import UserError

# Peak learning rates by the encoder's width: RoBERTa's middle ones for base and large; smaller encoders want more
# (google-research/bert's miniatures and ELECTRA-small: 1e-4 to 3e-4; ours were tried, docs/results.md).
_LEARNING_RATES = ((320, 3e-4), (640, 1e-4), (896, 3e-5), (math.inf, 1e-5))
_SMALL_TRAINING_SET = 10_000
_LONGEST = 512
_SHORTEST = 8  # two texts and what stands around them

SEEDS = 3  # the least that shows a spread
Select = Literal["best", "last"]
FineTuningPrecision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Protocol:
    """What all cells of a table share. Written into every record."""

    epochs: int = 10
    patience: int = 3
    """Epochs without a better dev score before a run stops."""
    select: Select = "best"
    """The epoch that is reported: the best on dev, or the last."""
    batch_size: int | None = None
    max_length: int | None = None
    max_train: int | None = None
    precision: FineTuningPrecision = "auto"
    """What training steps compute in; scores are always computed in fp32."""
    warmup: float = 0.06
    weight_decay: float = 0.1
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-6
    clip: float = 1.0

    def check(self) -> None:
        """Refuse what means nothing."""
        if self.select not in get_args(Select):
            raise UserError(f"--select {self.select}: best or last")
        if self.precision not in get_args(FineTuningPrecision):
            raise UserError(f"--precision {self.precision}: auto, fp32 or bf16")
        for name in ("epochs", "patience", "batch_size", "max_train"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: one at least")
        if self.max_length is not None and self.max_length < _SHORTEST:
            raise UserError(f"--max-length {self.max_length}: a text needs {_SHORTEST} tokens at least")

    def batch_for(self, rows: int) -> int:
        """Return the batch size for a training set: 16 for a small one, 32 otherwise."""
        return self.batch_size or (16 if rows < _SMALL_TRAINING_SET else 32)

    def length_for(self, longest: int) -> int:
        """Return the most tokens of a text for an encoder that takes `longest`."""
        if self.max_length is not None and self.max_length > longest:
            raise UserError(f"--max-length {self.max_length}: the encoder takes {longest} tokens at most")
        return self.max_length or min(longest, _LONGEST)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Say what differs from the protocol of a record."""
        mine = asdict(self)
        return [f"{name}: {other.get(name)} -> {mine[name]}" for name in mine if other.get(name) != mine[name]]


def default_learning_rate(width: int) -> float:
    """Return the learning rate that suits an encoder's width."""
    return next(rate for limit, rate in _LEARNING_RATES if width < limit)


def checked_rates(given: Sequence[float] | None, width: int) -> list[float]:
    """Return the learning rates to try, each once."""
    rates = list(dict.fromkeys(given)) if given else [default_learning_rate(width)]
    for rate in rates:
        if not 0 < rate < math.inf:
            raise UserError(f"--lrs {rate}: a learning rate is positive")
    return rates


def checked_protocol(
    epochs: int,
    patience: int,
    select: Select,
    batch_size: int | None,
    max_length: int | None,
    max_train: int | None,
    precision: FineTuningPrecision,
) -> Protocol:
    """Return the protocol that the options mean."""
    protocol = Protocol(epochs, patience, select, batch_size, max_length, max_train, precision)
    protocol.check()
    return protocol


def refuse_seeds(seeds: int) -> None:
    """There must be one at least."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: one at least")
