"""What the study says, as documents show it: every table and sentence is made from the records alone.

A document holds what is made here between `<!-- study: NAME -->` and `<!-- study: end -->`; a test sees to it that what
stands there is what the records say.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality_arms import BASELINE, CHEAPER, CONTROL, FIRST, MAIN, RECIPE, SHORT, TASKS, TUNING, Arm, C
from benchmarks.quality_summary import RECORDS, VALIDATION, Found, as_compared, judged

from latemask.evaluation.tasks import GLUE
from latemask.ground.files import write_text_atomically
from latemask.recipe import load_recipe
from latemask.reporting.verdict import verdict
from latemask.sweeping import nested

DOCUMENTS = [Path(__file__).parent.parent / name for name in ("README.md", "docs/results.md")]
_BLOCK = re.compile(r"(<!-- study: (?!end)([\w-]+) -->\n).*?(<!-- study: end -->)", flags=re.DOTALL)
_WITHOUT_COLA = tuple(task for task in TASKS if task != "cola")
_POOLINGS = {"cls": "first position", "mean": "mean of all positions"}


def blocks(found: dict[str, Found]) -> dict[str, str]:
    """Return everything that documents show, in Markdown."""
    return {
        "headline": _headline(judged(found, (CONTROL, *MAIN))),
        "verdict": "\n".join(f"- {sentence}" for sentence in verdict(*as_compared(found))),
        "scores": _scores(judged(found)),
        "facts": _facts(judged(found)),
        "first-scores": _scores(judged(found, FIRST)),
        "tuning": _tuning(found),
        "finetuning": _finetuning(RECORDS / "choices" / "finetuning.json"),
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
    losses, scores = "validation loss (less is better)", f"mean of {len(TASKS)} tasks, per cent"
    return _table(["", "FLOPs", losses, scores, "minus early 15%", "pre-training seeds"], rows)


def _scores(shown: dict[str, Found]) -> str:
    rows = [
        [f"`{name}`", f"{one.flops / C:.2f}", _seeds(one), _loss(one), _spread(one.means)]
        + [_spread(one.of_task(task)) for task in TASKS]
        for name, one in shown.items()
    ]
    if shown:
        constant = next(iter(shown.values())).records[0].get("constant", {})
        values = [100 * constant[task] for task in TASKS if task in constant]
        mean = f"{statistics.fmean(values):.1f}" if values else "–"
        rows.append(["always the same answer", "–", "–", "–", mean, *(f"{value:.1f}" for value in values)])
    return _table(
        ["arm", "FLOPs / C", "seeds", "validation loss", "mean", *(GLUE[task].folder for task in TASKS)], rows
    )


def _facts(shown: dict[str, Found]) -> str:
    """What the sentences around the tables rest on."""
    trained = [one for one in shown.values() if one.flops]
    lines = [
        f"Validation loss, run by run: {_each(trained, lambda one: ', '.join(map(_three, one.losses)))}.",
        f"Runs of fine-tuning that ended with one class for everything: {_each(shown.values(), _collapsed)}.",
        f"Mean without CoLA: {_each(shown.values(), lambda one: _spread(one.means_of(_WITHOUT_COLA)))}.",
    ]
    base, late = shown.get(BASELINE), shown.get(CHEAPER)
    if base and late:
        hours = [one["seconds"] / other["seconds"] for one, other in zip(late.records, base.records, strict=False)]
        lines.append(
            f"{late.arm.name} over {base.arm.name}: FLOPs {late.flops / base.flops:.2f}, or "
            f"{late.whole_flops / base.whole_flops:.2f} if the last layer of both worked at every position; hours of "
            f"pre-training, in pairs as they ran: {', '.join(f'{ratio:.2f}' for ratio in hours)}."
        )
    return "\n".join(f"- {line}" for line in lines)


def _each(shown: Iterable[Found], of: Callable[[Found], str]) -> str:
    return "; ".join(f"`{one.arm.name}` {of(one)}" for one in shown)


def _collapsed(one: Found) -> str:
    counts = {task: sum(record.get("collapsed", {}).get(task, 0) for record in one.records) for task in one.arm.tasks}
    found = [f"{count} of {len(one.of_task(task))} on {GLUE[task].folder}" for task, count in counts.items() if count]
    return ", ".join(found) or "none"


def _tuning(found: dict[str, Found]) -> str:
    losses: dict[tuple[float, int], dict[str, str]] = {}
    for arm in TUNING:
        setting = (arm.keys["train.learning_rate"], arm.keys["train.batch_size"])
        losses.setdefault(setting, {})[arm.keys["objective"]] = _own_loss(found.get(arm.name))
    rows = [[f"{rate:g}", str(batch), of["early"], of["late"]] for (rate, batch), of in losses.items()]
    return _table(["learning rate", "batch", "early 15 %", "late 40 %"], rows)


def _finetuning(path: Path) -> str:
    """How to fine-tune a small encoder: what was tried before the second protocol was written."""
    by_setting: dict[tuple[str, float, int], dict[tuple[str, bool], str]] = {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        setting = (_POOLINGS[cell["pooling"]], cell["learning_rate"], cell["epochs"])
        by_setting.setdefault(setting, {})[cell["task"], cell["trained"]] = f"{100 * cell['score']:.1f}"
    columns = [(task, trained) for task in ("sst2", "stsb", "qnli") for trained in (True, False)]
    names = [f"{GLUE[task].folder} {'trained' if trained else 'untrained'}" for task, trained in columns]
    rows = [
        [pooling, f"{rate:g}", str(epochs), *(scores.get(column, "") for column in columns)]
        for (pooling, rate, epochs), scores in by_setting.items()
    ]
    return _table(["head reads", "learning rate", "epochs", *names], rows)


def _short(found: dict[str, Found]) -> str:
    rows = [[*_masking(arm), _steps(one), _loss(one)] for arm, one in ((arm, found.get(arm.name)) for arm in SHORT)]
    return _table(["objective", "joined", "masked", "dropped", "steps", "validation loss"], rows)


def _masking(arm: Arm) -> list[str]:
    recipe = load_recipe(RECIPE, nested(arm.keys))
    joined = f"`{recipe.options.kind}` {recipe.options.layers}" if recipe.objective == "late" else "–"
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
        _three(record.get(VALIDATION)),
        "–" if finetuning is None else f"{finetuning / 3600:.2f}",
    ]


def _seeds(one: Found) -> str:
    return str(len(one.records)) if one.flops else "–"


def _loss(one: Found | None) -> str:
    return _three(one.loss if one else None)


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


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
