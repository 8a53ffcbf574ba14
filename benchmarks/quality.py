"""Does late masking give the same encoder for less? The study of docs/study.md, in pieces that go on.

python benchmarks/quality.py --shared ../shared/data --work study --stop-after 150m
python benchmarks/quality.py --summarise --write --figures docs/study

The same command goes on where it was stopped; what is done is not done again. Every run that was pre-trained (and, most
of them, fine-tuned) leaves a small record in benchmarks/quality/, and --summarise makes every number of the study from
these alone; --write puts them into README.md and docs/results.md. One JSON object comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))  # also when it is run as a script

import torch
from benchmarks.quality_arms import ARMS, FINETUNING, RECIPE, ROWS, UNIT, VOCABULARY, Arm
from benchmarks.quality_summary import RECORDS, VALIDATION, Found, draw, read_records, summary
from benchmarks.quality_tables import blocks, write_documents
from torch.utils.data import DataLoader

from latemask.evaluation.results import Results
from latemask.ground.files import write_json_atomically
from latemask.ground.signals import deadline
from latemask.masking.batches import Collator
from latemask.model import load_model
from latemask.recipe import flat, load_recipe
from latemask.run_folder import RunFolder
from latemask.text import Mixture
from latemask.training.job import plan_job

_POLL = 2.0
_CURVE_POINTS = 40


@dataclass(frozen=True)
class Study:
    """Where everything is."""

    shared: Path
    work: Path
    records: Path = RECORDS

    @property
    def data(self) -> Path:
        """The corpus, prepared."""
        return self.work / "data"

    @property
    def glue(self) -> Path:
        """The part of GLUE that is used."""
        return self.work / "glue-part"

    def run(self, name: str) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.work / "runs" / name)

    def results(self, name: str, task: str) -> Path:
        """Return where the scores of its encoder on a task are."""
        return self.work / "scores" / name / task / "results.json"

    def record(self, name: str) -> Path:
        """Return where its record is."""
        return self.records / f"{name}.json"

    def commits(self, name: str) -> list[str]:
        """Return the commits that worked on a run, in their order."""
        file = self.work / "commits" / name
        return file.read_text("utf-8").split() if file.is_file() else []

    def note_commit(self, name: str) -> None:
        """Note that this commit works on a run."""
        noted = dict.fromkeys([*self.commits(name), _commit()])
        (self.work / "commits").mkdir(parents=True, exist_ok=True)
        (self.work / "commits" / name).write_text("\n".join(noted), "utf-8")


@dataclass(frozen=True)
class Job:
    """One process: the pre-training of a run, or its fine-tuning on one task."""

    run: str
    what: str
    words: list[str]

    @property
    def name(self) -> str:
        """What it is called in messages and logs."""
        return f"{self.run} {self.what}"


# What there is to do


def wanted_runs(only: Sequence[str] | None) -> list[tuple[Arm, int]]:
    """Return arms with their seeds: all, or those that are named, as an arm or as a run, in the order of the names."""
    runs = {f"{arm.name}-{seed}": (arm, seed) for arm in ARMS for seed in range(arm.seeds)}
    known = {*runs, *(arm.name for arm in ARMS)}
    if unknown := sorted(set(only or ()) - known):
        raise SystemExit(f"no such arm or run: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    if only is None:
        return list(runs.values())
    chosen = dict.fromkeys(name for word in only for name, (arm, _) in runs.items() if word in (name, arm.name))
    return [runs[name] for name in chosen]


def jobs_of(study: Study, arm: Arm, seed: int) -> list[Job]:
    """Return what can be done next for one run: its pre-training or, after that, all that is missing of the tasks."""
    name, run = f"{arm.name}-{seed}", study.run(f"{arm.name}-{seed}")
    if study.record(name).is_file():  # done, here or elsewhere
        return []
    if run.is_finished() or not arm.share:
        missing = [task for task in arm.tasks if not is_scored(study, name, task)]
        return [_finetuning(study, arm, name, task) for task in missing]
    options = {**arm.keys, "seed": seed, "budget.flops": arm.share * UNIT}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    begun = run.recipe_file.is_file() and (run.path / "run.json").is_file()
    where = ["--data", str(study.data), "--out", str(run.path), *(["--resume"] if begun else [])]
    return [Job(name, "pretrain", ["pretrain", RECIPE, *where, *words])]


def _finetuning(study: Study, arm: Arm, name: str, task: str) -> Job:
    encoder = [str(study.run(name).path)] if arm.share else [f"random:{RECIPE}", "--tokenizer", str(study.data)]
    where = ["--data", str(study.glue), "--out", str(study.results(name, task).parent)]
    options = {**FINETUNING, "lrs": arm.learning_rate, "tasks": task}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return Job(name, task, ["glue", *encoder, *where, *words, "--no-control"])  # the study has an arm for it


def is_scored(study: Study, name: str, task: str) -> bool:
    """Whether a task of a run is done with all seeds."""
    path = study.results(name, task)
    return path.is_file() and len(Results.read(path).trials) >= int(FINETUNING["seeds"])


def prepare_everything(study: Study) -> None:
    """Prepare corpus and tasks, unless they are there."""
    if not (study.data / "manifest.json").is_file():
        corpus = str(study.shared / "corpus")
        latemask = [sys.executable, "-m", "latemask", "prepare", corpus, "--out", str(study.data)]
        subprocess.run([*latemask, "--vocab-size", str(VOCABULARY)], check=True)
    for folder in sorted(path for path in (study.shared / "glue").iterdir() if path.is_dir()):
        for file in folder.glob("*.tsv"):
            target = study.glue / folder.name / file.name
            if not target.is_file():
                _copy_rows(file, target)


def _copy_rows(file: Path, target: Path) -> None:
    """Copy a file of GLUE, or some of its rows in their order, drawn once and for ever."""
    lines = file.read_text("utf-8").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    head, body = ([], lines) if file.parent.name == "CoLA" else (lines[:1], lines[1:])
    most = ROWS.get(file.stem.split("_")[0], len(body))  # dev_matched is a dev, too
    if most < len(body):
        chosen = sorted(random.Random(file.name).sample(range(len(body)), most))
        body = [body[number] for number in chosen]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([*head, *body]) + "\n", "utf-8")


# Doing it


class Workers:
    """Some processes at a time, each with its share of the cores; all are asked to stop when time is up."""

    def __init__(self, study: Study, count: int, deadline: float):
        self.study, self.count, self.deadline = study, count, deadline
        self.busy: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped = False
        self.failed: list[str] = []

    def run(self, wanted: Sequence[tuple[Arm, int]]) -> None:
        """Work until nothing is missing or time is up."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopped", True))
        signal.signal(signal.SIGINT, lambda *_: setattr(self, "stopped", True))
        while True:
            self._collect()
            self.stopped = self.stopped or time.monotonic() > self.deadline
            waiting = [] if self.stopped else self._waiting(wanted)
            if not waiting and not self.busy:
                return
            if self.stopped:
                self._stop()
            for job in waiting[: self.count - len(self.busy)]:
                self._start(job)
            time.sleep(_POLL)

    def _waiting(self, wanted: Sequence[tuple[Arm, int]]) -> list[Job]:
        """Return what could be begun, in its order."""
        if len(self.busy) >= self.count:
            return []
        jobs = [job for arm, seed in wanted for job in jobs_of(self.study, arm, seed)]
        return [job for job in jobs if job.name not in self.busy and job.name not in self.failed]

    def _start(self, job: Job) -> None:
        log = self.study.work / "logs" / f"{job.name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // self.count))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        print(f"{time.strftime('%H:%M:%S')}  {job.name}", file=sys.stderr, flush=True)
        self.study.note_commit(job.run)
        with log.open("ab") as file:
            words = [sys.executable, "-m", "latemask", *job.words]
            self.busy[job.name] = subprocess.Popen(words, stdout=file, stderr=file, env=environment)

    def _collect(self) -> None:
        for name, process in list(self.busy.items()):
            if process.poll() is None:
                continue
            del self.busy[name]
            if process.returncode and not self.stopped:
                self.failed.append(name)
                print(f"{name} failed ({process.returncode}), see logs/", file=sys.stderr, flush=True)

    def _stop(self) -> None:
        for process in self.busy.values():
            process.send_signal(signal.SIGTERM)
        for process in self.busy.values():
            process.wait()


# What is kept


def write_record(study: Study, arm: Arm, seed: int) -> None:
    """Write what is known of a run when all is done, once; small enough for the repository."""
    name = f"{arm.name}-{seed}"
    if study.record(name).is_file() or jobs_of(study, arm, seed):
        return
    kept = {
        "arm": asdict(arm),
        "seed": seed,
        "commit": ", ".join(study.commits(name)),
        **(_pretraining(study, study.run(name)) if arm.share else _no_pretraining()),
        **_scores(study, name, arm),
    }
    study.records.mkdir(parents=True, exist_ok=True)
    write_json_atomically(study.record(name), kept)


def validation_loss(study: Study, run: RunFolder) -> float:
    """Return the loss of the model at the end of a run, as runs are validated now: 15 % masked."""
    job = plan_job(load_recipe(run.recipe_file), Mixture.open(study.data, verify=False))
    samples, model = job.validation_samples(), load_model(run.model)
    if samples is None:
        raise SystemExit(f"{study.data} holds nothing to validate on")
    batches = DataLoader(
        samples, job.recipe.train.batch_size, collate_fn=Collator.validating(job.recipe, job.data.vocabulary)
    )
    with torch.inference_mode():
        sums = [(len(batch["labels"]), float(model(**batch).loss)) for batch in batches]
    return sum(rows * loss for rows, loss in sums) / len(samples)


def _pretraining(study: Study, run: RunFolder) -> dict[str, Any]:
    rows, record = run.metrics(), run.record
    validated = [row for row in rows if "eval_loss" in row]
    trained = [row for row in rows if "loss" in row]
    return {
        "recipe": flat(load_recipe(run.recipe_file)),
        "data": record["data"]["fingerprint"],
        "steps": record["steps"],
        "tokens": record["tokens"],
        "flops": record["flops"],
        "seconds": rows[-1]["seconds"],
        "precision": record.get("precision", ["fp32"]),
        "versions": record["versions"],
        VALIDATION: round(validation_loss(study, run), 4),
        "validation": [[row["step"], round(row["eval_loss"], 4)] for row in _thinned(validated)],
        "training": [[row["step"], round(row["loss"], 4)] for row in _thinned(trained)],
    }


def _no_pretraining() -> dict[str, Any]:
    nothing = {"steps": 0, "tokens": 0, "flops": 0.0, "seconds": 0.0, "validation": [], "training": []}
    return {"recipe": flat(load_recipe(RECIPE)), **nothing}


def _scores(study: Study, name: str, arm: Arm) -> dict[str, Any]:
    if not arm.tasks:
        return {"scores": {}}
    by_task = {task: Results.read(study.results(name, task)) for task in arm.tasks}
    cells = {task: results.ordered() for task, results in by_task.items()}
    everything = [cell for found in cells.values() for cell in found]
    return {
        "scores": {task: [round(cell.score, 5) for cell in found] for task, found in cells.items()},
        "collapsed": {task: sum(cell.collapsed for cell in found) for task, found in cells.items()},
        "parts": {task: results.tasks[task]["part"] for task, results in by_task.items()},
        "constant": {task: round(results.tasks[task]["constant"]["score"], 5) for task, results in by_task.items()},
        "protocol": by_task[arm.tasks[0]].protocol.as_record(),
        "finetuning_precision": sorted({cell.precision for cell in everything}),
        "learning_rate": sorted({cell.learning_rate for cell in everything}),
        "finetuning_seconds": round(sum(cell.seconds for cell in everything)),
    }


def _thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    stride = max(1, len(rows) // _CURVE_POINTS)
    return [*rows[:-1:stride], *rows[-1:]]


def _commit() -> str:
    """Return the commit of the code; records that are not committed yet are not code."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    name = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "benchmarks/*.py"], check=False).returncode
    return (name.stdout.strip() or "unknown") + ("-dirty" if changed else "")


def show(found: dict[str, Found]) -> None:
    """Print what documents show, and the numbers that matter as one JSON object."""
    for name, block in blocks(found).items():
        print(f"{name}\n\n{block}\n")
    print(json.dumps(summary(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"), help="folder with corpus/ and glue/")
    parser.add_argument("--work", type=Path, default=Path("study"), help="where runs and scores are kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; they share the cores")
    parser.add_argument(
        "--only", nargs="+", help="arms (late-40) or runs (late-40-1) to work on, in this order; by default all"
    )
    parser.add_argument("--stop-after", help="save and stop after this much time (90m, 2h)")
    parser.add_argument("--summarise", action="store_true", help="only make the tables from the records")
    parser.add_argument("--write", action="store_true", help="bring README.md and docs/results.md up to date")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw the figures from the records, too")
    arguments = parser.parse_args()
    if not arguments.summarise:
        study = Study(arguments.shared, arguments.work)
        wanted = wanted_runs(arguments.only)
        prepare_everything(study)
        Workers(study, arguments.jobs, deadline(arguments.stop_after, "--stop-after")).run(wanted)
        for arm, seed in wanted:
            write_record(study, arm, seed)
    found = read_records()
    if arguments.write:
        write_documents(blocks(found))
    if arguments.figures:
        draw(found, arguments.figures)
    show(found)


if __name__ == "__main__":
    main()
