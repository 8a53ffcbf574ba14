"""A branch: a run whose first checkpoint is another run's. What is behind it is counted, and can be read in run.json.

Everything about a step is a function of its number, the recipe and the checkpoint: so a branch that changes nothing
ends as the run would have ended that it came from.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from latemask.budget.flops import planned_steps, spent
from latemask.ground.errors import UserError
from latemask.ground.files import replace_folder, write_json_atomically, write_text_atomically
from latemask.ground.sealed import damage, seal
from latemask.model import build_model
from latemask.recipe import OBJECTIVES, Recipe, Stem, differences, load_recipe
from latemask.run_folder import RunFolder, other_units, step_of, tokenizer_checksum
from latemask.training.checkpoints import read_config
from latemask.training.job import Job

# What a branch takes over from its stem as it is. (Of the encoder: all but what no weight depends on.)
_FIXED = ("objective", "encoder.", "train.optimizer")
_INHERITED = ("start", "start_seconds", "left_out_batches", "precision")
_FREE = ("encoder.max_length", "encoder.rotary_base", "encoder.dropout", "encoder.init_std", "encoder.start")


@dataclass(frozen=True)
class Branch:
    """Where a run begins: a checkpoint of another."""

    run: RunFolder
    checkpoint: Path
    recipe: Recipe
    """The stem's."""

    @classmethod
    def of(cls, given: str) -> Branch:
        """Find the checkpoint that RUN@STEP names; RUN alone is its last one."""
        name, at, step = given.rpartition("@")
        run = RunFolder(Path(name if at else given))
        if at and not step.replace(",", "").isdigit():
            raise UserError(f"--branch {given}: RUN@STEP is wanted, such as runs/small@1000")
        if not run.recipe_file.is_file() or not run.record.get("data"):
            raise UserError(f"--branch {given}: {run.path} is not a latemask run")
        checkpoint = _checkpoint(run, int(step.replace(",", "")) if at else None)
        if problem := damage(checkpoint):
            raise UserError(f"--branch {given}: {problem}")
        return cls(run, checkpoint, load_recipe(run.recipe_file))

    @property
    def stem(self) -> Stem:
        """All that was done until here, by the run and by what it came from itself."""
        before, step, rows = self.run.stem, step_of(self.checkpoint), self.recipe.rows_read
        flops = spent(self.recipe, planned_steps(self.recipe, before), step, before)
        tokens, read = before.tokens_at(step, self.recipe), before.tokens_read_at(step, self.recipe)
        return Stem(step, before.first_sample(step, rows), tokens, flops, read)

    def refuse_what_does_not_fit(self, job: Job) -> None:
        """Say why the job cannot go on from here, before anything is written."""
        where = f"{self.run.path}@{self.stem.step}"
        fixed = (*_FIXED, f"{OBJECTIVES[self.recipe.objective].section}.")
        changed = [line for line in differences(self.recipe, job.recipe) if line.startswith(fixed)]
        if other := [line for line in changed if not line.startswith(_FREE)]:
            raise UserError(f"cannot branch from {where}: it has another {'; '.join(other)}")
        objective = read_config(self.checkpoint).get("objective", self.recipe.objective)
        if objective != self.recipe.objective:
            raise UserError(f"cannot branch from {where}: the [MASK]s stood in the input there; take an earlier step")
        theirs, ours = tokenizer_checksum(self.run.record["data"]), tokenizer_checksum(job.data.record)
        if theirs != ours:
            raise UserError(f"cannot branch from {where}: {job.data.label} was prepared with another tokenizer")
        if self.run.record.get("left_out_batches") and self.recipe.rows_read != job.recipe.rows_read:
            raise UserError(
                f"cannot branch from {where} with another train.batch_size, or another share of the rows selected: it "
                "has left out batches (--on-nan rewind), which are counted by it"
            )
        if job.recipe.encoder.init is None:
            self._refuse_other_shapes(job, where)

    def _refuse_other_shapes(self, job: Job, where: str) -> None:
        """What the recipes do not tell: a table of positions may be too short for longer rows."""
        with torch.device("meta"):
            wanted = {name: list(tensor.shape) for name, tensor in _model_of(job).state_dict().items()}
        with safe_open(self.checkpoint / "model.safetensors", "pt") as file:
            there = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        for name in sorted(there):
            if there[name] != wanted.get(name, there[name]):
                raise UserError(
                    f"cannot branch from {where}: {name} is {there[name]} there and {wanted[name]} here (a table of "
                    "positions does not grow: give the stem an encoder.max_length for the longest rows to come)"
                )

    def record(self, job: Job) -> dict[str, Any]:
        """Return what run.json says of it."""
        record = self.run.record
        before, stem = record.get("branch", {}), asdict(self.stem)
        segment = {
            "run": str(self.run.path.resolve()),
            "id": record.get("id", str(self.run.path.resolve())),
            "from": self.run.stem.step,
            **stem,
            "own_flops": stem["flops"] - self.run.stem.flops,
            "own_tokens": stem["tokens"] - self.run.stem.tokens,
            "data": record["data"]["folder"],
            "changed": self._changed(job),
        }
        inherited = {key: value for key, value in record.items() if key in _INHERITED}
        return {**inherited, "branch": {**stem, "history": [*before.get("history", []), segment]}}

    def _changed(self, job: Job) -> list[str]:
        """Say what is another from here on."""
        changed = differences(self.recipe, job.recipe)
        mine, theirs = job.data.record, self.run.record["data"]
        other_data = mine["fingerprint"] != theirs["fingerprint"]
        changed += [f"data: {theirs['folder']} -> {mine['folder']}"] if other_data else []
        return [*changed, *other_units(job.recipe, theirs, mine)]

    def bring(self, job: Job, run: RunFolder) -> None:
        """Copy the checkpoint and the log lines up to it; the config is the new run's."""
        aside = run.checkpoints / ".writing"
        shutil.copytree(self.checkpoint, aside)
        if problem := damage(aside):
            raise UserError(f"{problem}: the checkpoint changed while it was copied")
        if job.recipe.encoder.init is None:
            with torch.device("meta"):
                config = _model_of(job).config
            write_json_atomically(aside / "config.json", config.to_dict())
            seal(aside)
        replace_folder(aside, run.checkpoints / self.checkpoint.name)
        rows = [row for row in self.run.metrics() if row["step"] <= self.stem.step]
        write_text_atomically(run.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))


def _model_of(job: Job) -> Any:
    return build_model(job.recipe, job.data.vocabulary)


def _checkpoint(run: RunFolder, step: int | None) -> Path:
    """Return the checkpoint of a step, or say which there are."""
    there = {step_of(path): path for path in reversed(run.all_checkpoints())}
    if not there:
        raise UserError(f"{run.path} has no checkpoint to branch from")
    if step is None:
        return there[max(there)]
    if step not in there:
        near = min(there, key=lambda one: abs(one - step))
        every = ", ".join(f"{one:,}" for one in there)
        raise UserError(
            f"{run.path} has no checkpoint of step {step:,}; the nearest is of step {near:,} (there are: {every}). "
            "train.keep_at keeps those that you name"
        )
    return there[step]
