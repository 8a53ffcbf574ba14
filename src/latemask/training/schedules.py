"""Learning-rate schedules: step → share of the peak rate. A new one is one function.

A schedule gets the number of steps done and the phases of the run. It is a pure function, so that a resumed run needs
no state of it, and a branch may have another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from latemask.ground.errors import UserError
from latemask.recipe import SCHEDULES as SCHEDULES
from latemask.recipe import TrainRecipe


@dataclass(frozen=True)
class Phases:
    """The phases of a run, in steps: it warms up first and decays last."""

    warmup: int
    decay: int
    steps: int

    @classmethod
    def of(cls, train: TrainRecipe, steps: int) -> Phases:
        """Turn shares into steps; what is 1 or more is steps already."""
        warmup, decay = (round(given if given >= 1 else given * steps) for given in (train.warmup, train.decay))
        if warmup > steps:
            raise UserError(f"train.warmup is {warmup:,} steps, and the run has {steps:,}")
        if train.schedule == "wsd" and warmup + decay > steps:
            raise UserError(
                f"train.warmup and train.decay are {warmup:,} and {decay:,} steps, and the run has {steps:,}: nothing "
                "is left between them; lower one of them"
            )
        return cls(warmup, decay, steps)

    def warmed_up(self, done: int) -> float:
        """Return the share of the peak in the warm-up, 1 after it."""
        return done / self.warmup if done < self.warmup else 1.0

    def left(self, done: int) -> float:
        """Return which share of the steps after the warm-up is left."""
        return max(0.0, (self.steps - done) / max(1, self.steps - self.warmup))


@SCHEDULES.register("linear")
def linear(done: int, phases: Phases) -> float:
    """Rise from 0 in the warm-up, then fall to 0 in a straight line."""
    return phases.warmed_up(done) if done < phases.warmup else phases.left(done)


@SCHEDULES.register("cosine")
def cosine(done: int, phases: Phases) -> float:
    """Rise from 0 in the warm-up, then fall to 0 along half a cosine."""
    if done < phases.warmup:
        return phases.warmed_up(done)
    return 0.5 * (1 - math.cos(math.pi * phases.left(done)))


@SCHEDULES.register("wsd")
def wsd(done: int, phases: Phases) -> float:
    """Warm up, stay, decay: the stable phase may be of any length, so that a run can be branched and decayed anywhere.

    It falls as 1 - sqrt, by which it ends a little lower than by a straight line (Hägele et al. 2024; ModernBERT too).
    """
    decayed = done - (phases.steps - phases.decay)
    if done < phases.warmup or decayed <= 0:
        return phases.warmed_up(done)
    return max(0.0, 1 - math.sqrt(decayed / phases.decay))
