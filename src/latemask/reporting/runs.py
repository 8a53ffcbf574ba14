"""Run folders as a page shows them: read and named. What is wrong with one is said, not hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latemask.budget.flops import mlm_baseline, planned_steps, scoring_flops, sequence_flops, spent
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest
from latemask.recipe import MLM_RATE, OBJECTIVES, BudgetRecipe, MaskRecipe, Recipe, Stem, flat, load_recipe, spelled_out
from latemask.run_folder import WATCHING, RunFolder, is_number, tokenizer_checksum


@dataclass(frozen=True)
class Run:
    """One run, as far as it is."""

    name: str
    folder: RunFolder
    recipe: Recipe
    record: dict[str, Any]
    rows: list[dict[str, Any]]
    damaged_rows: int = 0
    is_in_use: bool = False
    """Whether a process works on it."""
    other_validations: int = 0
    """Validations that were left out: an earlier latemask made them with the run's own masks."""

    @property
    def steps(self) -> int:
        """Steps that are planned."""
        return planned_steps(self.recipe, self.stem)

    @property
    def stem(self) -> Stem:
        """What it has behind it, where it is a branch."""
        return self.folder.stem

    @property
    def done(self) -> int:
        """The last step or, while it is not finished, the last that was logged."""
        if self.is_finished:
            return self.steps
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def status(self) -> str:
        """What run.json says; but a run that no process works on any more does not run, whatever it says."""
        said = printable(str(self.record.get("status", "unknown")))
        return "interrupted" if said == "running" and not self.is_in_use else said

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end."""
        return self.record.get("status") == "finished"

    @property
    def flops(self) -> float:
        """Spent so far, forward and backward."""
        return self.flops_at(self.done)

    def flops_at(self, step: int) -> float:
        """The same after so many steps of its own."""
        return spent(self.recipe, self.steps, step, self.stem)

    @property
    def tokens(self) -> int:
        """Tokens of text trained on so far."""
        return self.stem.tokens_at(self.done, self.recipe)

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return float(self.rows[-1]["seconds"]) if self.rows else 0.0

    @property
    def tokens_a_second(self) -> float | None:
        """The speed up to the last log line, which may be missing some before the end."""
        return self.place(self.rows[-1], "tokens") / self.seconds if self.seconds else None

    @property
    def split(self) -> dict[str, float]:
        """Where the FLOPs of a sequence go, as shares of what masked language modelling at 15 % costs.

        Of one that is trained on: what scoring the others took is its own, too.
        """
        whole = sequence_flops(mlm_baseline(self.recipe)).training
        scoring = {"scoring": scoring_flops(self.recipe) / self.recipe.train.batch_size}
        return {part: flops / whole for part, flops in {**sequence_flops(self.recipe).parts, **scoring}.items()}

    @property
    def seconds_a_step(self) -> float | None:
        """Of the last log lines; None where there are too few."""
        if len(self.rows) < 2:
            return None
        first, last = self.rows[-10:][0], self.rows[-1]
        steps, seconds = last["step"] - first["step"], last["seconds"] - first["seconds"]
        return seconds / steps if steps > 0 and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """What is left at the speed of the last log lines; None where that cannot be said."""
        seconds = self.seconds_a_step
        return (self.steps - self.done) * seconds if self.is_in_use and seconds else None

    @property
    def recent_tokens_a_second(self) -> float | None:
        """The speed of the last log lines."""
        seconds = self.seconds_a_step
        return self.recipe.train.batch_size * self.recipe.length / seconds if seconds else None

    def place(self, row: dict[str, Any], axis: str) -> float:
        """Return where a log line stands on an axis: steps, tokens, flops or seconds."""
        step, is_of_stem = row["step"], row["step"] <= self.stem.step  # whose recipe may have been another
        return {
            "steps": step,
            "tokens": row.get("tokens", 0) if is_of_stem else self.stem.tokens_at(step, self.recipe),
            "flops": row.get("flops", 0.0) if is_of_stem else self.flops_at(step),
            "seconds": row["seconds"],
        }[axis]

    def points(self, key: str) -> list[dict[str, Any]]:
        """Return the log lines that hold a finite `key` ("loss", "eval_loss")."""
        return [row for row in self.rows if is_number(row.get(key))]

    @property
    def validated_on(self) -> tuple[int, int, str]:
        """What tells its validation from others: on the same rows, the same positions are hidden."""
        return self.recipe.length, self.recipe.train.eval_rows, data_of(self)

    @property
    def last_validation(self) -> float | None:
        """The validation loss of the last step; None where it was not measured there."""
        found = self.points("eval_loss")
        return float(found[-1]["eval_loss"]) if found and found[-1]["step"] == self.done else None

    @property
    def method(self) -> str:
        """The way of masking, in a few words."""
        mask = self.recipe.mask
        end = "" if mask.rate_end is None else f" to {mask.rate_end:.0%}"
        names, usual = (mask.rate_schedule, mask.pattern), (MaskRecipe.rate_schedule, MaskRecipe.pattern)
        shape = [name for name, plain in zip(names, usual, strict=True) if name != plain]
        drop = [f"drop {mask.drop:.0%}"] if mask.drop else []
        own, select = OBJECTIVES[self.recipe.objective].words(self.recipe), self.recipe.select
        best = [f"best {select.keep:.3g} by {Path(select.reference).name}"] if select.reference else []
        return printable(" ".join([self.recipe.objective, f"{mask.rate:.0%}{end}", *drop, *own, *shape, *best]))

    @property
    def arm(self) -> Recipe:
        """The recipe without what may differ between repeats: the seed."""
        return replace(self.recipe, seed=0, budget=BudgetRecipe(steps=self.steps))

    @property
    def way(self) -> tuple[Any, ...]:
        """Where a branch left other runs, and what changed there."""
        idle = ("budget.", *(f"train.{key}:" for key in WATCHING))
        history = self.record.get("branch", {}).get("history", [])
        return tuple((one["step"], *(x for x in one["changed"] if not x.startswith(idle))) for one in history)

    @property
    def problems(self) -> list[str]:
        """What a reader of its numbers must know."""
        found = []
        if not self.is_finished:
            place = f"step {self.done:,} of {self.steps:,}"
            found.append(f"not finished ({self.status}): {place}, so its last numbers are not its end")
        for one in self.record.get("branch", {}).get("history", []):
            found.append(f"its steps {one['from'] + 1:,} to {one['step']:,} are those of {one['run']}, and counted")
        if start := self.recipe.encoder.init:
            found.append(f"starts from {start}: what was spent on that before is not counted")
        if reference := self.recipe.select.reference:
            rows = f"{self.recipe.train.batch_size} of {self.recipe.rows_read} rows by {reference}"
            found.append(f"selects {rows}: its training loss is theirs; what the reference cost before is not counted")
        if not _fingerprint(self):
            found.append("run.json does not say what data it had: its losses are compared with nobody's")
        found += self._log_problems
        if left_out := self.record.get("left_out_batches"):
            found.append(f"{len(left_out)} batches were left out after gradients that were no number")
        found += [f"changed while it ran: {'; '.join(map(str, change))}" for change in self.record.get("changes", [])]
        return [printable(problem) for problem in found]

    @property
    def _log_problems(self) -> list[str]:
        if not self.rows:
            missing = f"{self.folder.metrics_file} is missing or empty: there are no losses to show"
            return [missing if self.is_finished else "no log lines yet"]
        found, others = [], self.other_validations
        if self.done - (last := int(self.rows[-1]["step"])) >= self.recipe.train.log_every:
            found.append(f"its log ends at step {last:,}: losses, time and speed are those up to there")
        if self.damaged_rows:
            found.append(f"{self.damaged_rows} damaged log lines were left out")
        if strange := sum(key in row and not is_number(row[key]) for row in self.rows for key in ("loss", "eval_loss")):
            found.append(f"{strange} of its losses are no numbers, and not shown")
        if others:
            found.append(f"{others} validations of an earlier latemask, with the run's own masks, were left out")
        return found


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read run folders; return those that can be read and what is wrong with the others."""
    runs, problems = [], []
    for path, name in zip(paths, short_names(paths), strict=True):
        try:
            runs.append(read_run(path, name))
        except UserError as error:
            problems.append(f"left out: {error}")
    return runs, problems


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, finished or not."""
    folder = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"{path} is a file, not a run folder" if path.exists() else f"{path}: no such folder")
    if not folder.recipe_file.is_file() or not (record := folder.record):
        raise UserError(f"{path} is not a latemask run (it needs recipe.yaml and run.json)")
    recipe, vocabulary = load_recipe(folder.recipe_file), record.get("data", {}).get("vocabulary")
    if recipe.encoder.vocab_size is None and not isinstance(vocabulary, int):
        raise UserError(f"{path}/recipe.yaml does not say encoder.vocab_size, so its FLOPs are not known")
    recipe = spelled_out(recipe, vocabulary or 0)
    planned_steps(recipe, folder.stem)  # or say that there is no budget
    rows = folder.metrics()
    # A validation that does not say what it masked had the run's own masks: those that all have now, or others.
    own = MLM_RATE if recipe.at(1).counts == recipe.as_validated.counts and recipe.seed == 0 else None
    kept = [row for row in rows if "eval_loss" not in row or row.get("eval_masked", own) == MLM_RATE]
    name, damaged = name or printable(path.resolve().name), folder.damaged_metrics()
    run = Run(name, folder, recipe, record, kept, damaged, folder.is_in_use(), len(rows) - len(kept))
    try:
        str([run.problems, data_of(run), tokenizer_of(run), run.way, spent_together([run])])
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError):
        raise UserError(f"{path / 'run.json'} is damaged") from None
    return run


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return names as short as can be while all differ: the ends of the paths."""
    full = [Path(path).resolve() for path in paths]
    if doubled := [path for path in full if full.count(path) > 1]:
        raise UserError(f"{doubled[0]} is given twice")
    for count in range(1, max((len(path.parts) for path in full), default=1) + 1):
        names = ["/".join(path.parts[-count:]) for path in full]
        if len(set(names)) == len(names):
            break
    return [printable(name) for name in names]


def recipe_differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return each key in which the recipes differ, with its value in every run."""
    recipes = [flat(run.recipe) for run in runs]
    every = dict.fromkeys(key for recipe in recipes for key in recipe)  # an objective's own keys are not everybody's
    keys = [key for key in every if len({str(recipe[key]) for recipe in recipes if key in recipe}) > 1]
    values = {key: [recipe.get(key, "–") for recipe in recipes] for key in keys}
    return {key: [f"{x:g}" if isinstance(x, float) else printable(str(x)) for x in row] for key, row in values.items()}


def common_ground(runs: Sequence[Run]) -> list[str]:
    """Say what keeps runs from being compared: other data, tokenizers or row lengths, or nothing but a copy."""
    known = [run for run in runs if _fingerprint(run)]
    tests: list[tuple[str, Callable[[Run], Any]]] = [
        ("data", data_of),
        ("tokenizers", tokenizer_of),
        ("row lengths", lambda run: run.recipe.length),
        ("numbers of rows to validate on", lambda run: run.recipe.train.eval_rows),
    ]
    different = [
        f"these runs have different {what}, so their losses are not comparable: {' / '.join(map(', '.join, groups))}"
        for what, identity in tests
        if len(groups := _groups(known, identity)) > 1
    ]
    return different + [
        f"these have the same recipe, data and seed, so they are no repeats; {group[0]} alone is judged: "
        f"{', '.join(group)}"
        for group in _groups([run for run in runs if run.is_finished], identity_of)
        if len(group) > 1
    ]


def identity_of(run: Run) -> tuple[Any, ...]:
    """Return what is the same for two runs that are one run twice."""
    return run.arm, run.recipe.seed, data_of(run), run.way


def spent_together(runs: Sequence[Run]) -> tuple[float, int]:
    """Return the FLOPs and tokens of all runs; a stem that several came from was paid for once."""
    own: dict[str, tuple[float, int]] = {}
    for run in runs:
        name = str(run.record.get("id", run.folder.path.resolve()))
        history = run.record.get("branch", {}).get("history", [])
        parts = [(one["id"], (one["own_flops"], one["own_tokens"])) for one in history]
        for who, spent_alone in [*parts, (name, (run.flops - run.stem.flops, run.tokens - run.stem.tokens))]:
            own[who] = max(own.get(who, (0.0, 0)), spent_alone)
    return sum(flops for flops, _ in own.values()), sum(tokens for _, tokens in own.values())


def _fingerprint(run: Run) -> Any:
    return run.record.get("data", {}).get("fingerprint")


def data_of(run: Run) -> str:
    """Return what tells the data of a run from other data; where it is not known, it is nobody else's."""
    return json_digest(_fingerprint(run) or str(run.folder.path.resolve()))


def tokenizer_of(run: Run) -> str:
    """Return what tells the tokenizer of a run from others; that of its data, where it is not known by itself."""
    return tokenizer_checksum(run.record.get("data", {})) or data_of(run)


def _groups(runs: Sequence[Run], identity: Callable[[Run], Any]) -> list[list[str]]:
    groups: dict[Any, list[str]] = {}
    for run in runs:
        groups.setdefault(identity(run), []).append(run.name)
    return list(groups.values())
