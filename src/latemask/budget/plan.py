"""What a run will cost, all of it, beside masked language modelling with the same encoder. Arithmetic, no torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any

from latemask.budget.flops import (
    count_weights,
    mlm_baseline,
    scoring_flops,
    sequence_flops,
    step_flops,
    update_flops,
)
from latemask.budget.machines import Machine
from latemask.budget.memory import Memory, step_memory
from latemask.ground.errors import UserError
from latemask.objectives import Flops, Weights
from latemask.recipe import MOST_STEPS, Recipe, batch_split, tree_of


@dataclass(frozen=True)
class Cost:
    """What a number of steps of a recipe cost."""

    weights: Weights
    sequence: Flops
    """Forward FLOPs of one sequence."""
    memory: Memory
    rows: int
    """Rows on a device at once."""
    update: float
    """FLOPs of one update by the optimizer; AdamW has none."""
    scoring: float
    """FLOPs of choosing the rows of a step; 0 where all that are read are trained on."""
    training: float
    """FLOPs of all steps: choosing, forward, backward, update."""
    validation: float
    """FLOPs of all validations."""

    @property
    def flops(self) -> float:
        """All FLOPs of the run."""
        return self.training + self.validation

    @classmethod
    def of(cls, recipe: Recipe, steps: int, machine: Machine | None, validation_rows: int) -> Cost:
        """Cost a recipe that is spelled out; where nobody said where it will run, on a CPU."""
        train, sequence = recipe.train, sequence_flops(recipe)
        rows, accumulation = batch_split(train, machine.devices if machine else 1)
        kind = {"half": machine.half, "on_cpu": machine.on_cpu} if machine else {}
        return cls(
            weights=count_weights(recipe),
            sequence=sequence,
            memory=max(
                (step_memory(recipe.at(end), rows, accumulates=accumulation > 1, **kind) for end in (0, 1)),
                key=lambda memory: memory.peak,
            ),
            rows=rows,
            update=update_flops(recipe),
            scoring=scoring_flops(recipe),
            training=steps * step_flops(recipe),
            validation=validations(recipe, steps) * validation_rows * sequence_flops(recipe.as_validated).forward,
        )


def validations(recipe: Recipe, steps: int) -> int:
    """Return how often a run validates: every so many steps, and at its end."""
    return math.ceil(steps / recipe.train.eval_every)


@dataclass(frozen=True)
class Plan:
    """A run before it runs."""

    recipe: Recipe
    steps: int
    run: Cost
    mlm: Cost
    """The same steps by masked language modelling at 15 %, same encoder and batch."""
    machine: Machine | None
    """None: nobody said where it will run, so there is no time."""
    start_seconds: float = 0.0
    """Until the first step; known only where it was measured."""
    corpus_tokens: int | None = None
    counting_seconds: float | None = None
    """About how long the start from the corpus takes; not in `start_seconds`, as the next run does not count again."""

    @classmethod
    def of(
        cls, recipe: Recipe, steps: int, machine: Machine | None, validation_rows: int | None = None, **known: Any
    ) -> Plan:
        """Plan a recipe that is spelled out; `validation_rows` where the data has fewer than the recipe asks for."""
        rows = recipe.train.eval_rows if validation_rows is None else validation_rows
        run, mlm = (Cost.of(which, steps, machine, rows) for which in (recipe, mlm_baseline(recipe)))
        return cls(recipe, steps, run, mlm, machine, **known)

    @property
    def tokens(self) -> int:
        """Tokens of text that the run is trained on, hidden ones included."""
        return self.steps * self.recipe.train.batch_size * self.recipe.length

    @property
    def tokens_read(self) -> int:
        """Tokens of text that it reads: more, where it selects."""
        return self.steps * self.recipe.rows_read * self.recipe.length

    @property
    def ratio(self) -> float:
        """FLOPs of a sequence, over those of MLM."""
        return self.run.sequence.training / self.mlm.sequence.training

    def hours(self, cost: Cost) -> float | None:
        """Return how long it takes, if it is known where."""
        return None if self.machine is None else self.machine.hours(cost.flops) + self.start_seconds / 3600

    def kwh(self, cost: Cost) -> float | None:
        """Return the energy it takes, if it is known what the machine draws."""
        hours, kilowatts = self.hours(cost), self.machine.kilowatts if self.machine else None
        return None if hours is None or kilowatts is None else hours * kilowatts

    def kg_co2(self, cost: Cost) -> float | None:
        """Return the CO2 of that energy."""
        energy = self.kwh(cost)
        return None if self.machine is None or energy is None else energy * self.machine.grams_a_kwh / 1000

    @property
    def seconds_a_step(self) -> float | None:
        """Return how long a step takes, if it is known where."""
        return None if self.machine is None else self.run.training / self.steps / self.machine.speed

    @property
    def memory_missing(self) -> float | None:
        """Bytes that a device has too few, if it is known that it has too few."""
        if self.machine is None or self.machine.memory is None:
            return None
        return max(self.run.memory.peak - self.machine.memory, 0) or None

    @property
    def passes(self) -> float | None:
        """How often the run reads the corpus, if it is known which."""
        return self.tokens_read / self.corpus_tokens if self.corpus_tokens else None

    def record(self) -> dict[str, Any]:
        """Return every number, for machines. FLOPs of a sequence are forward and backward."""
        run = self.run
        return {
            "recipe": tree_of(self.recipe),
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_read": self.tokens_read,
            "passes_over_data": self.passes,
            "parameters": {**asdict(run.weights), "encoder": run.weights.encoder, "total": run.weights.total},
            **{f"{part}_flops": flops for part, flops in run.sequence.parts.items()},
            "flops_per_sequence": run.sequence.training,
            "mlm_flops_per_sequence": self.mlm.sequence.training,
            "ratio": self.ratio,
            "ratio_without_pruning": sequence_flops(self.recipe, pruned=False).training / self.mlm.sequence.training,
            "update_flops": run.update,
            "scoring_flops": run.scoring,
            "training_flops": run.training,
            "validation_flops": run.validation,
            "total_flops": run.flops,
            "mlm_total_flops": self.mlm.flops,
            "memory_bytes": {**run.memory.parts, "peak": run.memory.peak},
            "mlm_memory_bytes": {**self.mlm.memory.parts, "peak": self.mlm.memory.peak},
            "memory_missing_bytes": self.memory_missing,
            "counting_seconds": self.counting_seconds,
            "time": self._time(),
        }

    def _time(self) -> dict[str, Any] | None:
        machine, hours, step = self.machine, self.hours(self.run), self.seconds_a_step
        if machine is None or hours is None or step is None:
            return None
        return {
            "seconds": hours * 3600,
            "hours": hours,
            "start_seconds": self.start_seconds,
            "validation_seconds": machine.hours(self.run.validation) * 3600,
            "seconds_per_step": step,
            "tokens_per_second": self.tokens / self.steps / step,
            "kwh": self.kwh(self.run),
            "kg_co2": self.kg_co2(self.run),
            "mlm_hours": self.hours(self.mlm),
            "mlm_kwh": self.kwh(self.mlm),
            "mlm_kg_co2": self.kg_co2(self.mlm),
            "assumed": asdict(machine),
        }


def steps_for_flops(recipe: Recipe, flops: float, what: str, validation_rows: int | None = None) -> int:
    """Return the most steps whose cost, validations included, stays within a budget; `what` names it in errors."""
    rows = recipe.train.eval_rows if validation_rows is None else validation_rows
    a_step = step_flops(recipe)
    a_validation = rows * sequence_flops(recipe.as_validated).forward

    def cost(steps: int) -> float:
        return steps * a_step + validations(recipe, steps) * a_validation

    most = flops / a_step
    if most > MOST_STEPS:
        raise UserError(f"{what} pays for {most:.3g} steps; {MOST_STEPS:,} at most")
    steps = bisect_right(range(1, int(most) + 1), flops, key=cost)
    if not steps:
        raise UserError(
            f"{what} does not pay for one step and a validation, which cost {cost(1):.3g} FLOPs; "
            "take a larger budget, a smaller recipe or a smaller train.batch_size"
        )
    return steps
