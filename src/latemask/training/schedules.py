"""Learning-rate schedules: step → share of the peak rate. A new one is one function.

A schedule gets the number of steps done, of warm-up steps and of all steps. It is a pure function, so that a resumed
run needs no state of it.
"""

from __future__ import annotations

from latemask.recipe import SCHEDULES as SCHEDULES


@SCHEDULES.register("linear")
def linear(done: int, warmup: int, steps: int) -> float:
    """Rise from 0 in the warm-up, then fall to 0."""
    if done < warmup:
        return done / max(1, warmup)
    return max(0.0, (steps - done) / max(1, steps - warmup))
