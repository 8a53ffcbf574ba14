"""Seconds a step, late against early, same encoder and batch: alternating, several repeats, one JSON object last.

python benchmarks/step.py --late mini-base --early mini-base-early --batch 32
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from latemask.budget import sequence_flops
from latemask.masking import COLLATORS
from latemask.model import build_model, complete_recipe
from latemask.recipe import Recipe, load_recipe
from latemask.text import Vocabulary


def step_of(recipe: Recipe, vocabulary: Vocabulary, batch_size: int) -> Callable[[], None]:
    """Forward, backward, clip, AdamW: what a step is, without data loading."""
    torch.manual_seed(0)
    model = build_model(recipe, vocabulary).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = np.random.default_rng(0).integers(5, vocabulary.size, (batch_size, recipe.length))
    collate = COLLATORS[recipe.objective](recipe.counts, vocabulary)
    batch = collate([{"ids": row, "index": index} for index, row in enumerate(rows)])

    def step() -> None:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--late", default="mini-base")
    parser.add_argument("--early", default="mini-base-early")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    recipes = {name: load_recipe(getattr(arguments, name)) for name in ("late", "early")}
    size = recipes["late"].encoder.vocab_size or 32768
    vocabulary = Vocabulary(size=size, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))
    recipes = {name: complete_recipe(recipe, vocabulary) for name, recipe in recipes.items()}
    steps = {name: step_of(recipe, vocabulary, arguments.batch) for name, recipe in recipes.items()}

    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    pairs = [late / early for late, early in zip(times["late"], times["early"], strict=True)]
    flops = {name: sequence_flops(recipe).training for name, recipe in recipes.items()}
    result = {
        **vars(arguments),
        "late_over_early": round(statistics.median(pairs), 3),
        "late_over_early_range": [round(min(pairs), 3), round(max(pairs), 3)],
        "flops_late_over_early": round(flops["late"] / flops["early"], 3),
        "median_seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
