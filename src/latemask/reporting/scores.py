"""Downstream scores, brought together with the runs they belong to. Only like is put beside like."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from latemask.evaluation.identity import encoder_checksum
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import RESULTS, Results
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest
from latemask.reporting.runs import Run


@dataclass(frozen=True)
class Contest:
    """One task, on the same examples and by the same protocol for everybody."""

    task: str
    identity: str
    part: str
    """Said of a task whose data is a part of GLUE's; else empty."""
    label: str = ""
    floors: dict[str, float] = field(default_factory=dict)
    """What the task gives without an encoder, in per cent."""
    method: str = Protocol.method


@dataclass(frozen=True)
class TaskScores:
    """What one encoder scored in one contest."""

    by_seed: dict[int, float]
    """Fine-tuning seed → score in per cent."""
    learning_rate: float
    """The one that was best on dev; the scores are for this one."""
    tried: tuple[float, ...] = ()
    """All learning rates."""
    collapsed: int = 0
    """How many of the seeds say the same of everything."""

    @property
    def values(self) -> list[float]:
        """The scores alone."""
        return list(self.by_seed.values())


ByContest = dict[str, TaskScores]


@dataclass(frozen=True)
class Scores:
    """What runs scored, by run and contest."""

    contests: list[Contest]
    by_run: dict[str, ByContest]
    """Of finished runs: these are judged."""
    problems: list[str] = field(default_factory=list)
    controls: dict[str, ByContest] = field(default_factory=dict)
    """The same for encoders that were never trained: what the tasks' own rows teach."""
    unfinished: dict[str, ByContest] = field(default_factory=dict)
    """The same for runs that are not at their end: shown, and not judged."""

    @property
    def shared(self) -> list[str]:
        """The contests that every run with scores took part in: averages are over these alone."""
        scored = [set(found) for found in self.by_run.values() if found]
        return [contest.label for contest in self.contests if scored and all(contest.label in run for run in scored)]

    def of(self, run: str, label: str) -> list[float]:
        """Return the scores of a run in a contest, one for each seed; none where it took no part."""
        found = self.by_run.get(run, {}).get(label)
        return found.values if found else []

    def averages(self, run: str) -> list[float]:
        """Return the mean over the shared contests, for each fine-tuning seed that all of them have."""
        return self._averages(self.by_run.get(run, {}))

    @property
    def control_averages(self) -> dict[str, list[float]]:
        """The same of every never-trained control that took part in all of them."""
        averages = {name: self._averages(found) for name, found in self.controls.items()}
        return {name: scores for name, scores in averages.items() if scores}

    @property
    def floor_averages(self) -> dict[str, float]:
        """The mean over the shared contests of every floor that all of them have."""
        shared = [contest.floors for contest in self.contests if contest.label in self.shared]
        names = [name for name in (shared[0] if shared else {}) if all(name in floors for floors in shared)]
        return {name: statistics.fmean(floors[name] for floors in shared) for name in names}

    def _averages(self, by_contest: ByContest) -> list[float]:
        found = [by_contest[label].by_seed for label in self.shared if label in by_contest]
        if not found or len(found) < len(self.shared):
            return []
        seeds = [seed for seed in found[0] if all(seed in one for one in found)]
        return [statistics.fmean(one[seed] for one in found) for seed in seeds]


def read_scores(paths: Sequence[Path], runs: Sequence[Run]) -> Scores:
    """Read result files (or the folders they are in) and give each number to the run whose encoder it is."""
    scores = Scores([], {run.name: {} for run in runs if run.is_finished})
    if not paths:
        return scores
    owners = _Owners(runs)
    scores.problems.extend(owners.problems)
    for path in paths:
        try:
            results = Results.read(path / RESULTS if path.is_dir() else path)
        except UserError as error:
            scores.problems.append(f"left out: {error}")
            continue
        _collect(results, owners, scores)
    scores.problems.extend(_shortcomings(scores, runs))
    return scores


def _collect(results: Results, owners: _Owners, scores: Scores) -> None:
    where = printable(str(results.path))
    for name, record in results.encoders.items():
        is_control = bool(record.get("random"))
        try:
            owner = (owners.control if is_control else owners.of)(name, record["identity"])
        except UserError as error:
            scores.problems.append(f"{where}: {error}; left out")
            continue
        among = scores.controls if is_control else scores.by_run if owner in scores.by_run else scores.unfinished
        found = among.setdefault(owner, {})
        for task in results.tasks:
            if (summary := results.summary(name, task)) is None:
                scores.problems.append(f"{where}: '{printable(name)}' has no {printable(task)} yet")
            elif (label := _contest(results, task, scores.contests).label) in found:
                scores.problems.append(f"{where}: {owner} has a score on {label} already; this one is left out")
            else:
                by_seed = {seed: 100 * score for seed, score in zip(summary.seeds, summary.scores, strict=True)}
                tried = tuple(map(float, summary.tried))
                found[label] = TaskScores(by_seed, summary.learning_rate, tried, summary.collapsed)


def _shortcomings(scores: Scores, runs: Sequence[Run]) -> Iterator[str]:
    """Say what a reader of the scores must know."""
    for run in runs:
        if run.name in scores.unfinished:
            yield f"{run.name} is not finished: its scores are shown, and not judged"
        elif not scores.by_run.get(run.name):
            yield f"{run.name}: no downstream results were given"
    for name in scores.controls:
        if scores.shared and name not in scores.control_averages:
            yield f"{name} was not run on all shared tasks: it has no mean"
    if any(scores.by_run.values()) and not scores.shared:
        yield "no task was run by all of these runs in the same way: there is no average to compare"
    for name, found in {**scores.by_run, **scores.controls}.items():
        yield from _shortcomings_of(name, found, scores)
    for contest in scores.contests:
        yield from _other_rates(contest.label, scores)


def _shortcomings_of(name: str, found: ByContest, scores: Scores) -> Iterator[str]:
    tasks = [found[label].by_seed for label in scores.shared if label in found]
    if lacking := {seed for task in tasks for seed in task if any(seed not in other for other in tasks)}:
        words = ", ".join(map(str, sorted(lacking)))
        yield f"{name}: not in its mean, for they were not run on every shared task: fine-tuning seeds {words}"
    for label, task in found.items():
        if task.collapsed:
            yield f"{name}: {task.collapsed} of {len(task.by_seed)} fine-tunings on {label} say the same of everything"


def _other_rates(label: str, scores: Scores) -> Iterator[str]:
    """More learning rates to choose from, on dev, or better ones are an advantage that is not the encoder's."""
    tried: dict[tuple[float, ...], list[str]] = {}
    for name, found in scores.by_run.items():
        if label in found:
            tried.setdefault(found[label].tried, []).append(name)
    if len(tried) > 1:
        groups = (f"{', '.join(names)} at {', '.join(f'{rate:g}' for rate in rates)}" for rates, names in tried.items())
        yield f"{label}: not fine-tuned at the same learning rates: {' / '.join(groups)}"


def _contest(results: Results, task: str, contests: list[Contest]) -> Contest:
    """Return the contest of a task; one with other data or by another protocol is another contest."""
    record = results.tasks[task]
    alike = {"precision": "auto", "checkpointing": False}  # rounding is no other contest, and neither is memory
    protocol = {**results.protocol.as_record(), **alike}
    identity = json_digest([task, record["identity"], protocol])
    floors = {printable(floor.name): 100 * floor.score for floor in results.floors(task)}
    for contest in contests:
        if contest.identity == identity:
            contest.floors.update(floors)  # of files from before there were floors, one may have them
            return contest
    method = results.protocol.method
    before = sum((contest.task, contest.method) == (task, method) for contest in contests)
    label = printable(task) + ("" if method == Protocol.method else f", {printable(method)}")
    label += f" ({before + 1})" if before else ""
    contests.append(Contest(task, identity, record["part"], label, floors, method))
    return contests[-1]


class _Owners:
    """Whose encoder is it? The checksum says so; a name only where the encoder itself is gone."""

    def __init__(self, runs: Sequence[Run]):
        self.by_checksum: dict[str, str] = {}
        self.by_path: dict[Path, str] = {}
        self.controls: dict[str, str] = {}
        self.problems: list[str] = []
        for run in runs:
            encoder = run.folder.encoder
            self.by_path |= {path.resolve(): run.name for path in (run.folder.path, encoder)}
            if (encoder / "config.json").is_file():
                try:
                    self.by_checksum.setdefault(encoder_checksum(encoder), run.name)
                except UserError as error:
                    self.problems.append(f"{run.name}: {error}")

    def control(self, name: str, identity: str) -> str:
        """Return what a control is called, or say what is wrong."""
        if self.controls.setdefault(name, identity) != identity:
            raise UserError(f"'{printable(name)}' is another encoder than the '{printable(name)}' before it")
        return printable(name)

    def of(self, name: str, checksum: str) -> str:
        """Return the name of the run, or say what is wrong."""
        if found := self.by_checksum.get(checksum):
            return found
        by_name = self.by_path.get(Path(name).resolve())
        if by_name is None:
            raise UserError(f"'{printable(name)}' is none of the runs given")
        if by_name in self.by_checksum.values():
            raise UserError(f"'{printable(name)}' was evaluated with other weights than {by_name} has now")
        return by_name
