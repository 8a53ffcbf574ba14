"""`latemask sweep`: a small grid over recipe keys x seeds, every run with the same FLOPs; then the page that compares.

A sweep file says where every run starts from and what differs:

    recipe: small
    data: data
    out: sweeps/rate
    flops: 2.0e+13
    seeds: [0, 1]
    grid: {mask.rate: [0.3, 0.4, 0.5]}
    also: [{objective: early, mask.rate: 0.15}]
"""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from latemask.budget.flops import planned_steps
from latemask.ground.console import printable, say
from latemask.ground.errors import TimeIsUp, UserError, nearest
from latemask.ground.files import read_yaml, write_text_atomically
from latemask.ground.signals import deadline
from latemask.recipe import BudgetRecipe, Recipe, check_recipe, dump_recipe, flat, load_recipe
from latemask.references import with_reference
from latemask.reporting import compare
from latemask.run_folder import RunFolder
from latemask.text import Mixture
from latemask.training.pretraining import pretrain

_KEYS = ("recipe", "data", "out", "flops", "seeds", "grid", "also")
_MOST_RUNS = 1000

Launcher = Literal["plain", "torchrun", "slurm"]


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    recipe: Recipe


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says."""

    data: list[str]
    out: Path
    runs: list[SweepRun]

    def folder(self, run: SweepRun) -> RunFolder:
        """Where a run goes."""
        return RunFolder(self.out / run.name)

    def recipe_file(self, run: SweepRun) -> Path:
        """Where the recipe of a run is, for commands that are started elsewhere."""
        return self.out / "recipes" / f"{run.name}.yaml"


def sweep(
    file: Path,
    *,
    commands: Launcher | None = None,
    processes: int = 8,
    glue: Sequence[Path] | None = None,
    stop_after: str | None = None,
) -> Path | None:
    """Run a grid of recipes one after another, all with the same FLOPs, and compare them; the same command goes on.

    Args:
        file: The sweep: a YAML file with recipe, data, out, flops, seeds, grid, also (docs/comparing.md).
        commands: Run nothing, and print the commands of what is not finished: plain, by torchrun, or for Slurm.
        processes: Processes of each run, for --commands torchrun and slurm.
        glue: results.json of the runs' encoders, or its folder, for the page at the end.
        stop_after: Save and stop after this much time in all (90m, 2h), with exit code 75.
    """
    limit = deadline(stop_after, "--stop-after")
    found = read_sweep(Path(file))
    _refuse_what_cannot_be(found)
    (found.out / "recipes").mkdir(parents=True, exist_ok=True)
    for run in found.runs:
        write_text_atomically(found.recipe_file(run), dump_recipe(run.recipe))
    waiting = [run for run in found.runs if not found.folder(run).is_finished()]
    say(f"{len(found.runs)} runs, {len(found.runs) - len(waiting)} finished")
    if commands is not None:
        for run in waiting:
            print(_command(found, run, commands, processes))
        return None
    for run in waiting:
        left = limit - time.monotonic()
        if left <= 0:
            raise TimeIsUp("time is up; the same command goes on")
        say(f"\n{run.name}")
        folder, stop = found.folder(run), None if left == math.inf else f"{max(1, round(left))}s"
        pretrain(run.recipe, data=found.data, out=folder.path, resume=_is_begun(folder), stop_after=stop)
    return compare([found.folder(run).path for run in found.runs], glue=glue, out=found.out / "report")


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file, or say what is wrong with it."""
    tree = _tree(path)
    flops = _number(tree["flops"], f"{path}: flops")
    seeds = _listed(tree.get("seeds", [0]), f"{path}: seeds")
    arms = [*_grid(tree.get("grid") or {}, path), *_also(tree.get("also") or [], path)]
    if not arms:
        raise UserError(f"{path}: no runs: give a grid, or a list of them in 'also'")
    if any("seed" in arm for arm in arms):
        raise UserError(f"{path}: seed: the seeds of a sweep are 'seeds', and every run has each")
    if len(arms) * len(seeds) > _MOST_RUNS:
        raise UserError(f"{path}: {len(arms) * len(seeds):,} runs; {_MOST_RUNS:,} at most")
    runs = [_run(str(tree["recipe"]), {**arm, "seed": seed}, flops, path) for arm in arms for seed in seeds]
    _refuse_doubles(runs, path)
    return Sweep([str(part) for part in _listed(tree["data"], f"{path}: data")], Path(str(tree["out"])), runs)


def _refuse_doubles(runs: Sequence[SweepRun], path: Path) -> None:
    """A run that is made twice is not two seeds."""
    names: dict[Recipe, str] = {}
    for run in runs:
        if (other := names.setdefault(run.recipe, run.name)) is not run.name:
            raise UserError(f"{path}: {printable(other)} is asked for twice, once as {printable(run.name)}")
    if len({run.name for run in runs}) < len(runs):
        raise UserError(f"{path}: two values of the grid are too much alike to name a run by them")


def _refuse_what_cannot_be(found: Sweep) -> None:
    """Plan every run before the first begins, and see that those that were begun are still what is asked for."""
    data = Mixture.open(found.data, verify=False)
    from latemask.masking.patterns import vocabulary_for
    from latemask.model import complete_recipe  # not for --help: it loads torch

    for run in found.runs:
        try:  # on some machine; it need not be this one
            recipe = with_reference(complete_recipe(run.recipe, data.vocabulary))
            check_recipe(recipe)
            vocabulary_for(recipe.mask.pattern, data)
            planned_steps(recipe)
        except UserError as error:
            raise UserError(f"{printable(run.name)}: {error}") from None
        folder = found.folder(run)
        if _is_begun(folder) and (changed := folder.changes(recipe, data.record)):
            raise UserError(
                f"{folder.path} was made by another sweep than this one: {'; '.join(changed)}. "
                "Give this one another 'out', or move that run away"
            )


def _tree(path: Path) -> dict[str, Any]:
    """Return the keys and values of a sweep file: all that it must have, and no others."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    tree = read_yaml(path, "sweep")
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a sweep: it needs {', '.join(_KEYS)}")
    for key in tree:
        if key not in _KEYS:
            raise UserError(f"{path}: unknown key '{printable(str(key))}'{nearest(str(key), _KEYS)}")
    for key in ("recipe", "data", "out", "flops"):
        if tree.get(key) is None:
            raise UserError(f"{path}: '{key}' is missing")
    return tree


def _grid(grid: Any, path: Path) -> list[dict[str, Any]]:
    """Return every combination; without a grid, none of its own."""
    if not isinstance(grid, dict):
        raise UserError(f"{path}: grid is a table of recipe keys, each with a list of values")
    values = [_listed(value, f"{path}: grid, {printable(str(key))}") for key, value in grid.items()]
    return [dict(zip(map(str, grid), chosen, strict=True)) for chosen in itertools.product(*values)] if grid else []


def _also(also: Any, path: Path) -> list[dict[str, Any]]:
    if not isinstance(also, list) or not all(isinstance(arm, dict) for arm in also):
        raise UserError(f"{path}: also is a list of tables, each with the recipe keys of one more run")
    return [{str(key): value for key, value in arm.items()} for arm in also]


def _run(recipe: str, keys: dict[str, Any], flops: float, path: Path) -> SweepRun:
    """Return one run; its own `flops`, if it has some, take the place of the sweep's."""
    own = _number(keys.get("flops", flops), f"{path}: flops")
    if budget := [key for key in keys if key.split(".")[0] == "budget"]:
        raise UserError(f"{path}: {budget[0]}: the budget of a sweep is 'flops'")
    try:
        loaded = load_recipe(recipe, nested({key: value for key, value in keys.items() if key != "flops"}))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return SweepRun(_name(keys), replace(loaded, budget=BudgetRecipe(flops=own)))


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a tree: {"mask.rate": 0.4} → {"mask": {"rate": 0.4}}."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        target = tree
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise UserError(f"{printable(key)}: '{printable(section)}' has a value of its own")
        if last in target:
            raise UserError(f"{printable(key)}: it has a value and keys below it")
        target[last] = value
    return tree


def _name(keys: dict[str, Any]) -> str:
    """Name a run by what it changes; the last word of a key will do where no other key ends in it."""
    endings = [key.split(".")[-1] for key in flat(Recipe())]
    words = []
    for key, value in keys.items():
        last = key.split(".")[-1]
        name = last if endings.count(last) < 2 else key.replace(".", "-")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        words.append(f"{name}-{''.join(c if c.isalnum() or c in '.+-' else '-' for c in text)[:60]}")
    return "_".join(words)


def _listed(value: Any, where: str) -> list[Any]:
    found = value if isinstance(value, list) else [value]
    if not found or any(isinstance(one, (dict, list)) for one in found):
        raise UserError(f"{where}: one value or a list of some")
    return found


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf:
        raise UserError(f"{where} must be a positive number, not '{printable(str(value))}'")
    return number


def _is_begun(run: RunFolder) -> bool:
    return run.recipe_file.is_file() and bool(run.record)


def _command(found: Sweep, run: SweepRun, launcher: Launcher, processes: int) -> str:
    folder = found.folder(run)
    words = ["latemask", "pretrain", str(found.recipe_file(run))]
    words += [word for part in found.data for word in ("--data", part)]
    words += ["--out", str(folder.path), *(["--resume"] if _is_begun(folder) else [])]
    if launcher != "plain":
        words = ["torchrun", "--nproc-per-node", str(processes), "-m", *words]
    command = shlex.join(words)
    if launcher != "slurm":
        return command
    return shlex.join(["sbatch", "--job-name", run.name, "--gpus-per-node", str(processes), "--wrap", command])
