"""Three small runs made on the spot, and results that say they are of their encoders."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from latemask import pretrain
from latemask.evaluation.identity import encoder_checksum
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results, Trial
from latemask.recipe import BudgetRecipe, MaskRecipe, TrainRecipe
from latemask.run_folder import RunFolder
from tests.conftest import tiny_recipe

STEPS = 6


@dataclass(frozen=True)
class Runs:
    late: Path
    early: Path
    fifteen: Path

    @property
    def all(self) -> list[Path]:
        return [self.late, self.early, self.fifteen]


@pytest.fixture(scope="session")
def runs(data, tmp_path_factory) -> Runs:
    """Late at 40 %, early at 40 % and early at 15 %."""
    folder = tmp_path_factory.mktemp("runs")
    train = TrainRecipe(batch_size=8, log_every=1, eval_every=2, save_every=100, learning_rate=3e-3, eval_rows=8)
    late = tiny_recipe(train=train, budget=BudgetRecipe(steps=STEPS))
    recipes = {
        "late": late,
        "early": replace(late, objective="early"),
        "fifteen": replace(late, objective="early", mask=MaskRecipe(rate=0.15)),
    }
    for name, recipe in recipes.items():
        pretrain(recipe, data=data.folder, out=folder / name)
    return Runs(*(folder / name for name in recipes))


CONTROL = "random:<tiny>"


def write_results(path: Path, scores: dict[Path | str, dict[str, list[float]]], **protocol) -> Path:
    """Write results as `latemask glue` does: run, or CONTROL → task → one score for each seed."""
    results = Results(path, Protocol(**protocol))
    tasks = dict.fromkeys(task for found in scores.values() for task in found)
    for task in tasks:
        results.tasks[task] = {
            "name": task,
            "identity": f"the data of {task}",
            "part": "",
            "constant": {"score": 0.5, "metrics": {}},
            "headline": ["accuracy"],
            "cut": {},
        }
    for run, found in scores.items():
        checksum = "drawn" if run == CONTROL else encoder_checksum(RunFolder(run).encoder)
        results.encoders[str(run)] = {"name": str(run), "identity": checksum, "random": run == CONTROL}
        results.trials += [
            Trial(str(run), task, 1e-4, seed, score, {"accuracy": score}, 1, False)
            for task, values in found.items()
            for seed, score in enumerate(values)
        ]
    results.write()
    return path


@pytest.fixture
def results(runs, tmp_path) -> Path:
    """Late a little better than both others, on two tasks with two seeds."""
    return write_results(
        tmp_path / "results.json",
        {
            runs.late: {"sst2": [0.80, 0.82], "mrpc": [0.70, 0.72]},
            runs.early: {"sst2": [0.79, 0.81], "mrpc": [0.69, 0.71]},
            runs.fifteen: {"sst2": [0.70, 0.71], "mrpc": [0.60, 0.61]},
        },
    )
