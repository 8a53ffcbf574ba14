"""Downstream scores, brought together with the runs they belong to. Only like is put beside like."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from latemask.console import printable
from latemask.errors import UserError
from latemask.evaluation.identity import encoder_checksum
from latemask.evaluation.results import Results
from latemask.files import json_digest
from latemask.reporting.runs import Run

RESULTS = "results.json"


@dataclass(frozen=True)
class Contest:
    """One task, on the same examples and by the same protocol for everybody."""

    task: str
    identity: str
    part: str
    """Said of a task whose data is a part of GLUE's; else empty."""
    label: str = ""


@dataclass(frozen=True)
class Scores:
    """What runs scored, in per cent: one number for each run, contest and fine-tuning seed."""

    contests: list[Contest]
    by_run: dict[str, dict[str, list[float]]]
    """Run → contest label → one score for each seed."""
    problems: list[str]
    controls: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """The same for encoders that were never trained: what the tasks' own rows teach."""

    @property
    def shared(self) -> list[str]:
        """The contests that every run with scores took part in: averages are over these alone."""
        scored = [set(found) for found in self.by_run.values() if found]
        return [contest.label for contest in self.contests if scored and all(contest.label in run for run in scored)]

    def averages(self, run: str) -> list[float]:
        """Return the mean over the shared contests, for each fine-tuning seed that all of them have."""
        return self._averages(self.by_run.get(run, {}))

    @property
    def control_averages(self) -> dict[str, list[float]]:
        """The same of every never-trained control that took part in all of them."""
        averages = {name: self._averages(found) for name, found in self.controls.items()}
        return {name: scores for name, scores in averages.items() if scores}

    def _averages(self, by_contest: dict[str, list[float]]) -> list[float]:
        found = [by_contest.get(label, []) for label in self.shared]
        return [statistics.fmean(scores) for scores in zip(*found, strict=False)]


def read_scores(paths: Sequence[Path], runs: Sequence[Run]) -> Scores:
    """Read result files (or the folders they are in) and give each number to the run whose encoder it is."""
    scores = Scores([], {run.name: {} for run in runs}, [])
    owners = _Owners(runs)
    for path in paths:
        try:
            results = Results.read(path / RESULTS if path.is_dir() else path)
        except UserError as error:
            scores.problems.append(f"left out: {error}")
            continue
        _collect(results, owners, scores)
    silent = [run.name for run in runs if paths and not scores.by_run[run.name]]
    scores.problems.extend(f"{name}: no downstream results were given" for name in silent)
    partial = [name for name, found in scores.controls.items() if scores.shared and name not in scores.control_averages]
    scores.problems.extend(f"{name} was not run on all shared tasks: it has no mean" for name in partial)
    if any(scores.by_run.values()) and not scores.shared:
        scores.problems.append("no task was run by all of these runs in the same way: there is no average to compare")
    return scores


def _collect(results: Results, owners: _Owners, scores: Scores) -> None:
    where = printable(str(results.path))
    for name, record in results.encoders.items():
        is_control = bool(record.get("random"))
        owner, problem = (owners.control if is_control else owners.of)(name, record["identity"])
        if owner is None:
            scores.problems.append(f"{where}: {problem}")
            continue
        found = (scores.controls if is_control else scores.by_run).setdefault(owner, {})
        for task in results.tasks:
            summary = results.summary(name, task)
            if summary is None:
                scores.problems.append(f"{where}: '{printable(name)}' has no {printable(task)} yet")
                continue
            label = _contest(results, task, scores.contests).label
            if label in found:
                scores.problems.append(f"{where}: {owner} has a score on {label} already; this one is left out")
                continue
            found[label] = [100 * score for score in summary.scores]


def _contest(results: Results, task: str, contests: list[Contest]) -> Contest:
    """Return the contest of a task; one with other data or by another protocol is another contest."""
    record = results.tasks[task]
    protocol = asdict(replace(results.protocol, precision="auto"))  # rounding is no other contest
    identity = json_digest([task, record["identity"], protocol])
    for contest in contests:
        if contest.identity == identity:
            return contest
    before = sum(contest.task == task for contest in contests)
    contests.append(Contest(task, identity, record["part"], printable(task) + (f" ({before + 1})" if before else "")))
    return contests[-1]


class _Owners:
    """Whose encoder is it? The checksum says so; a name only where the encoder itself is gone."""

    def __init__(self, runs: Sequence[Run]):
        self.by_checksum: dict[str, str] = {}
        self.by_path: dict[Path, str] = {}
        self.controls: dict[str, str] = {}
        for run in runs:
            encoder = run.folder.encoder
            if (encoder / "config.json").is_file():
                self.by_checksum[encoder_checksum(encoder)] = run.name
            self.by_path |= {path.resolve(): run.name for path in (run.folder.path, encoder)}

    def control(self, name: str, identity: str) -> tuple[str | None, str]:
        """Return what a control is called, or what is wrong."""
        if self.controls.setdefault(name, identity) == identity:
            return printable(name), ""
        return None, f"'{printable(name)}' is another encoder than the '{printable(name)}' before it; left out"

    def of(self, name: str, checksum: str) -> tuple[str | None, str]:
        """Return the run, or what is wrong."""
        shown = printable(name)
        if found := self.by_checksum.get(checksum):
            return found, ""
        by_name = self.by_path.get(Path(name).resolve())
        if by_name is None:
            return None, f"'{shown}' is none of the runs given; left out"
        if by_name in self.by_checksum.values():
            return None, f"'{shown}' was evaluated with other weights than {by_name} has now; left out"
        return by_name, ""
