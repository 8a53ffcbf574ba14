"""What the study says, in numbers and figures, from the records in benchmarks/quality/ alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality_arms import ARMS, BASELINE, CHEAPER, CONTROL, EQUAL, MAIN, RECIPE, TASKS, Arm

from latemask.budget.flops import sequence_flops
from latemask.recipe import Recipe, load_recipe
from latemask.reporting import plots
from latemask.reporting.runs import Run
from latemask.reporting.scores import Contest, Scores, TaskScores
from latemask.reporting.verdict import Arm as ScoredArm
from latemask.run_folder import RunFolder
from latemask.sweeping import nested

RECORDS = Path(__file__).parent / "quality"
VALIDATION = "validation_loss"


@dataclass(frozen=True)
class Found:
    """All records of one arm."""

    arm: Arm
    records: list[dict[str, Any]]

    def of_task(self, task: str) -> list[float]:
        """Return every score on a task, in per cent."""
        return [100 * score for record in self.records for score in record["scores"].get(task, [])]

    @property
    def means(self) -> list[float]:
        """The mean over the arm's tasks, in per cent, of each pre-training seed with each fine-tuning seed."""
        return self.means_of(self.arm.tasks)

    def means_of(self, tasks: Sequence[str]) -> list[float]:
        """Return the same over some tasks."""
        return [mean for means in self.means_by_run(tasks) for mean in means]

    def means_by_run(self, tasks: Sequence[str]) -> list[list[float]]:
        """Return the same, of each pre-training run by itself."""
        per_run = [zip(*(record["scores"][task] for task in tasks), strict=True) for record in self.records]
        return [[100 * statistics.fmean(scores) for scores in run] for run in per_run]

    @property
    def flops(self) -> float:
        """FLOPs of one run."""
        return float(self.records[0]["flops"])

    @property
    def whole_flops(self) -> float:
        """The same if every position went through the last layer, which late masking spares and early could spare."""
        recipe = recipe_of(self.records[0])
        return self.flops * sequence_flops(recipe, pruned=False).training / sequence_flops(recipe).training

    @property
    def losses(self) -> list[float | None]:
        """The validation loss at the end of each run, with 15 % masked; None where nobody measured it."""
        return [record.get(VALIDATION) for record in self.records]

    @property
    def loss(self) -> float | None:
        """The same, median over seeds."""
        measured = [loss for loss in self.losses if loss is not None]
        return round(statistics.median(measured), 4) if len(measured) == len(self.records) else None


def read_records(folder: Path = RECORDS) -> dict[str, Found]:
    """Read every record, by arm."""
    found: dict[str, Found] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        arm = Arm(**{**record["arm"], "tasks": tuple(record["arm"]["tasks"])})
        found.setdefault(arm.name, Found(arm, [])).records.append(record)
    order = [arm.name for arm in ARMS]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def recipe_of(record: dict[str, Any]) -> Recipe:
    """Return the recipe that was run."""
    return load_recipe(RECIPE, nested(record["recipe"]))


def judged(found: dict[str, Found], arms: Sequence[Arm] = (CONTROL, *MAIN)) -> dict[str, Found]:
    """Return what was found of arms that were fine-tuned by the same protocol."""
    return {arm.name: found[arm.name] for arm in arms if arm.name in found}


def summary(found: dict[str, Found]) -> dict[str, Any]:
    """Return the numbers that matter; None where an arm was not run."""
    base, cheaper, equal = (found.get(name) for name in (BASELINE, CHEAPER, EQUAL))
    return {
        "late_flops_over_early": round(cheaper.flops / base.flops, 4) if base and cheaper else None,
        "the_same_without_pruning": round(cheaper.whole_flops / base.whole_flops, 4) if base and cheaper else None,
        "late_minus_early_at_that_budget": _difference(cheaper, base),
        "late_minus_early_at_equal_flops": _difference(equal, base),
        "tasks": list(TASKS),
        "pretraining_seeds": min((len(one.records) for one in (base, cheaper) if one), default=0),
        "arms": {name: _arm_summary(one) for name, one in judged(found).items()},
    }


def _difference(one: Found | None, other: Found | None) -> float | None:
    return round(statistics.median(one.means) - statistics.median(other.means), 2) if one and other else None


def _arm_summary(found: Found) -> dict[str, Any]:
    dots = found.means
    return {
        "flops": found.flops,
        "median": round(statistics.median(dots), 2),
        "lowest": round(min(dots), 2),
        "highest": round(max(dots), 2),
        "pretraining_seeds": len(found.records),
        "tasks": len(found.arm.tasks),
        "validation_loss": found.loss,
    }


# As `latemask compare` has it: its words and its figures are the study's


def as_compared(found: dict[str, Found]) -> tuple[list[ScoredArm], Scores]:
    """Return the arms that were pre-trained and fine-tuned, and their scores."""
    trained = {name: one for name, one in judged(found).items() if one.flops}
    arms = [
        ScoredArm(name, [_as_run(record) for record in one.records], one.means_by_run(one.arm.tasks))
        for name, one in trained.items()
    ]
    by_run = {
        run.name: {task: _scores(scores, one.arm) for task, scores in record["scores"].items()}
        for arm, one in zip(arms, trained.values(), strict=True)
        for run, record in zip(arm.runs, one.records, strict=True)
    }
    controls = {
        f"random:{RECIPE}": {
            task: _scores(scores, one.arm) for record in one.records for task, scores in record["scores"].items()
        }
        for one in judged(found, [CONTROL]).values()
    }
    return arms, Scores([Contest(task, task, "part", task) for task in TASKS], by_run, [], controls)


def _scores(scores: Sequence[float], arm: Arm) -> TaskScores:
    return TaskScores({seed: 100 * score for seed, score in enumerate(scores)}, arm.learning_rate)


def _as_run(record: dict[str, Any]) -> Run:
    name = f"{record['arm']['name']}-{record['seed']}"
    end = {"step": record["steps"], "seconds": record["seconds"], "eval_loss": record.get(VALIDATION)}
    finished = {"status": "finished", "data": {"fingerprint": record.get("data")}}
    return Run(name, RunFolder(Path(name)), recipe_of(record), finished, [end])


def draw(found: dict[str, Found], folder: Path) -> None:
    """Write the figures of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    arms, scores = as_compared(found)
    for figure in (*plots.scores(arms, scores), *plots.ends(arms)):
        figure.save(folder)
