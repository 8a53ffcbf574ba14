"""The folder of a run: it documents itself, and is never overwritten without being asked.

RUN/recipe.yaml       the recipe as it ran, every key spelled out
RUN/run.json          status, data, versions, what was planned and spent
RUN/metrics.jsonl     one line for every log and validation
RUN/tensorboard/      the same for TensorBoard
RUN/checkpoints/      the last few, to resume from
RUN/model/            the pre-training model at the end
RUN/encoder/          the exported encoder
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import exclusive_lock, write_json_atomically, write_text_atomically
from latemask.ground.sealed import MANIFEST as SEAL
from latemask.ground.sealed import damage
from latemask.recipe import MOST_STEPS, OBJECTIVES, PATTERNS, ROOT, Recipe, Stem, differences, dump_recipe, load_recipe

PROGRESS = "progress.json"
"""In a checkpoint: how far it is."""
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,12}")
_OURS = ("run.json", "metrics.jsonl", "tensorboard", "checkpoints", "model", "encoder", "report")
_FIXED = ("objective", "length", "encoder.", "train.batch_size")
WATCHING = ("log_every", "eval_every", "save_every", "keep_checkpoints", "keep_at", "report_to", "workers")
"""Keys of `train` that no weight depends on: a run goes on with whatever they are now."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and state of one run."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        """The recipe as it ran."""
        return self.path / "recipe.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON line for every log."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """What a run resumes from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The pre-training model at the end."""
        return self.path / "model"

    @property
    def encoder(self) -> Path:
        """The exported encoder."""
        return self.path / "encoder"

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.path / "report"

    @property
    def record(self) -> dict[str, Any]:
        """What run.json says; empty where there is none."""
        path = self.path / "run.json"
        if not path.is_file():
            return {}
        try:
            record = dict(json.loads(path.read_text("utf-8")))
            record.get("data", {}).get("fingerprint")
            list(map(int, record.get("left_out_batches", [])))
            list(map(str, record.get("precision", [])))
            float(record["start_seconds"] if str(record.get("start", "")) else 0)
            str(record.get("reference", {"checksum": ""})["checksum"])
            _stem_in(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UserError(f"{path} is damaged; put it back, or start again with --overwrite") from None
        return record

    @property
    def stem(self) -> Stem:
        """What the run has behind it, where it is a branch."""
        return _stem_in(self.record)

    def update(self, **changes: Any) -> None:
        """Change entries of run.json."""
        write_json_atomically(self.path / "run.json", {**self.record, **changes})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this process; the system frees it however the process ends.

        Two locks: one keeps others out, and the other only shows who looks that somebody is in. To look at a lock is to
        take it for a moment, so that whoever looked could keep a run from starting if there were but one.
        """
        lock = exclusive_lock(self.path / ".lock", f"{self.path} is in use by another process")
        try:
            with FileLock(self._in_use):  # waits for whoever looks at this moment
                yield
        finally:
            lock.release()

    def is_in_use(self) -> bool:
        """Whether a process holds the folder; where that cannot be tried, it may."""
        if not self._in_use.exists():
            return False
        try:
            with FileLock(self._in_use, timeout=0):
                return False
        except (Timeout, OSError):
            return True

    @property
    def _in_use(self) -> Path:
        return self.path / ".in-use"

    def refuse_what_cannot_be(self, resume: bool) -> None:
        """Say no before anything is made: a file in the way, or nothing to resume."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a run folder")
        if resume and not self._holds_run():
            raise UserError(f"nothing to resume in {self.path}: it holds no run (latemask pretrain starts one)")
        if self._occupied() and not self._holds_run():
            raise UserError(f"{self.path} is not empty and holds no run; choose another --out")

    def start(
        self,
        recipe: Recipe,
        data: dict[str, Any],
        overwrite: bool,
        more: dict[str, Any] | None = None,
        bring: Callable[[RunFolder], None] | None = None,
    ) -> None:
        """Begin a new run here, or say why not. A branch notes more in run.json, and brings its first checkpoint."""
        if self._occupied() or self._cleared.exists():
            self._refuse_or_clear(overwrite)
        elif self.path.is_dir():
            self._clear()  # what a start that was killed left
        packages = ("latemask", "torch", "transformers", "tokenizers", "numpy")
        versions = {"python": sys.version.split()[0], **{name: version(name) for name in packages}}
        record = {"status": "new", "id": uuid.uuid4().hex, "data": data, "command": sys.argv, "versions": versions}
        write_json_atomically(self.path / "run.json", {**record, **(more or {})})
        if bring:
            bring(self)
        write_text_atomically(self.recipe_file, dump_recipe(recipe))  # last: from here on there is a run

    def changes(self, recipe: Recipe, data: dict[str, Any]) -> list[str]:
        """Say in what a recipe and data differ from those that the run began with, as far as weights depend on it."""
        changed = differences(as_watched_by(recipe, load_recipe(self.recipe_file)), recipe)
        began_with = self.record.get("data", {})
        if began_with.get("fingerprint") != data["fingerprint"]:
            changed.append(f"data: {began_with.get('folder')} -> {data['folder']} (other data, whatever the name)")
        return [*changed, *other_units(recipe, began_with, data)]

    def check_same(self, recipe: Recipe, data: dict[str, Any]) -> None:
        """Refuse to go on with another recipe or other data than the run began with."""
        if changed := self.changes(recipe, data):
            problem = f"changed since it began: {'; '.join(changed)} (--allow-changes, if you mean it)"
            raise UserError(f"cannot resume {self.path}: {problem}")

    def go_on(self, recipe: Recipe, data: dict[str, Any], allow_changes: bool) -> None:
        """Let a run go on, with the recipe and the data it began with or, if that is allowed, with others."""
        if not allow_changes:
            self.check_same(recipe, data)
        changed = self.changes(recipe, data)
        began_with = load_recipe(self.recipe_file)
        shape = (*_FIXED, f"{OBJECTIVES[recipe.objective].section}.")
        fixed = [line for line in changed if line.startswith(shape)]
        if recipe.rows_read != began_with.rows_read:
            fixed += [line for line in changed if line.startswith("select.")]
        if fixed:
            kept = "a run keeps its model's shape, and its batch, by which samples are counted"
            raise UserError(f"{'; '.join(fixed)}: {kept}")
        if every := differences(began_with, recipe):
            say(f"going on with changes: {'; '.join(every)}")
            write_text_atomically(self.recipe_file, dump_recipe(recipe))
        if changed:
            self.update(data=data, changes=[*self.record.get("changes", []), changed])

    def all_checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first, good or not; what somebody else put beside them is not ours."""
        found = (path for path in self.checkpoints.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name))
        return sorted((path for path in found if path.is_dir() and not path.is_symlink()), key=step_of, reverse=True)

    def last_checkpoint(self) -> Path | None:
        """Return the newest checkpoint that is whole."""
        return next((path for path in self.all_checkpoints() if damage(path) is None), None)

    def newest_model(self) -> Path:
        """Return the folder of the final model or, while there is none, of the last checkpoint."""
        if (self.model / "config.json").is_file():
            if (self.model / SEAL).is_file() and (problem := damage(self.model)):
                raise UserError(f"{problem}; --resume writes it again from the last checkpoint")
            return self.model
        if self.model.is_dir():
            raise UserError(f"{self.model / 'config.json'} is missing")
        if (self.path / "config.json").is_file():  # not a run: a model that somebody saved
            return self.path
        if checkpoint := self.last_checkpoint():
            return checkpoint
        missing = "holds no model yet" if self.recipe_file.is_file() else "is not a latemask run"
        raise UserError(f"{self.path} {missing}" if self.path.exists() else f"{self.path}: no such folder")

    def tokenizer_folder(self, model: Path) -> Path:
        """Return where the tokenizer of a model in this run is: beside it or, for a checkpoint, with the data."""
        with_data = self.record.get("data", {}).get("tokenizer")
        for folder in (model, Path(with_data) if with_data else model):
            if (folder / "tokenizer.json").is_file():
                return folder
        raise UserError(f"no tokenizer beside the model in {model}; save one there (tokenizer.save_pretrained)")

    def refuse_if_gone(self) -> None:
        """Say that somebody removed the folder, instead of writing half of one anew."""
        if not self.recipe_file.is_file():
            raise UserError(f"{self.path} was removed while the run was in it; nothing is left to go on with")

    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return self.record.get("status") == "finished"

    def forget_metrics_after(self, step: int) -> None:
        """Drop log lines that a resumed run will write again, and what a crash or a bad disk made of others."""
        if not self.metrics_file.is_file():
            return
        *lines, last = self._metric_rows() or [None]
        if damaged := sum(row is None for row in lines):
            say(f"{self.metrics_file}: {damaged} damaged line(s) left out")
        kept = [row for row in (*lines, last) if row is not None and row["step"] <= step]
        write_text_atomically(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def sync_metrics(self) -> None:
        """Bring the log lines to the disk."""
        if self.metrics_file.is_file():
            with self.metrics_file.open("rb+") as file:
                os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the log lines; one torn by a crash is left out."""
        return [row for row in self._metric_rows() if row is not None]

    def damaged_metrics(self) -> int:
        """Return how many log lines are none; half a line at the end of one that still writes is no damage."""
        rows = self._metric_rows()
        return sum(row is None for row in (rows if self.is_finished() else rows[:-1]))

    def _metric_rows(self) -> list[dict[str, Any] | None]:
        """Return every line of the log; None for one that is none of ours."""
        if not self.metrics_file.is_file():
            return []
        text = self.metrics_file.read_text("utf-8", errors="replace")
        return [_metric_row(line) for line in text.split("\n") if line]

    @property
    def _cleared(self) -> Path:
        """A mark that the rest of the folder is to be removed, and nobody needs to be asked."""
        return self.path / ".cleared"

    def _occupied(self) -> bool:
        """Whether somebody's files are here; not our lock, nor what a start that was killed left."""
        if not self.path.is_dir() or self._cleared.exists():
            return False
        left = _OURS if self._start_was_killed() else ("run.json",)
        return any(path.name not in left and not path.name.startswith(".") for path in self.path.iterdir())

    def _start_was_killed(self) -> bool:
        """Whether there is a run.json that says no more than that a run was to begin."""
        try:
            return self.record.get("status") == "new" and not self.recipe_file.exists()
        except UserError:
            return False

    def _holds_run(self) -> bool:
        """Both files: a recipe.yaml alone may be the user's own."""
        return self.recipe_file.is_file() and (self.path / "run.json").is_file()

    def _refuse_or_clear(self, overwrite: bool) -> None:
        if not overwrite and not self._cleared.exists():
            finished = "already holds a finished run; choose another --out, or pass --overwrite"
            unfinished = "holds an unfinished run; pass --resume to go on or --overwrite to start again"
            raise UserError(f"{self.path} {finished if self.is_finished() else unfinished}")
        if self.recipe_file.exists():
            self.recipe_file.replace(self._cleared)
        self._clear()

    def _clear(self) -> None:
        """Remove what is ours."""
        for path in self.path.iterdir():
            ours = path.name in _OURS or path.name.startswith(tuple(f".{name}" for name in _OURS))
            if ours and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif ours:
                path.unlink()
        self._cleared.unlink(missing_ok=True)


def tokenizer_checksum(data: dict[str, Any]) -> str | None:
    """Return what tells a tokenizer from others, of what a run notes of its data; None where that is not known."""
    files = data.get("fingerprint")
    named = files.items() if isinstance(files, dict) else ()
    return next((str(checksum) for name, checksum in named if name.endswith("tokenizer.json")), None)


def other_units(recipe: Recipe, before: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Say that data keep other collocations than before, where the masks of a recipe have their shape."""
    if "units" not in getattr(PATTERNS[recipe.mask.pattern], "needs", ()) or before.get("units") == data["units"]:
        return []
    return ["the units of the data (--pmi) are others"]


def as_watched_by(recipe: Recipe, other: Recipe) -> Recipe:
    """Return another recipe with this one's keys that no weight depends on."""
    return replace(other, train=replace(other.train, **{key: getattr(recipe.train, key) for key in WATCHING}))


def _stem_in(record: dict[str, Any]) -> Stem:
    """Return what a branch's run.json says of its stem; it raises where a part of that is missing."""
    if not (branch := record.get("branch")):
        return ROOT
    for one in branch["history"]:
        int(one["from"]), int(one["step"]), float(one["own_flops"]), int(one["own_tokens"])
        str(one["id"] + one["run"] + one["data"] + "".join(one["changed"]))
    tokens = int(branch["tokens"])
    read = int(branch.get("tokens_read", tokens))  # of before rows were selected
    return Stem(int(branch["step"]), int(branch["samples"]), tokens, float(branch["flops"]), read)


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def _metric_row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    is_ours = isinstance(step, int) and 0 <= step <= MOST_STEPS and is_number(row.get("seconds"))
    return row if is_ours else None


def is_number(value: Any) -> bool:
    """Whether a value of a log is one that can be computed with: not NaN, nor larger than floats go."""
    return isinstance(value, (int, float)) and -sys.float_info.max <= value <= sys.float_info.max
