"""What the numbers say, in words, with their uncertainty; and what they do not say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from latemask.evaluation.verdicts import APART, certainty
from latemask.recipe import OBJECTIVES
from latemask.reporting.runs import Run, data_of, identity_of
from latemask.reporting.scores import Scores

_EQUAL = 0.02  # FLOPs within 2 % are the same: steps are whole


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[Run]
    scores_by_run: list[list[float]] = field(default_factory=list)
    """Of each run, the mean over the shared tasks for every fine-tuning seed; none where it was not fine-tuned."""

    @property
    def scores(self) -> list[float]:
        """The same, of all runs together."""
        return [score for scores in self.scores_by_run for score in scores]

    @property
    def scored_runs(self) -> int:
        """How many runs have scores."""
        return sum(bool(scores) for scores in self.scores_by_run)

    @property
    def losses(self) -> list[float]:
        """The validation loss at the end of each run, where it was measured."""
        return [run.last_validation for run in self.runs if run.last_validation is not None]

    @property
    def loss(self) -> float:
        """Their median, as it is shown: what looks the same is the same."""
        return round(statistics.median(self.losses), 3)

    @property
    def flops(self) -> float:
        """FLOPs of one run."""
        return self.runs[0].flops

    @property
    def median(self) -> float:
        """The median score."""
        return statistics.median(self.scores)

    @property
    def spread(self) -> str:
        """Lowest to highest, and of how many."""
        n = f"n = {len(self.scores)} from {self.scored_runs} pre-training {_plural('run', self.scored_runs)}"
        return n if len(self.scores) == 1 else f"{min(self.scores):.1f} to {max(self.scores):.1f}, {n}"


def arms_of(runs: Sequence[Run], scores: Scores) -> list[Arm]:
    """Group finished runs that are repeats of each other, in the order they were given; a copy is no repeat."""
    groups: dict[str, list[Run]] = {}
    known = set()
    for run in runs:
        if run.is_finished and identity_of(run) not in known:
            known.add(identity_of(run))
            groups.setdefault(f"{run.arm} {run.way} {data_of(run)}", []).append(run)
    labelled = zip(_labels([group[0] for group in groups.values()]), groups.values(), strict=True)
    return [Arm(label, group, [scores.averages(run.name) for run in group]) for label, group in labelled]


def _labels(runs: Sequence[Run]) -> list[str]:
    """Name arms by their method where that tells them apart, and by the run's name where it does not."""
    methods = [run.method for run in runs]
    budgets = [f"{run.method}, {run.flops:.2g} FLOPs" for run in runs]
    names = [f"{run.name} ({run.method})" for run in runs]
    return next((labels for labels in (methods, budgets) if len(set(labels)) == len(labels)), names)


def baselines_of(arms: Sequence[Arm]) -> list[Arm]:
    """Return what the others are held against: early masking or, where there is none, the first that was given."""
    found = [arm for arm in arms if OBJECTIVES[arm.runs[0].recipe.objective].is_baseline]
    return found if found and len(found) < len(arms) else list(arms[:1])


def verdict(arms: Sequence[Arm], scores: Scores) -> list[str]:
    """Return the verdict: by downstream scores, then by validation losses, a sentence or two for each baseline."""
    if len(arms) < 2:
        return ["Fewer than two finished runs that differ: there is nothing to compare yet."]
    return [*_by_scores(arms, scores), *_by_loss(arms)]


def _by_scores(arms: Sequence[Arm], scores: Scores) -> list[str]:
    scored = [arm for arm in arms if arm.scores]
    never = [_against_control(name, found, scored) for name, found in scores.control_averages.items() if scored]
    floors = [_against_floor(name, found, scored) for name, found in scores.floor_averages.items() if scored]
    if len(scored) < 2:
        nothing = "No downstream scores of two different runs on the same tasks: only losses can be compared."
        return [nothing, *never, *floors]
    tasks = f"{len(scores.shared)} {_plural('task', len(scores.shared))} ({', '.join(scores.shared)})"
    said = [f"Scores are means over {tasks}; medians over seeds, lowest to highest."]
    bases = baselines_of(scored)
    others = [arm for arm in scored if arm not in bases]
    for base in bases:
        said += _against_base(base, others) if others else []
    said += [*never, *floors]
    silent = [arm.label for arm in arms if not arm.scores]
    return said + ([f"Without scores, and not judged: {', '.join(silent)}."] if silent else [])


def _against_base(base: Arm, others: Sequence[Arm]) -> list[str]:
    """Say who reaches the baseline's median score with the least FLOPs or, if nobody does, who comes closest.

    Then what every other arm has beside it, so that none is left out.
    """
    able = [arm for arm in others if round(arm.median, 1) >= round(base.median, 1)]
    best = min(able, key=lambda arm: arm.flops) if able else max(others, key=lambda arm: arm.median)
    reference = f"the median of {base.label} ({base.median:.1f}; {base.spread})"
    end = f"at {best.flops / base.flops:.0%} of its FLOPs: {_beside(best, base)}."
    if able:
        said = [f"{best.label} reaches {reference} {end}"]
    else:
        said = [f"None of the others reaches {reference}; the best of them is {best.label} {end}"]
    for arm in others:
        is_equal = abs(arm.flops / base.flops - 1) <= _EQUAL
        if is_equal or arm is not best:
            flops = "the same FLOPs as" if is_equal else f"{arm.flops / base.flops:.0%} of the FLOPs of"
            said.append(f"At {flops} {base.label}, {arm.label} has {_beside(arm, base)}.")
    return said


def _against_floor(name: str, floor: float, arms: Sequence[Arm]) -> str:
    """Say which arms are worth an encoder: those that beat what needs none; numbers as they are shown."""
    above = [arm.label for arm in arms if round(arm.median, 1) > round(floor, 1)]
    low = [arm.label for arm in arms if arm.label not in above]
    words = [f"{what}: {', '.join(found)}" for what, found in (("above it", above), ("AT OR BELOW it", low)) if found]
    return f"Without an encoder, {name} has {floor:.1f}; {'; '.join(words)}."


def _against_control(name: str, found: Sequence[float], arms: Sequence[Arm]) -> str:
    """Say which arms gained anything by being trained at all: without that, their order says little."""
    median = statistics.median(found)
    higher = [arm for arm in arms if arm.median > median]
    groups = {
        "above all of that": [arm for arm in higher if min(arm.scores) > max(found)],
        "above by the median only": [arm for arm in higher if min(arm.scores) <= max(found)],
        "no better, so that pre-training shows nothing here": [arm for arm in arms if arm not in higher],
    }
    words = [f"{what}: {', '.join(arm.label for arm in group)}" for what, group in groups.items() if group]
    control = f"{median:.1f} ({min(found):.1f} to {max(found):.1f}, n = {len(found)})"
    return f"Never trained, {name} has {control}; {'; '.join(words)}."


def _beside(arm: Arm, base: Arm) -> str:
    sure = _certainty(arm.scores, base.scores)
    if sure == APART and min(arm.scored_runs, base.scored_runs) == 1:
        sure = f"{APART}, but of one pre-training run they say nothing about other seeds of it"
    return f"{arm.median:.1f} ({arm.median - base.median:+.1f}; {arm.spread}); {sure}"


def _certainty(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Say what the spread allows to say, whichever of the two is higher."""
    return certainty(*sorted((ours, theirs), key=statistics.median, reverse=True))


def _by_loss(arms: Sequence[Arm]) -> list[str]:
    bases = baselines_of(arms)
    others = [arm for arm in arms if arm not in bases]
    said: list[str] = []
    for base in bases:
        like = [arm for arm in others if _same_test(arm, base)]
        said += [_loss_reached(base, like)] if like else []
        if unlike := [arm.label for arm in others if arm not in like]:
            said.append(
                f"The losses of {base.label} and of {', '.join(unlike)} are not comparable: the data, the length or "
                "the number of rows differ, or one has no loss at its end."
            )
    return said + _ends(arms)


def _same_test(one: Arm, other: Arm) -> bool:
    """Whether all runs of two arms were validated at their end, on the same rows."""
    runs = [*one.runs, *other.runs]
    return len({run.validated_on for run in runs}) == 1 and all(run.last_validation is not None for run in runs)


def _loss_reached(base: Arm, others: Sequence[Arm]) -> str:
    """Say who reaches the baseline's last loss with the least FLOPs or, if nobody does, who comes closest."""
    able = [arm for arm in others if arm.loss <= base.loss]
    best = min(able, key=lambda arm: _flops_at(arm, base.loss)) if able else min(others, key=lambda arm: arm.loss)
    reference = f"the last validation loss of {base.label} ({base.loss:.3f})"
    end = f"{best.loss:.3f} with {best.flops / base.flops:.0%} of its FLOPs; {_certainty(best.losses, base.losses)}."
    if not able:
        return f"None of the others reaches {reference}; the best of them is {best.label}: {end}"
    if (spent := _flops_at(best, base.loss)) < best.flops:
        return f"{best.label} reaches {reference} at {spent / base.flops:.0%} of its FLOPs, and ends at {end}"
    return f"{best.label} reaches {reference}: it ends at {end}"


def _flops_at(arm: Arm, loss: float) -> float:
    """Return the FLOPs at the first validation that is as good as a loss, else all of them; median over runs."""
    good = ([row for row in run.points("eval_loss") if round(row["eval_loss"], 3) <= loss] for run in arm.runs)
    pairs = zip(arm.runs, good, strict=True)
    return statistics.median(run.place(rows[0], "flops") if rows else arm.flops for run, rows in pairs)


def _ends(arms: Sequence[Arm]) -> list[str]:
    """Say where each ends, of those that were validated alike."""
    known = [arm for arm in arms if len(arm.losses) == len(arm.runs)]
    groups = [[other for other in known if _same_test(arm, other)] for arm in known]
    each = [group for number, group in enumerate(groups) if len(group) > 1 and group not in groups[:number]]
    return [f"Validation losses at the end: {'; '.join(map(_end, group))}." for group in each]


def _end(arm: Arm) -> str:
    if len(arm.losses) == 1:
        return f"{arm.label}: {arm.loss:.3f} (one run)"
    return f"{arm.label}: {arm.loss:.3f} ({min(arm.losses):.3f} to {max(arm.losses):.3f}, {len(arm.losses)} runs)"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
