"""What benchmarks that train many small runs share: the data, a process with one thread for each run, its record."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from latemask import grammar
from latemask.ground.files import write_json_atomically
from latemask.run_folder import RunFolder

UNIT = 7.5e13  # FLOPs: an eighth of docs/study.md's C
VOCABULARY = 12544
PAIRS_EVERY = 5  # of BLiMP's pairs: 100 of each paradigm


def prepare_everything(shared: Path, work: Path, *options: Any) -> None:
    """Prepare corpus and pairs; what is there is not done again."""
    work.mkdir(parents=True, exist_ok=True)
    # The same words from wherever it is called: a folder prepared from another spelling would be refused.
    words = ["prepare", (shared / "corpus").resolve(), "--out", work / "data", "--vocab-size", VOCABULARY, *options]
    subprocess.run([sys.executable, "-m", "latemask", *map(str, words)], check=True)
    if not (work / "pairs.tsv").is_file():
        lines = gzip.decompress((shared / "grammar" / "blimp.tsv.gz").read_bytes()).decode().split("\n")[:-1]
        (work / "pairs.tsv").write_text("\n".join([lines[0], *lines[1::PAIRS_EVERY]]) + "\n", "utf-8")


def grammar_of(run: RunFolder, work: Path, name: str) -> dict[str, Any]:
    """Score a run on the pairs."""
    (scored,) = grammar([str(run.path)], pairs=work / "pairs.tsv", out=work / "grammar" / name, no_control=True)
    return scored


def in_processes(script: str, names: Sequence[str], records: Path, work: Path, words: Sequence[Any], jobs: int) -> None:
    """Let `script --one NAME` make every record that is missing, some at a time, with one thread each."""

    def one(name: str) -> None:
        if (records / f"{name}.json").is_file():
            return
        print(f"{time.strftime('%H:%M:%S')}  {name}", file=sys.stderr, flush=True)
        log = work / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, script, "--one", name, "--work", str(work), *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with log.open("ab") as file:
            done = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
        print(f"{time.strftime('%H:%M:%S')}  {name} ended ({done.returncode})", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, names))


def keep(records: Path, name: str, found: dict[str, Any]) -> None:
    """Write a record, with the commit it was made at."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False)
    records.mkdir(parents=True, exist_ok=True)
    write_json_atomically(records / f"{name}.json", {**found, "commit": commit.stdout.strip()})


def read_all(records: Path) -> list[dict[str, Any]]:
    """Return what is kept."""
    return [json.loads(file.read_text("utf-8")) for file in sorted(records.glob("*.json"))]


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
