"""A run that is killed again and again, and always resumed: does it end as an undisturbed one does?

A tiny run with a checkpoint every few steps is killed at random moments, while it starts, trains, writes or finishes.
One that came to its end is compared with the undisturbed run, weights and log lines to the bit, and another begins,
until there were so many kills. Optimizer, schedule, average and whether it is a branch are drawn anew for every run; a
branch is compared with the run that was planned so from the start. benchmarks/faults.py does it fifty times.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latemask.recipe import BudgetRecipe, EncoderRecipe, Recipe, TrainRecipe
from latemask.run_folder import RunFolder
from latemask.text import prepare
from latemask.text.builtin import BuiltinReader
from tests.launching import forked

RECIPE = Recipe(
    length=32,
    encoder=EncoderRecipe(layers=2, width=16, heads=2, dropout=0.1),
    train=TrainRecipe(batch_size=4, log_every=3, eval_every=10, eval_rows=4, save_every=4, learning_rate=3e-3),
    budget=BudgetRecipe(steps=40),
)
BRANCHED_AT = 14
ENDED_BY = {"KILL": -signal.SIGKILL, "TERM": 128 + signal.SIGTERM}


def make_data(folder: Path) -> Path:
    """Prepare a little text."""
    text = folder / "text.txt"
    documents = BuiltinReader(limit=200_000).run()
    text.write_text("\n\n".join(document.text.replace("\n\n", "\n") for document in documents), "utf-8")
    with contextlib.redirect_stderr(io.StringIO()):
        return prepare([text], out=folder / "data", vocab_size=500, validation=0.1).folder


@dataclass(frozen=True)
class Dials:
    """What is drawn."""

    optimizer: str
    schedule: str
    average: float
    branches: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> Dials:
        """Draw all of them."""
        optimizer, schedule = chance.choice(["adamw", "muon"]), chance.choice(["linear", "cosine", "wsd"])
        return cls(optimizer, schedule, chance.choice([0.0, 0.9]), chance.random() < 0.5)

    def recipe(self, steps: int = 40) -> Recipe:
        """Return a run of so many steps; those of a branch and of its stem agree about all that is before it."""
        phases = {"warmup": 4.0, "decay": 10.0} if self.schedule == "wsd" else {}
        train = replace(RECIPE.train, optimizer=self.optimizer, schedule=self.schedule, average=self.average, **phases)
        return replace(RECIPE, train=replace(train, keep_at=(BRANCHED_AT,)), budget=BudgetRecipe(steps=steps))

    @property
    def stem_steps(self) -> int:
        """A stem may be shorter than its branch where the schedule does not know its end: with wsd."""
        return 30 if self.schedule == "wsd" else 40


def train(recipe: Recipe, data: Path, out: Path, resume: bool, branch: str | None = None) -> None:
    """Be the process that is killed."""
    import torch

    from latemask.ground.errors import Interrupted, UserError
    from latemask.training.pretraining import pretrain

    torch.set_num_threads(1)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            pretrain(recipe, data=data, out=out, resume=resume, branch=branch)
        except UserError as error:
            if not isinstance(error, Interrupted):
                print(f"{out.name}: {error}", file=sys.__stderr__)
            sys.exit(error.exit_code)


@dataclass
class Outcome:
    """What became of a life: how it ended, and whether it was we who ended it."""

    code: int
    killed: bool


def live(
    recipe: Recipe, data: Path, out: Path, seconds: float | None, number: int, branch: str | None = None
) -> Outcome:
    """Start or resume a run, and send it a signal after some time; None lets it live."""
    process = forked(train, recipe, data, out, (out / "recipe.yaml").is_file(), branch)
    process.start()
    process.join(seconds)
    killed = process.is_alive()
    if killed and process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
    process.join()
    return Outcome(process.exitcode or 0, killed)


def same_end(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs came to the same weights by the same losses."""
    names = ("model/model.safetensors", "encoder/model.safetensors", "recipe.yaml")
    same_files = all((one.path / name).read_bytes() == (other.path / name).read_bytes() for name in names)
    return same_files and log_lines(one) == log_lines(other)


def log_lines(run: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics without the time they took."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics()]


@dataclass
class Tally:
    """What is counted."""

    rounds: int = 0
    resumed: int = 0
    lost: int = 0
    runs: int = 0
    identical: bool = True


class Undisturbed:
    """Runs that nobody disturbs, each made once."""

    def __init__(self, folder: Path, data: Path):
        self.folder, self.data = folder, data

    def run(self, dials: Dials, steps: int) -> RunFolder:
        """Return the run of these dials."""
        words = [dials.optimizer, dials.schedule, str(dials.average), str(steps)]
        run = RunFolder(self.folder / "-".join(["undisturbed", *words]))
        if not run.recipe_file.is_file():
            assert live(dials.recipe(steps), self.data, run.path, None, signal.SIGKILL).code == 0
        return run

    def stem(self, dials: Dials) -> str | None:
        """Return where a branch begins, or None where it is none."""
        return f"{self.run(dials, dials.stem_steps).path}@{BRANCHED_AT}" if dials.branches else None


def torment(
    folder: Path, rounds: int, name: str, seed: int = 0, watch: Callable[[str], None] = lambda line: None
) -> Tally:
    """Kill runs until there were so many kills; every run is seen to its end."""
    data, number = make_data(folder), getattr(signal, f"SIG{name}")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    undisturbed, chance, tally = Undisturbed(folder, data), random.Random(seed), Tally()
    undisturbed.run(Dials("adamw", "linear", 0.0, False), 40)
    started = time.perf_counter()
    undisturbed.run(Dials("muon", "linear", 0.9, False), 40)  # without the imports: how long a run takes
    longest = time.perf_counter() - started
    while tally.rounds < rounds:
        dials, run = Dials.drawn(chance), RunFolder(folder / f"run-{tally.runs}")
        expected, stem = undisturbed.run(dials, 40), undisturbed.stem(dials)
        watch(f"{run.path.name}: {dials}")

        def again(seconds: float | None, dials: Dials = dials, run: RunFolder = run, stem: Any = stem) -> Outcome:
            return live(dials.recipe(), data, run.path, seconds, number, stem)

        _see_to_its_end(run, again, rounds, chance, longest, tally, (0, ENDED_BY[name], -number), watch)
        tally.identical &= run.is_finished() and same_end(run, expected)
        tally.runs += 1
    return tally


def _see_to_its_end(
    run: RunFolder,
    again: Callable[[float | None], Outcome],
    rounds: int,
    chance: random.Random,
    longest: float,
    tally: Tally,
    expected: tuple[int, ...],
    watch: Callable[[str], None],
) -> None:
    while not (run.recipe_file.is_file() and run.is_finished()):
        there_was_a_run = run.recipe_file.is_file()
        outcome = again(chance.uniform(0, longest) if tally.rounds < rounds else None)
        tally.resumed += there_was_a_run
        tally.rounds += outcome.killed
        if outcome.code not in expected:
            tally.lost += 1
            tally.identical = False
            watch(f"{run.path.name} cannot go on: exit code {outcome.code}")
            return
        at = run.last_checkpoint()
        watch(f"{run.path.name}: {'killed' if outcome.killed else 'ended'}, {at.name if at else 'no checkpoint'}")
