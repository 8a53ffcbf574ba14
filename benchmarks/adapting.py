"""Does it help to keep an encoder's head? Going on in another domain with the head, without it, and from nothing.

python benchmarks/adapting.py --shared ../shared/data --work adapting     (prints a JSON object last)
python benchmarks/adapting.py --summarise                                 (the table of docs/results.md)

An encoder of `mini-base`'s shape is pre-trained with late masks on one half of Simple Wikipedia's articles, its end
with [MASK]s in the input, and exported with its head, as the checkpoints are that people have. Then it goes on with the
documentation of Python and its libraries (`latemask prepare --builtin`), which none of its text was about. Each run has
one thread and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from latemask.ground.files import write_json_atomically
from latemask.recipe import Recipe, load_recipe
from latemask.run_folder import RunFolder

RECORDS = Path(__file__).with_name("adapting")
PRETRAINING_FLOPS = 4e13
STEPS = 300
WATCHED = {"log_every": 50, "eval_every": 100, "save_every": 100, "batch_size": 16}
ARMS = {  # objective, what it goes on with, and how the rest starts
    "late, head kept": ("late", "mlm", "corpus"),
    "late, head thrown away": ("late", "encoder", "corpus"),
    "late, head thrown away, new one random": ("late", "encoder", "random"),
    "early 15 %, head kept": ("early", "mlm", "corpus"),
    "late, from nothing": ("late", None, "corpus"),
    "late, from random weights": ("late", None, "random"),
}


def half_of_the_articles(shared: Path, out: Path) -> Path:
    """Write every second article to a file."""
    if not out.is_file():
        text = gzip.decompress((shared / "corpus" / "simplewiki.txt.gz").read_bytes()).decode()
        out.write_text("\n\n".join(text.split("\n\n")[::2]), "utf-8")
    return out


def prepare_everything(shared: Path, work: Path) -> None:
    """Prepare the articles, and Python's documentation with their tokenizer."""
    work.mkdir(parents=True, exist_ok=True)
    articles = half_of_the_articles(shared, work / "articles.txt")
    for name, words in {
        "articles": [str(articles), "--vocab-size", "12544"],
        "python": ["--builtin", "--tokenizer", str(work / "articles" / "tokenizer")],
    }.items():
        if not (work / name / "manifest.json").is_file():
            command = [sys.executable, "-m", "latemask", "prepare", *words, "--out", str(work / name)]
            subprocess.run(command, check=True)


def recipe_of(arm: str, seed: int, folders: dict[str, Path]) -> Recipe:
    """Return what an arm does: the recipe of mini-base, from an encoder or from nothing."""
    objective, init, start = ARMS[arm]
    name = "mini-base" if objective == "late" else "mini-base-early"
    changes: dict[str, Any] = {"seed": seed, "train": WATCHED, "budget": {"steps": STEPS}}
    changes["encoder"] = {"start": start, **({"init": str(folders[init])} if init else {})}
    return load_recipe(name, changes)


def one_seed(seed: int, work: Path) -> None:
    """Pre-train an encoder, and let every arm go on."""
    from latemask import export, pretrain

    changes = {"seed": seed, "train": {"finish_early": 0.1}, "budget": {"flops": PRETRAINING_FLOPS}}
    run = RunFolder(work / f"pretrained-{seed}")
    pretrain(load_recipe("mini-base", changes), data=work / "articles", out=run.path, resume=run.recipe_file.is_file())
    folders = {"encoder": run.encoder, "mlm": work / f"mlm-{seed}"}
    export(run.path, out=folders["mlm"], mlm=True, overwrite=True)
    for arm in ARMS:
        adapted = RunFolder(work / f"{arm.replace(' ', '-').replace(',', '').replace('%', '')}-{seed}")
        begun = adapted.recipe_file.is_file()
        pretrain(recipe_of(arm, seed, folders), data=work / "python", out=adapted.path, resume=begun)
        note(arm, seed, adapted)


def note(arm: str, seed: int, run: RunFolder) -> None:
    """Keep what a run came to."""
    rows = run.metrics()
    record = {
        "arm": arm,
        "seed": seed,
        "losses": {str(row["step"]): round(row["eval_loss"], 4) for row in rows if "eval_loss" in row},
        "learning_rate": load_recipe(run.recipe_file).train.learning_rate,
        "flops": run.record["flops"],
        "seconds": round(rows[-1]["seconds"]),
        "precision": run.record["precision"],
        "commit": subprocess.run(
            ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    RECORDS.mkdir(exist_ok=True)
    write_json_atomically(RECORDS / f"{run.path.name}.json", record)


def records() -> list[dict[str, Any]]:
    """Return what is kept."""
    return [json.loads(file.read_text("utf-8")) for file in sorted(RECORDS.glob("*.json"))]


def table() -> str:
    """Return the records as Markdown: every seed's loss at every validation."""
    found = records()
    steps = sorted({int(step) for record in found for step in record["losses"]})
    lines = [
        "| arm | learning rate | " + " | ".join(f"step {step}" for step in steps) + " |",
        "|---" * (len(steps) + 2) + "|",
    ]
    for arm in ARMS:
        seeds = [record for record in found if record["arm"] == arm]
        if seeds:
            cells = [
                ", ".join(f"{r['losses'][str(s)]:.3f}" for r in seeds if str(s) in r["losses"]) or "–" for s in steps
            ]
            lines.append(f"| {arm} | {seeds[0]['learning_rate']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("adapting"), help="where data and runs are kept")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one thread each")
    parser.add_argument("--summarise", action="store_true", help="only print the table")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        one_seed(arguments.one, arguments.work)
        return
    if not arguments.summarise:
        prepare_everything(arguments.shared, arguments.work)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

        def one(seed: int) -> None:
            words = [sys.executable, __file__, "--one", str(seed), "--work", str(arguments.work)]
            subprocess.run(words, check=True, env=environment)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(one, range(arguments.seeds)))
    print(table())
    print(json.dumps(records()))


if __name__ == "__main__":
    main()
