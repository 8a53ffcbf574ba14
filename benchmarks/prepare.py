"""`latemask prepare` against the tokenizer alone, its memory and disk, and the loader: one JSON object last.

python benchmarks/prepare.py INPUT... [--tokenizer FOLDER] [--repeats 3] [--copies 5]

Preparing is timed as a user runs it, from the start of the command to its end; the tokenizer as `encode_batch` over
the same documents with nothing else counted, on the same cores; alternating, in one run. Memory is that of the whole
tree of processes (proportional set size where the system tells it). `--copies` prepares the input so many times over,
too, to see whether memory grows.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

from latemask.masking.batches import LateMaskCollator
from latemask.masking.samples import SampleDataset
from latemask.recipe import MaskCounts, MaskRecipe
from latemask.text import PreparedData
from latemask.text.reading import FilesReader, Problems
from latemask.text.sources import find_sources, group_pieces
from latemask.text.tokenizer import fill_vocabulary, sample, save_tokenizer

BATCH, LENGTH = 128, 128
LOADER_SECONDS = 5.0


def documents(inputs: list[str]) -> Iterator[str]:
    groups = group_pieces(find_sources(inputs))
    reader = FilesReader(groups, Problems())
    for rank in range(len(groups)):
        yield from (document.text for document in reader.run(rank=rank))


def tokenizer_alone(inputs: list[str], folder: Path) -> float:
    """Seconds in `encode_batch`, and in nothing else."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts, seconds = documents(inputs), 0.0
    while batch := list(islice(texts, 1000)):
        start = time.perf_counter()
        encoded = tokenizer.encode_batch(batch)
        seconds += time.perf_counter() - start
        del encoded
    return seconds


class PeakMemory(threading.Thread):
    """The largest memory that a process and its children had together."""

    def __init__(self, process: psutil.Process):
        super().__init__(daemon=True)
        self.process, self.peak = process, 0

    def run(self) -> None:
        while self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            self.peak = max(self.peak, sum(map(self._memory, self._tree())))
            time.sleep(0.25)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.Error:
            return []

    @staticmethod
    def _memory(process: psutil.Process) -> int:
        try:
            full = process.memory_full_info()
            return getattr(full, "pss", 0) or full.rss
        except psutil.Error:
            return 0


def prepare(inputs: list[str], tokenizer: Path, out: Path) -> tuple[float, float]:
    """Run the command; return seconds and MB at most."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "latemask", "prepare", *inputs, "--tokenizer", str(tokenizer), "--out", str(out)]
    start = time.perf_counter()
    process = subprocess.Popen(command)
    memory = PeakMemory(psutil.Process(process.pid))
    memory.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    memory.join()
    if code:
        sys.exit(code)
    return seconds, memory.peak / 1e6


def loader_speed(data: PreparedData, workers: int) -> float:
    """Tokens a second that come out of a DataLoader, masks drawn."""
    dataset = SampleDataset(data.rows("train", LENGTH), 10**9)
    collate = LateMaskCollator(MaskCounts.of(MaskRecipe(rate=0.5), LENGTH), data.vocabulary)
    batches = iter(
        DataLoader(dataset, BATCH, num_workers=workers, collate_fn=collate, prefetch_factor=4 if workers else None)
    )
    for _ in range(10):
        next(batches)
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < LOADER_SECONDS:
        next(batches)
        count += 1
    return count * BATCH * LENGTH / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", nargs="+", metavar="INPUT")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer; by default one is trained on a sample")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--copies", type=int, default=0, help="prepare so many copies of the input, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(arguments, Path(place)), indent=2))


def measure(arguments: argparse.Namespace, place: Path) -> dict[str, object]:
    tokenizer = arguments.tokenizer or place / "tokenizer"
    if arguments.tokenizer is None:
        save_tokenizer(fill_vocabulary(sample(documents(arguments.inputs), 50_000_000), None), tokenizer)
    out, alone, ours = place / "data", [], []
    for _ in range(arguments.repeats):
        alone.append(tokenizer_alone(arguments.inputs, tokenizer))
        ours.append(prepare(arguments.inputs, tokenizer, out))
    data = PreparedData.open(out)
    tokens = sum(data.tokens(split) for split in ("train", "validation"))
    shards = sum(path.stat().st_size for split in ("train", "validation") for path in (out / split).rglob("*"))
    everything = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    ratios = [seconds / other for (seconds, _), other in zip(ours, alone, strict=True)]
    found: dict[str, object] = {
        "prepare_over_tokenizer": statistics.median(ratios),
        "prepare_over_tokenizer_all": ratios,
        "prepare_seconds": [seconds for seconds, _ in ours],
        "tokenizer_seconds": alone,
        "peak_mb": max(peak for _, peak in ours),
        "bytes_per_token": everything / tokens,
        "shard_bytes_per_token": shards / tokens,
        "tokens": tokens,
        "vocabulary": data.vocabulary.size,
        "loader_tokens_per_s": loader_speed(data, workers=1),
        "loader_tokens_per_s_in_process": loader_speed(data, workers=0),
        "left_behind": sorted(path.name for path in out.iterdir() if path.name not in _EXPECTED),
        "cores": len(os.sched_getaffinity(0)),
    }
    if arguments.copies:
        found |= with_copies(arguments, tokenizer, place, float(found["peak_mb"]))  # type: ignore[arg-type]
    return found


_EXPECTED = {".verified.json", "manifest.json", "tokenizer", "train", "validation"}


def with_copies(arguments: argparse.Namespace, tokenizer: Path, place: Path, peak_once: float) -> dict[str, float]:
    """Prepare the input as if there were several of it."""
    for number in range(arguments.copies):
        (place / "copies" / str(number)).mkdir(parents=True)
        for source in find_sources(arguments.inputs):
            shutil.copy(source.location, place / "copies" / str(number))
    seconds, peak = prepare([str(place / "copies")], tokenizer, place / "large")
    return {
        "copies": arguments.copies,
        "copies_peak_mb": peak,
        "copies_peak_ratio": peak / peak_once,
        "copies_seconds": seconds,
    }


if __name__ == "__main__":
    main()
