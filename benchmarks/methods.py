"""Which way to fine-tune? Every method on SST-2, MRPC and STS-B with an encoder pre-trained here: one JSON object last.

python benchmarks/methods.py --data ../shared/data/glue [--encoder FOLDER] [--work methods]
python benchmarks/methods.py --data ../shared/data/glue --costs      (memory and bytes alone: minutes)
python benchmarks/methods.py --summarise                             (the tables of docs/results.md)

Without --encoder one is pre-trained first on --corpus: 12 x 192, 32,768 pieces, late masks, in ESM's form: RoBERTa's
layers, with the biases that some methods read, but norms first and rotary positions, so that a short run learns at all.

A method's learning rate is the best of three for one seed on SST-2: a third of its default, the default and three
times that. Then each task runs with three seeds, by one protocol for all, on a small part of its rows: little data is
where these methods are asked for. A process of its own with one thread for each; what is done is not done again, and
leaves a record in benchmarks/methods/. Memory is that of the largest step, beside the weights: what activations and
gradients take at once. --costs finds it, and what is stored, in one run of four steps each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.mini_runs import in_processes, keep, markdown, read_all

RECORDS = Path(__file__).parent / "methods"
COSTS = RECORDS / "costs"
COSTS_TASK, COSTS_ROWS = "mrpc", 64
TASKS = {"sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B"}
SEEDS = 3
EPOCHS, ROWS = 2, 1000
TRIED = "sst2"  # MRPC's F1 is that of its larger class for long
VOCABULARY, FLOPS = 32768, 7.5e13
METHODS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "full": ("full", {}, False),
    "checkpointing": ("full", {}, True),
    "bias": ("bias", {}, False),
    "lora": ("lora", {}, False),
    "lora-checkpointing": ("lora", {}, True),
    "dora": ("dora", {}, False),
    "hiwi": ("hiwi", {}, False),
    "pafi": ("pafi", {}, False),
    "meft": ("meft", {}, False),
    "apiq-4": ("apiq", {"bits": 4}, False),
    "apiq-3": ("apiq", {"bits": 3}, False),
    "apiq-2": ("apiq", {"bits": 2}, False),
    "loftq-2": ("apiq", {"bits": 2, "fit": "loftq"}, False),
    "nearest-2": ("apiq", {"bits": 2, "fit": "nearest"}, False),
}
"""The method, its options, and whether layers are computed again in the backward pass; the last two are baselines."""
SCORED = [name for name, (_, _, checkpointing) in METHODS.items() if not checkpointing]  # the others score the same


def pretrained(corpus: Path, work: Path) -> Path:
    """Return an encoder of ours, made where there is none yet."""
    if not (work / "encoder" / "encoder" / "config.json").is_file():
        data = [corpus.resolve(), "--out", work / "data", "--vocab-size", VOCABULARY]
        run = ["mini-base", "--data", work / "data", "--out", work / "encoder", "--budget.flops", FLOPS]
        shape = ["--encoder.family", "esm", "--encoder.vocab-size", VOCABULARY, "--budget.tokens", "null"]
        again = ["--resume"] if (work / "encoder" / "recipe.yaml").is_file() else []
        for verb in (["prepare", *data], ["pretrain", *run, *shape, *again]):
            subprocess.run([sys.executable, "-m", "latemask", *map(str, verb)], check=True)
    return work / "encoder"


def judged(name: str, task: str, encoder: Path, data: Path, work: Path, seeds: int) -> dict[str, Any]:
    """Choose a learning rate for a method, and fine-tune by it on a task; what is there already is not done again."""
    from latemask import Protocol, finetune
    from latemask.evaluation.encoders import open_encoders
    from latemask.evaluation.methods import METHODS as KNOWN

    method, options, checkpointing = METHODS[name]
    protocol = Protocol(max_train=ROWS, epochs=EPOCHS, method=method, options=options, checkpointing=checkpointing)
    (opened,) = open_encoders([str(encoder)])
    default = KNOWN[method].learning_rate(opened.width)
    rates = [float(f"{default * factor:.2g}") for factor in (1 / 3, 1, 3)]

    def run(task: str, seeds: int, lrs: list[float], part: str, no_control: bool) -> Any:
        given = {"task": task, "data": data, "seeds": seeds, "lrs": lrs, "no_control": no_control}
        return finetune(str(encoder), protocol=protocol, out=work / "finetuned" / name / part, **given)

    tried = run(TRIED, 1, rates, "rates", True).summaries()[0]
    results = run(task, seeds, [tried.learning_rate], task, name != "full")
    trials = [trial for trial in results.trials if not results.is_control(trial.encoder)]
    controls = [trial for trial in results.trials if results.is_control(trial.encoder)]
    return {
        "name": name,
        "task": task,
        "method": method,
        "options": results.protocol.as_record()["options"],
        "learning_rate": tried.learning_rate,
        "tried": tried.tried,
        "scores": [round(100 * trial.score, 2) for trial in trials],
        "untrained": [round(100 * trial.score, 2) for trial in controls],
        "floors": {floor.name: round(100 * floor.score, 2) for floor in results.floors(task)},
        "seconds": round(statistics.median(trial.seconds for trial in trials)),
        "precision": trials[0].precision,
    }


def measured(name: str, encoder: Path, data: Path, work: Path) -> dict[str, Any]:
    """Fine-tune by a method for a few steps, and say what that takes."""
    from latemask import Protocol, finetune
    from latemask.evaluation.encoders import open_encoders

    method, options, checkpointing = METHODS[name]
    protocol = Protocol(max_train=COSTS_ROWS, epochs=1, method=method, options=options, checkpointing=checkpointing)
    out = work / "costs" / name
    results = finetune(str(encoder), task=COSTS_TASK, data=data, out=out, seeds=1, protocol=protocol, no_control=True)
    (trial,) = results.trials
    model = open_encoders([str(encoder)])[0].plain()
    kept = out / "model"
    return {
        "name": name,
        "method": method,
        "options": results.protocol.as_record()["options"],
        **{key: getattr(trial, key) for key in ("trained_weights", "stored_bytes", "step_bytes", "precision")},
        "is_stock": (kept / "model.safetensors").is_file(),
        "weights_bytes": sum(file.stat().st_size for file in kept.glob("*.safetensors")),
        "encoder_bytes": 4 * model.num_parameters(),
        "linear_weights": linear_weights(model),
    }


def linear_weights(model: Any) -> int:
    """Return the numbers in the matrices of an encoder's layers: what quantisation is about."""
    from latemask.evaluation.methods.places import linears_of

    return sum(one.weight.numel() for _, one in linears_of(model))


def costs() -> dict[str, dict[str, Any]]:
    """Return what every method takes, in the order of METHODS."""
    found = {record["name"]: record for record in read_all(COSTS)}
    return {name: found[name] for name in METHODS if name in found}


def scores() -> dict[str, dict[str, dict[str, Any]]]:
    """Return what every method scored, by method and task; tasks that were not run yet are not there."""
    found = {(record["name"], record["task"]): record for record in read_all(RECORDS)}
    by_task = {name: {task: found[name, task] for task in TASKS if (name, task) in found} for name in METHODS}
    return {name: tasks for name, tasks in by_task.items() if tasks}


def summary() -> dict[str, Any]:
    """Return what each method came to, and the ratios that were asked for."""
    methods: dict[str, dict[str, Any]] = {}
    for name, cost in costs().items():
        methods[name] = {key: cost[key] for key in ("trained_weights", "stored_bytes", "step_bytes")}
    for name, tasks in scores().items():
        methods.setdefault(name, {}).update(
            scores={task: round(statistics.median(one["scores"]), 1) for task, one in tasks.items()},
            seconds={task: one["seconds"] for task, one in tasks.items()},
            learning_rate=next(iter(tasks.values()))["learning_rate"],
        )
    return {"methods": methods, **ratios(costs())}


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return memory and bytes against those of full fine-tuning or of the encoder, of the methods that are there."""
    wanted: dict[str, Any] = {
        "meft_memory_over_full": ("meft", "step_bytes", lambda one: found["full"]["step_bytes"]),
        "checkpointing_memory_over_full": (
            "checkpointing",
            "step_bytes",
            lambda one: found["full"]["step_bytes"],
        ),
        "hiwi_stored_over_encoder": ("hiwi", "stored_bytes", lambda one: one["encoder_bytes"]),
        "apiq_2_bits_over_fp16": ("apiq-2", "stored_bytes", lambda one: 2 * one["linear_weights"]),
    }
    return {
        name: round(found[method][key] / base(found[method]), 5)
        for name, (method, key, base) in wanted.items()
        if method in found and "full" in found
    }


def costs_table() -> str:
    """Return what every method takes as Markdown."""
    found = costs()
    rows = [
        [
            name,
            f"{record['trained_weights']:,}",
            f"{record['stored_bytes'] / 1e6:.3f}",
            f"{record['step_bytes'] / 1e6:.0f}",
            f"{record['step_bytes'] / found['full']['step_bytes']:.2f}",
            f"{record['weights_bytes'] / 1e6:.1f}",
            "yes" if record["is_stock"] else "no",
        ]
        for name, record in found.items()
    ]
    header = ["", "weights trained", "MB stored", "MB a step", "of full's", "MB of the folder's weights", "stock"]
    return markdown(header, rows)


def scores_table() -> str:
    """Return the scores as Markdown; floors are the last rows."""
    found = scores()
    rows = [
        [
            name,
            *(scored(tasks[task]["scores"]) if task in tasks else "" for task in TASKS),
            f"{next(iter(tasks.values()))['learning_rate']:g}",
        ]
        for name, tasks in found.items()
    ]
    if full := found.get("full"):
        rows.append(["full, never pre-trained", *(scored(one["untrained"]) for one in full.values()), ""])
        names = dict.fromkeys(name for one in full.values() for name in one["floors"])
        rows += [[name, *(f"{one['floors'].get(name, 0):.1f}" for one in full.values()), ""] for name in names]
    return markdown(["", *TASKS.values(), "learning rate"], rows)


def scored(scores: list[float]) -> str:
    """Return the median and the range."""
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{statistics.median(scores):.1f} ({min(scores):.1f}–{max(scores):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/glue"), help="GLUE in its own layout")
    parser.add_argument("--encoder", type=Path, help="a run or an encoder's folder; by default one is pre-trained")
    parser.add_argument("--corpus", type=Path, help="text to pre-train on; by default the corpus beside --data")
    parser.add_argument("--work", type=Path, default=Path("methods"), help="where runs are kept")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=METHODS, help="just these methods")
    parser.add_argument("--costs", action="store_true", help="memory and bytes alone, no scores")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    parser.add_argument("--summarise", action="store_true", help="only print the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    given = [arguments.encoder, arguments.data, arguments.work]
    if arguments.one and arguments.costs:
        keep(COSTS, arguments.one, measured(arguments.one, *given))
        return
    if arguments.one:
        name, _, task = arguments.one.rpartition("@")
        keep(RECORDS, arguments.one, judged(name, task, *given, arguments.seeds))
        return
    if not arguments.summarise:
        corpus = arguments.corpus or arguments.data.resolve().parent / "corpus"
        encoder = arguments.encoder or pretrained(corpus, arguments.work)
        words = ["--encoder", encoder, "--data", arguments.data, "--seeds", arguments.seeds]
        names = arguments.only or list(METHODS)
        in_processes(__file__, names, COSTS, arguments.work, [*words, "--costs"], arguments.jobs)
        if not arguments.costs:
            runs = [f"{name}@{task}" for task in TASKS for name in names if name in SCORED]
            in_processes(__file__, runs, RECORDS, arguments.work, words, arguments.jobs)
    print(costs_table(), scores_table(), sep="\n\n")
    print(json.dumps(summary()))


if __name__ == "__main__":
    main()
