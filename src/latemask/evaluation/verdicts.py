"""What a table says, in words: which encoder to use, by how much, how sure that is, and which floors are not beaten.

Every number is compared as the table shows it, so that the words never contradict it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from latemask.evaluation.floors import CONSTANT, FREQUENT_TAG, TFIDF
from latemask.evaluation.results import Results
from latemask.ground.console import printable

APART = "the ranges do not overlap"
_OVERLAP = "the ranges overlap, so seeds alone could make this difference"
_ONE_RUN = "one run has no range, so seeds alone could make this difference"
_OTHER_SHAPE = "its architecture does as well without pre-training"
# What a floor is called in a sentence, and what it does that an encoder should do better.
_CALLED = {
    CONSTANT: ("the majority class or mean", "an answer that reads nothing"),
    TFIDF: (TFIDF, "a linear model on n-gram counts"),
    FREQUENT_TAG: (f"the {FREQUENT_TAG}", "looking words up"),
}


@dataclass(frozen=True)
class Standing:
    """What an encoder or a floor has on a task, or on average; in per cent, as the table shows it."""

    name: str
    score: float
    by_seed: Sequence[float] = ()
    """Not rounded; of a floor none."""
    meaning: str = ""
    """Of a floor: what does as well as an encoder that does not beat it. Of another architecture's control: that."""

    def __str__(self) -> str:
        return f"{self.name} ({self.score:.1f})"


@dataclass(frozen=True)
class Field:
    """Who took part in a task."""

    trained: dict[str, Standing]
    floors: dict[str, list[Standing]]
    """What each trained encoder is held against: the task's floors, and all that was never trained."""

    def is_above(self, encoder: str) -> bool:
        """Whether an encoder beats all its floors."""
        return all(self.trained[encoder].score > floor.score for floor in self.floors[encoder])


def verdict(results: Results) -> list[str]:
    """Return sentences about each task, then about all of them."""
    fields = {task: _field(results, task) for task in results.tasks}
    said = [f"{printable(task)}: {sentence}" for task, field in fields.items() for sentence in _of_task(field)]
    said += [f"{printable(task)}: {sentence}" for task in results.tasks for sentence in _shortcomings(results, task)]
    return [*said, *_over_tasks(results, fields)]


def certainty(better: Sequence[float], worse: Sequence[float]) -> str:
    """Say what the spread of two encoders' runs allows to say about their difference."""
    if min(len(better), len(worse)) <= 1:
        return _ONE_RUN
    return APART if min(better) > max(worse) else _OVERLAP


def as_shown(score: float) -> float:
    """Return a score in per cent, rounded as tables round it."""
    return float(f"{100 * score:.1f}")


def _field(results: Results, task: str) -> Field:
    found = {name: summary for name in results.encoders if (summary := results.summary(name, task))}
    standings = {
        name: Standing(printable(name), as_shown(one.median), [100 * score for score in one.scores])
        for name, one in found.items()
    }
    controls = [name for name in found if results.is_control(name)]
    fixed = []
    for floor in results.floors(task):
        called, meaning = _CALLED.get(floor.name, (printable(floor.name), "a model without an encoder"))
        fixed.append(Standing(called, as_shown(floor.score), meaning=meaning))
    trained = {name: standing for name, standing in standings.items() if name not in controls}
    shapes = {name: results.encoders[name].get("architecture") for name in found}

    def control(other: str, name: str) -> Standing:
        is_same = None in (shapes[other], shapes[name]) or shapes[other] == shapes[name]
        return standings[other] if is_same else replace(standings[other], meaning=_OTHER_SHAPE)

    return Field(trained, {name: fixed + [control(other, name) for other in controls] for name in trained})


def _of_task(field: Field) -> Iterator[str]:
    if not field.trained:
        yield "no trained encoder was run, so there is nothing to choose."
        return
    yield _choice(field)
    for name, found in field.trained.items():
        yield from (_beside_floor(found, floor) for floor in field.floors[name] if not _is_clear(found, floor))
    if clear := [_lead(found, field.floors[name]) for name, found in field.trained.items() if field.is_above(name)]:
        yield f"above every floor: {', '.join(clear)}."
    if not any(floor.by_seed for floors in field.floors.values() for floor in floors):
        yield "no never-trained control was run, so this does not show what pre-training gives."


def _shortcomings(results: Results, task: str) -> Iterator[str]:
    for name in results.encoders:
        summary = results.summary(name, task)
        if summary is None:
            yield f"{printable(name)} was not run on it."
        elif summary.collapsed:
            yield f"{summary.collapsed} of {len(summary.scores)} runs of {printable(name)} collapsed to one answer."


def _is_clear(encoder: Standing, floor: Standing) -> bool:
    """Whether there is nothing to say: it is above, and seeds alone could not make the difference."""
    is_sure = not floor.by_seed or certainty(encoder.by_seed, floor.by_seed) == APART
    return encoder.score > floor.score and is_sure


def _choice(field: Field) -> str:
    """Say which encoder to use, and how far it is from the next; or that none is worth it."""
    name = max(field.trained, key=lambda one: field.trained[one].score)
    best, others = field.trained[name], [found for one, found in field.trained.items() if one != name]
    if field.is_above(name):
        return f"use {best}{_distance(best, others)}."
    floor = max(field.floors[name], key=lambda one: one.score)
    what = f"{floor.name}{', never trained,' if floor.by_seed else ''} has {floor.score:.1f}"
    if not others:
        return f"do not use {best}, for {what}."
    return f"use none of these encoders, for {what}; the best of them is {best}{_distance(best, others)}."


def _distance(best: Standing, others: Sequence[Standing]) -> str:
    if not others:
        return ""
    level = [str(other) for other in others if other.score == best.score]
    if level:
        return f", level with {' and '.join(level)}"
    second = max(others, key=lambda one: one.score)
    ahead = f"{best.score - second.score:.1f} points above {second}"
    return f", {ahead}; {certainty(best.by_seed, second.by_seed)}"


def _beside_floor(encoder: Standing, floor: Standing) -> str:
    """Say that an encoder is at or below a floor, or that it may be above a control by chance."""
    below = floor.score - encoder.score
    if not floor.by_seed:
        where, is_good = (f"{below:.1f} points below", "better") if below else ("level with", "as good")
        return f"{encoder} is {where} {floor}: {floor.meaning} is {is_good} for this task."
    control = f"the never-trained control {floor}"
    if below > 0:
        sure, what = certainty(floor.by_seed, encoder.by_seed), floor.meaning or "pre-training hurts here"
        return f"{encoder} is {below:.1f} points BELOW {control}: {what}; {sure}."
    if not below:
        return f"{encoder} is level with {control}: {floor.meaning or 'pre-training shows nothing here'}."
    return f"{encoder} is {-below:.1f} points above {control}, but {certainty(encoder.by_seed, floor.by_seed)}."


def _lead(encoder: Standing, floors: Sequence[Standing]) -> str:
    highest = max(floors, key=lambda floor: floor.score)
    return f"{encoder.name} by {encoder.score - highest.score:.1f} points over {highest}"


def _over_tasks(results: Results, fields: dict[str, Field]) -> Iterator[str]:
    """Say who is best on average, of those that have all tasks, and who is above the floors where."""
    whole = [name for name in results.encoders if all(name in field.trained for field in fields.values())]
    if len(fields) < 2 or not whole:
        return
    best, *others = sorted((_average(results, name) for name in whole), key=lambda one: -one.score)
    yield f"On average over {len(fields)} tasks: {best}{_distance(best, others)}."
    for name in whole:
        low = [printable(task) for task, field in fields.items() if not field.is_above(name)]
        where = f"not above every floor on {', '.join(low)}" if low else "above every floor on all tasks"
        yield f"{printable(name)} is {where}."


def _average(results: Results, encoder: str) -> Standing:
    """Return the mean over all tasks, and that of each seed that every task has."""
    found = [summary for task in results.tasks if (summary := results.summary(encoder, task))]
    by_task = [dict(zip(summary.seeds, summary.scores, strict=True)) for summary in found]
    seeds = [seed for seed in by_task[0] if all(seed in scores for scores in by_task)]
    means = [100 * statistics.fmean(scores[seed] for scores in by_task) for seed in seeds]
    return Standing(printable(encoder), as_shown(statistics.fmean(summary.median for summary in found)), means)
