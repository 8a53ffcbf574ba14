"""What a masking pattern costs the loader: samples a second, as a share of what `uniform` gives.

python benchmarks/patterns.py --data DATA        (prints one JSON object last; DATA prepared with --pmi)

Rows are read, masked and laid out in batches as training does it (SampleDataset, Collator), in one thread. Patterns
take turns on the same samples; CPU seconds of this process are counted, so that a busy machine does not matter much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402

from latemask import prepare  # noqa: E402
from latemask.ground.allocator import keep_freed_memory  # noqa: E402
from latemask.masking.batches import Collator  # noqa: E402
from latemask.masking.patterns import vocabulary_for  # noqa: E402
from latemask.masking.samples import SampleDataset  # noqa: E402
from latemask.recipe import MaskCounts, MaskRecipe  # noqa: E402
from latemask.text import Mixture  # noqa: E402

PATTERNS = ("uniform", "word", "span", "pmi")


def seconds(samples: SampleDataset, collator: Collator, batches: list[range]) -> float:
    """Load some batches; return the CPU seconds."""
    began = time.process_time()
    for batch in batches:
        collator(samples.__getitems__(batch))
    return time.process_time() - began


def compared(data: Mixture, length: int, rows: int, batches: int, repeats: int) -> dict[str, dict[str, float]]:
    """Let the patterns take turns; return what each gives."""
    samples = SampleDataset(data.rows("train", length)[0], rows * batches * (repeats + 1))
    counts = MaskCounts.of(MaskRecipe(rate=0.4), length)
    collators = {name: Collator(counts, vocabulary_for(name, data), pattern=name) for name in PATTERNS}
    spent: dict[str, list[float]] = {name: [] for name in PATTERNS}
    for turn in range(repeats + 1):
        these = [
            range(first, first + rows) for first in range(turn * rows * batches, (turn + 1) * rows * batches, rows)
        ]
        for name in np.roll(PATTERNS, turn).tolist():
            spent[name].append(seconds(samples, collators[name], these))
    taken = {name: found[1:] for name, found in spent.items()}  # the first turn warms up
    shares = {name: [a / b for a, b in zip(taken["uniform"], found, strict=True)] for name, found in taken.items()}
    return {
        name: {
            "of_uniform": round(statistics.median(shares[name]), 3),
            "from": round(min(shares[name]), 3),
            "to": round(max(shares[name]), 3),
            "samples_a_second": round(rows * batches / statistics.median(taken[name])),
        }
        for name in PATTERNS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="prepared with --pmi; by default the builtin text is")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=32768, help="of a batch")
    parser.add_argument("--batches", type=int, default=8, help="of a turn")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every training command does
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            prepare(builtin=True, out=Path(folder) / "data", pmi=20_000, no_ngrams=True)
        data = Mixture.open(arguments.data or Path(folder) / "data")
        (part,) = data.parts
        found = {"units": sum(part.manifest["units"]["found"]), "tokens": part.tokens("train")}
        how = (arguments.batches, arguments.repeats)
        of_length = {
            str(length): compared(data, length, arguments.tokens // length, *how) for length in arguments.lengths
        }
    print(json.dumps({**found, **of_length}))


if __name__ == "__main__":
    main()
