"""What is each idea worth here? Late masking and its neighbours at equal FLOPs, from the same start, on the same text.

python benchmarks/neighbours.py --shared ../shared/data --work neighbours     (prints a JSON object last)
python benchmarks/neighbours.py --summarise                                   (the table of docs/results.md)

Each run is `mini-base`'s encoder at a budget in FLOPs, everything counted that the method computes (copies, decoders,
scoring passes), in a process with one thread; it goes on where it stopped, and leaves a record in
benchmarks/neighbours/. The validation loss is that of the same 15 % of held-out tokens for all. Who ends close to the
best runs with a second seed as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.mini_runs import UNIT, grammar_of, in_processes, keep, markdown, prepare_everything, read_all

from latemask.recipe import Recipe, load_recipe
from latemask.run_folder import RunFolder

RECORDS = Path(__file__).parent / "neighbours"
PMI_UNITS = 50_000
CLOSE = 0.05  # nats behind the best: close enough to be asked again
REFERENCE = "late-1"
"""The run that scores samples for those that choose them."""

_PAPER = {"rate": 0.5, "random": 0.1, "keep": 0.1}  # 3ML
_AS_PUBLISHED = {"layers": 2, "positions": "absolute"}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "late": ("mini-base", {}),
    "early": ("mini-base-early", {}),
    "early-40": ("mini-base-early", {"mask": {"rate": 0.4}}),
    "3ml-self": ("mini-base", {"mask": _PAPER, "join": {"kind": "self", **_AS_PUBLISHED}}),
    "3ml-cross": ("mini-base", {"mask": _PAPER, "join": {"kind": "cross", **_AS_PUBLISHED}}),
    "cross-only": ("mini-base", {"join": {"kind": "cross-only", "layers": 2}}),
    "cross-only-mix": ("mini-base", {"join": {"kind": "cross-only", "layers": 2, "mix": True}}),
    "mae-lm": ("mini-mae-lm", {}),
    "exlm": ("mini-exlm", {}),
    "late-exlm": ("mini-late-exlm", {}),
    "late-word": ("mini-base", {"mask": {"pattern": "word"}}),
    "late-span": ("mini-base", {"mask": {"pattern": "span"}}),
    "late-span-20": ("mini-base", {"mask": {"pattern": "span", "rate": 0.2}}),
    "late-pmi": ("mini-base", {"mask": {"pattern": "pmi"}}),
    "late-falling": ("mini-base", {"mask": {"rate": 0.5, "rate_end": 0.3}}),
    "late-apart": ("mini-base", {"join": {"apart": 0.01}}),
    "late-best-half": ("mini-base", {"select": {"keep": 0.5}}),
    "late-best-tenth": ("mini-base", {"select": {"keep": 0.1}}),
}
"""By name: the recipe that each begins with, and what it changes."""


def recipe_of(name: str, seed: int, work: Path) -> Recipe:
    """Return what a contender does."""
    base, changes = CONTENDERS[name]
    if "select" in changes:
        changes = {**changes, "select": {**changes["select"], "reference": str(run_of(REFERENCE, work).path)}}
    return load_recipe(base, {**changes, "seed": seed})


def run_of(name: str, work: Path) -> RunFolder:
    """Return where a run is kept: NAME-SEED."""
    return RunFolder(work / "runs" / name)


def trained(name: str, flops: float, work: Path) -> RunFolder:
    """Pre-train NAME-SEED, or what is left of it."""
    from latemask import pretrain
    from latemask.budget.flops import with_budget

    contender, _, seed = name.rpartition("-")
    run = run_of(name, work)
    recipe = recipe_of(contender, int(seed), work)
    if recipe.select.reference and not run_of(REFERENCE, work).is_finished():
        trained(REFERENCE, flops, work)  # its record is there, its folder is not
    if not run.is_finished():
        pretrain(
            with_budget(recipe, None, None, flops), data=work / "data", out=run.path, resume=run.recipe_file.is_file()
        )
    return run


def judged(name: str, flops: float, work: Path) -> dict[str, Any]:
    """Pre-train and score NAME-SEED; what is there already is not done again."""
    contender, _, seed = name.rpartition("-")
    run = trained(name, flops, work)
    scored = grammar_of(run, work, run.path.name)
    rows, record = run.metrics(), run.record
    return {
        "name": contender,
        "seed": int(seed),
        "loss": next(round(row["eval_loss"], 4) for row in reversed(rows) if "eval_loss" in row),
        "blimp": round(scored["mean"], 2),
        "blimp_error": round(scored["error"], 2),
        "terms": {term: round(found["mean"], 2) for term, found in scored["terms"].items()},
        "seconds": round(rows[-1]["seconds"]),
        "flops": record["flops"],
        "steps": record["steps"],
        "precision": record["precision"],
    }


def waves() -> list[list[str]]:
    """Return the first seeds of all; those that choose samples come when what scores them is there."""
    choosing = {name for name, (_, changes) in CONTENDERS.items() if "select" in changes}
    first = [f"{name}-0" for name in CONTENDERS if name not in choosing]
    return [[*first, REFERENCE], [f"{name}-0" for name in CONTENDERS if name in choosing]]


def close_to_the_best(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the contenders whose loss says that a second seed is worth its time."""
    best = min(one["loss"] for one in found.values())
    return [name for name, one in found.items() if one["loss"] <= best + CLOSE and name in CONTENDERS]


def summary() -> dict[str, dict[str, Any]]:
    """Return for each name the means over its seeds, the best loss first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in read_all(RECORDS):
        found.setdefault(record["name"], []).append(record)
    means = {
        name: {
            **{key: round(statistics.mean(one[key] for one in records), 4) for key in ("loss", "blimp", "seconds")},
            "flops": records[0]["flops"],
            "steps": records[0]["steps"],
            "losses": [one["loss"] for one in records],
            "blimps": [one["blimp"] for one in records],
        }
        for name, records in found.items()
    }
    return dict(sorted(means.items(), key=lambda item: item[1]["loss"]))


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the summary as Markdown."""
    rows = [
        [
            name,
            f"{one['steps']:,}",
            ", ".join(f"{loss:.3f}" for loss in one["losses"]),
            ", ".join(f"{score:.1f}" for score in one["blimps"]),
        ]
        for name, one in found.items()
    ]
    return markdown(["", "steps", "loss, by seed", "BLiMP, by seed"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("neighbours"), help="where data and runs are kept")
    parser.add_argument("--only", nargs="+", metavar="NAME-SEED", help="just these runs, such as late-0")
    parser.add_argument("--flops", type=float, default=UNIT, help="of each run; by default an eighth of the study's C")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    parser.add_argument("--summarise", action="store_true", help="only print the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        keep(RECORDS, arguments.one, judged(arguments.one, arguments.flops, arguments.work))
        return
    if not arguments.summarise:
        prepare_everything(arguments.shared, arguments.work, "--pmi", PMI_UNITS)
        words = ["--flops", arguments.flops]
        for names in [arguments.only] if arguments.only else waves():
            in_processes(__file__, names, RECORDS, arguments.work, words, arguments.jobs)
        if not arguments.only:
            again = [f"{name}-1" for name in close_to_the_best(summary())]
            in_processes(__file__, again, RECORDS, arguments.work, words, arguments.jobs)
    print(table(summary()))
    print(json.dumps(summary()))


if __name__ == "__main__":
    main()
