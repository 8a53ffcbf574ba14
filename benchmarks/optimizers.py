"""Muon or AdamW? Loss at equal FLOPs (each one's own counted) and at equal seconds, for small and large batches.

python benchmarks/optimizers.py --data data --work optimizers     (data: the study's, --vocab-size 12544)
python benchmarks/optimizers.py --only-time                       (seconds of a step, in turns, on an idle machine)

Every arm's rate is the best of three by its first seed, and of more while the best is at their edge; its other seeds
follow. One thread a run; a run that was stopped goes on. Records are in benchmarks/optimizers.json; a table and a JSON
object come last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latemask.budget.flops import planned_steps, step_flops
from latemask.ground.files import write_json_atomically
from latemask.recipe import BudgetRecipe, Recipe, load_recipe, spelled_out
from latemask.run_folder import RunFolder

RECORDS = Path(__file__).parent / "optimizers.json"
OPTIMIZERS, BATCHES, RATES = ("adamw", "muon"), (16, 64), (1e-3, 2e-3, 4e-3)
NEARLY = 0.05  # seconds and FLOPs that differ by less have the same runs
_WRITING = threading.Lock()
FLOPS = 3.75e13  # a sixteenth of docs/study.md's C


def recipe_of(optimizer: str, batch: int) -> Recipe:
    recipe = load_recipe("mini-base", {"train": {"optimizer": optimizer, "batch_size": batch}})
    return spelled_out(replace(recipe, budget=BudgetRecipe(flops=FLOPS)), 12544)


@dataclass(frozen=True)
class Arm:
    """What is compared; `steps` where it is not what the FLOPs pay for."""

    optimizer: str
    batch: int
    rate: float
    seed: int
    steps: int | None = None

    @property
    def name(self) -> str:
        end = f"-{self.steps}" if self.steps else ""
        return f"{self.optimizer}-{self.batch}-{self.rate:g}-{self.seed}{end}"

    @property
    def planned(self) -> int:
        return self.steps or planned_steps(recipe_of(self.optimizer, self.batch))


def known() -> dict[str, Any]:
    return json.loads(RECORDS.read_text("utf-8")) if RECORDS.is_file() else {"seconds": {}, "runs": {}}


def run(arm: Arm, given: Any) -> float:
    """Pre-train, unless there is a record, and return the validation loss at the end."""
    if arm.name in known()["runs"]:
        return known()["runs"][arm.name]["loss"]
    folder = RunFolder(given.work / arm.name)
    words = ["pretrain", "mini-base", "--data", given.data, "--out", folder.path, "--seed", arm.seed]
    words += ["--max-steps", arm.planned, "--train.optimizer", arm.optimizer, "--train.batch-size", arm.batch]
    words += ["--train.learning-rate", arm.rate, "--train.report-to", ""]
    words += ["--resume"] if folder.recipe_file.is_file() else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    given.work.mkdir(parents=True, exist_ok=True)
    with (given.work / f"{arm.name}.log").open("ab") as log:
        command = [sys.executable, "-m", "latemask", *map(str, words)]
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)
    loss = [row["eval_loss"] for row in folder.metrics() if "eval_loss" in row][-1]
    record = {"loss": loss, "steps": arm.planned, "flops": folder.record["flops"], "seconds_equal": bool(arm.steps)}
    with _WRITING:
        found = known()
        found["runs"][arm.name] = {**record, "precision": folder.record["precision"], "commit": given.commit}
        write_json_atomically(RECORDS, found)
    print(f"{arm.name}: {loss:.4f} after {arm.planned:,} steps", file=sys.stderr, flush=True)
    return loss


def step_seconds(repeats: int) -> dict[str, float]:
    """Return the seconds of a step with Muon over those with AdamW, by batch; two threads, in turns."""
    import speed

    found = {}
    for batch in BATCHES:
        recipes = {name: recipe_of(name, batch) for name in OPTIMIZERS}
        group = [speed.Contender(name, "loop", recipe) for name, recipe in recipes.items()]
        seconds = speed.alternate(group, repeats, 2, lambda line: print(line, file=sys.stderr, flush=True)).seconds
        found[str(batch)] = speed.ratio(seconds["muon"], seconds["adamw"])
    return found


def best_rate(batch: int, optimizer: str, given: Any) -> float:
    """Return the rate with the lowest loss; while it is the lowest or highest tried, try one beyond."""
    losses = {rate: run(Arm(optimizer, batch, rate, 0), given) for rate in RATES}
    while (best := min(losses, key=lambda rate: losses[rate])) in (min(losses), max(losses)):
        beyond = best * 2 if best == max(losses) else best / 2
        losses[beyond] = run(Arm(optimizer, batch, beyond, 0), given)
    return best


def compare(given: Any) -> list[dict[str, Any]]:
    """Run everything that has no record; return a row for every optimizer, batch and measure."""
    pairs = list(itertools.product(BATCHES, OPTIMIZERS))
    with ThreadPoolExecutor(given.jobs) as pool:
        rates = pool.map(lambda pair: best_rate(*pair, given), pairs)
        arms = {
            (batch, name): [Arm(name, batch, rate, seed) for seed in range(given.seeds)]
            for (batch, name), rate in zip(pairs, rates, strict=True)
        }
        timed = known()["seconds"]
        for batch in BATCHES if timed else ():
            steps = round(arms[batch, "adamw"][0].planned / timed[str(batch)]["median"])
            if abs(steps / arms[batch, "muon"][0].planned - 1) > NEARLY:
                arms[batch, "muon, equal seconds"] = [replace(arm, steps=steps) for arm in arms[batch, "muon"]]
        every = [arm for found in arms.values() for arm in found]
        losses = dict(zip(every, pool.map(lambda arm: run(arm, given), every), strict=True))
    return [
        {
            "batch": batch,
            "arm": name,
            "rate": found[0].rate,
            "steps": found[0].planned,
            "flops": found[0].planned * step_flops(recipe_of(found[0].optimizer, batch)),
            "losses": [round(losses[arm], 3) for arm in found],
            "mean": round(statistics.mean(losses[arm] for arm in found), 3),
        }
        for (batch, name), found in sorted(arms.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, default=Path("optimizers"), help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    parser.add_argument("--only-time", action="store_true", help="only time steps")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False)
    given.commit = commit.stdout.strip()
    if given.only_time:
        found = known()
        found["seconds"] = step_seconds(given.repeats)
        write_json_atomically(RECORDS, found)
        print(json.dumps(found["seconds"]))
        return
    rows = compare(given)
    print("| batch | | rate | steps | FLOPs | loss, by seed |\n|---|---|---|---|---|---|")
    for row in rows:
        losses = ", ".join(f"{loss:.3f}" for loss in row["losses"])
        cells = [row["batch"], row["arm"], f"{row['rate']:g}", f"{row['steps']:,}", f"{row['flops']:.3g}", losses]
        print(f"| {' | '.join(map(str, cells))} |")
    print(json.dumps({"rows": rows, "seconds_muon_over_adamw": known()["seconds"]}))


if __name__ == "__main__":
    main()
