"""What the study says: every number, table, figure and word, made from the records in benchmarks/quality/ alone.

A document holds what is made here between `<!-- study: NAME -->` and `<!-- study: end -->`; a test sees to it that what
stands there is what the records say.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality_arms import (
    ARMS,
    BASELINE,
    CHEAPER,
    CONTROL,
    EQUAL,
    FIRST,
    HIDDEN,
    MAIN,
    RECIPE,
    SHORT,
    TASKS,
    TUNING,
    Arm,
    C,
)

from latemask.evaluation.tasks import GLUE
from latemask.files import write_text_atomically
from latemask.recipe import load_recipe
from latemask.reporting import plots
from latemask.reporting.runs import Run
from latemask.reporting.scores import Contest, Scores
from latemask.reporting.verdict import Arm as ScoredArm
from latemask.reporting.verdict import verdict
from latemask.run_folder import RunFolder
from latemask.sweeping import nested

RECORDS = Path(__file__).parent / "quality"
DOCUMENTS = [Path(__file__).parent.parent / name for name in ("README.md", "docs/results.md")]
VALIDATION = "validation_loss"
_BLOCK = re.compile(r"(<!-- study: (?!end)([\w-]+) -->\n).*?(<!-- study: end -->)", flags=re.DOTALL)


@dataclass(frozen=True)
class Found:
    """All records of one arm."""

    arm: Arm
    records: list[dict[str, Any]]

    def of_task(self, task: str) -> list[float]:
        """Return every score on a task, in per cent."""
        return [100 * score for record in self.records for score in record["scores"].get(task, [])]

    @property
    def means(self) -> list[float]:
        """The mean over the arm's tasks, in per cent, of each pre-training seed with each fine-tuning seed."""
        per_run = [zip(*(record["scores"][task] for task in self.arm.tasks), strict=True) for record in self.records]
        return [100 * statistics.fmean(scores) for run in per_run for scores in run]

    @property
    def flops(self) -> float:
        """FLOPs of one run."""
        return float(self.records[0]["flops"])

    @property
    def loss(self) -> float | None:
        """The validation loss at the end, with 15 % masked, median over seeds; None where nobody measured it."""
        losses = [record.get(VALIDATION) for record in self.records]
        return None if None in losses else round(statistics.median(losses), 4)


def read_records(folder: Path = RECORDS) -> dict[str, Found]:
    """Read every record, by arm."""
    found: dict[str, Found] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        arm = Arm(**{**record["arm"], "tasks": tuple(record["arm"]["tasks"])})
        found.setdefault(arm.name, Found(arm, [])).records.append(record)
    order = [arm.name for arm in ARMS]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def judged(found: dict[str, Found], arms: Sequence[Arm] = (CONTROL, *MAIN, *HIDDEN)) -> dict[str, Found]:
    """Return what was found of arms that were fine-tuned by the same protocol."""
    return {arm.name: found[arm.name] for arm in arms if arm.name in found}


def summary(found: dict[str, Found]) -> dict[str, Any]:
    """Return the numbers that matter; None where an arm was not run."""
    base, cheaper, equal = (found.get(name) for name in (BASELINE, CHEAPER, EQUAL))
    return {
        "late_flops_over_early": round(cheaper.flops / base.flops, 4) if base and cheaper else None,
        "late_minus_early_at_that_budget": _difference(cheaper, base),
        "late_minus_early_at_equal_flops": _difference(equal, base),
        "tasks": list(TASKS),
        "pretraining_seeds": min((len(one.records) for one in (base, cheaper) if one), default=0),
        "arms": {name: _arm_summary(one) for name, one in judged(found).items()},
    }


def _difference(one: Found | None, other: Found | None) -> float | None:
    return round(statistics.median(one.means) - statistics.median(other.means), 2) if one and other else None


def _arm_summary(found: Found) -> dict[str, Any]:
    dots = found.means
    return {
        "flops": found.flops,
        "median": round(statistics.median(dots), 2),
        "lowest": round(min(dots), 2),
        "highest": round(max(dots), 2),
        "pretraining_seeds": len(found.records),
        "tasks": len(found.arm.tasks),
        "validation_loss": found.loss,
    }


# As `latemask compare` has it: its words and its figures are the study's


def as_compared(found: dict[str, Found]) -> tuple[list[ScoredArm], Scores]:
    """Return the arms that were pre-trained and fine-tuned, and their scores."""
    trained = {name: one for name, one in judged(found).items() if one.flops}
    arms = [ScoredArm(name, [_as_run(record) for record in one.records], one.means) for name, one in trained.items()]
    by_run = {
        run.name: {task: [100 * score for score in scores] for task, scores in record["scores"].items()}
        for arm, one in zip(arms, trained.values(), strict=True)
        for run, record in zip(arm.runs, one.records, strict=True)
    }
    controls = {
        f"random:{RECIPE}": {task: one.of_task(task) for task in TASKS} for one in judged(found, [CONTROL]).values()
    }
    return arms, Scores([Contest(task, task, "part", task) for task in TASKS], by_run, [], controls)


def _as_run(record: dict[str, Any]) -> Run:
    name = f"{record['arm']['name']}-{record['seed']}"
    recipe = load_recipe(RECIPE, nested(record["recipe"]))
    end = {"step": record["steps"], "seconds": record["seconds"], "eval_loss": record.get(VALIDATION)}
    finished = {"status": "finished", "data": {"fingerprint": record.get("data")}}
    return Run(name, RunFolder(Path(name)), recipe, finished, [end])


def draw(found: dict[str, Found], folder: Path) -> None:
    """Write the figures of the study."""
    folder.mkdir(parents=True, exist_ok=True)
    arms, scores = as_compared(found)
    for figure in (*plots.scores(arms, scores), *plots.ends(arms)):
        figure.save(folder)


# In documents


def blocks(found: dict[str, Found]) -> dict[str, str]:
    """Return everything that documents show, in Markdown."""
    return {
        "headline": _headline(judged(found, (CONTROL, *MAIN))),
        "verdict": "\n".join(f"- {sentence}" for sentence in verdict(*as_compared(found))),
        "scores": _scores(judged(found)),
        "first-scores": _scores(judged(found, FIRST)),
        "tuning": _tuning(found),
        "short": _short(found),
        "runs": _runs(found),
    }


def up_to_date(text: str, made: dict[str, str]) -> str:
    """Return a document with its blocks as they are now; a block that nobody makes is an error."""
    return _BLOCK.sub(lambda block: f"{block[1]}{made[block[2]]}\n{block[3]}", text)


def write_documents(made: dict[str, str]) -> None:
    """Bring the blocks of all documents up to date."""
    for path in DOCUMENTS:
        write_text_atomically(path, up_to_date(path.read_text("utf-8"), made))


def _headline(shown: dict[str, Found]) -> str:
    base = shown.get(BASELINE)
    rows = [
        [
            f"{one.arm.keys['objective']}, {one.arm.keys['mask.rate']:.0%} masked" if one.flops else "never trained",
            f"{one.flops / C:.2f}",
            _loss(one),
            _spread(one.means),
            f"{statistics.median(one.means) - statistics.median(base.means):+.1f}" if base else "–",
            _seeds(one),
        ]
        for one in shown.values()
    ]
    header = ["", "FLOPs", "validation loss", f"mean of {len(TASKS)} tasks", "difference", "pre-training seeds"]
    return _table(header, rows)


def _scores(shown: dict[str, Found]) -> str:
    rows = [
        [f"`{name}`", f"{one.flops / C:.2f}", _seeds(one), _loss(one), _spread(one.means)]
        + [_spread(one.of_task(task)) for task in TASKS]
        for name, one in shown.items()
    ]
    return _table(
        ["arm", "FLOPs / C", "seeds", "validation loss", "mean", *(GLUE[task].folder for task in TASKS)], rows
    )


def _tuning(found: dict[str, Found]) -> str:
    losses: dict[tuple[float, int], dict[str, str]] = {}
    for arm in TUNING:
        setting = (arm.keys["train.learning_rate"], arm.keys["train.batch_size"])
        losses.setdefault(setting, {})[arm.keys["objective"]] = _own_loss(found.get(arm.name))
    rows = [[f"{rate:g}", str(batch), of["early"], of["late"]] for (rate, batch), of in losses.items()]
    return _table(["learning rate", "batch", "early 15 %", "late 40 %"], rows)


def _short(found: dict[str, Found]) -> str:
    rows = [[*_masking(arm), _steps(one), _loss(one)] for arm, one in ((arm, found.get(arm.name)) for arm in SHORT)]
    return _table(["objective", "joined", "masked", "dropped", "steps", "validation loss"], rows)


def _masking(arm: Arm) -> list[str]:
    recipe = load_recipe(RECIPE, nested(arm.keys))
    joined = f"`{recipe.join.kind}` {recipe.join.layers}" if recipe.objective == "late" else "–"
    masked = f"{recipe.mask.rate:.0%}"
    if recipe.mask.rate_end is not None:
        masked += f" to {recipe.mask.rate_end:.0%}"
    return [recipe.objective, joined, masked, f"{recipe.mask.drop:.0%}" if recipe.mask.drop else "–"]


def _runs(found: dict[str, Found]) -> str:
    names = ["run", "commit", "steps", "M tokens", "FLOPs", "in", "hours", "validation loss", "fine-tuning hours"]
    return _table(names, (_run_row(name, record) for name, one in found.items() for record in one.records))


def _run_row(name: str, record: dict[str, Any]) -> list[str]:
    finetuning = record.get("finetuning_seconds")
    return [
        f"`{name}-{record['seed']}`",
        record["commit"],
        f"{record['steps']:,}",
        f"{record['tokens'] / 1e6:.1f}",
        f"{record['flops']:.3g}",
        ", ".join(record.get("precision", ["fp32"])) if record["steps"] else "–",  # fp32 before there was a choice
        f"{record['seconds'] / 3600:.2f}",
        f"{record[VALIDATION]:.3f}" if VALIDATION in record else "–",
        "–" if finetuning is None else f"{finetuning / 3600:.2f}",
    ]


def _seeds(one: Found) -> str:
    return str(len(one.records)) if one.flops else "–"


def _loss(one: Found | None) -> str:
    return f"{one.loss:.3f}" if one and one.loss is not None else "–"


def _own_loss(one: Found | None) -> str:
    """The last loss of a run's own validation: of those before all were validated alike, with their own masks."""
    return f"{one.records[0]['validation'][-1][1]:.3f}" if one else "–"


def _steps(one: Found | None) -> str:
    return f"{one.records[0]['steps']:,}" if one else "–"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})" if values else "–"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def lines() -> Iterator[Sequence[str]]:
        yield header
        yield ["---"] * len(header)
        yield from rows

    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines())
