"""What a local layer costs beside a global one, on long rows: seconds of forward and backward, and bytes kept.

python benchmarks/windows.py        (prints one JSON object)

Layers of ModernBERT-base's size with its window of 64 positions to each side; the two are timed in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from latemask.model import build_model
from latemask.recipe import EncoderRecipe, Recipe, spelled_out
from latemask.text.tokenizer import Vocabulary

VOCABULARY = Vocabulary(size=512, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))
BASE = EncoderRecipe(layers=2, width=768, heads=12, window=64, global_every=2)


def seconds(model: Any, layer: Any, length: int, rows: int) -> float:
    """Time a layer, forward and backward."""
    states = torch.randn(rows, length, BASE.width, requires_grad=True)
    places = model.family.places(model.encoder, states, torch.arange(length).expand(rows, -1))
    began = time.perf_counter()
    model.family.run(layer, states, places).sum().backward()
    return time.perf_counter() - began


def kept_bytes(model: Any, layer: Any, length: int) -> int:
    """Count what autograd keeps of a layer for a row."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    states = torch.randn(1, length, BASE.width, requires_grad=True)
    places = model.family.places(model.encoder, states, torch.arange(length)[None])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model.family.run(layer, states, places)
    del out
    return sum(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--tokens", type=int, default=8192, help="of all rows together")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "rounds": arguments.rounds}
    for length in arguments.lengths:
        model = build_model(spelled_out(Recipe(length=length, encoder=BASE), VOCABULARY.size), VOCABULARY).train()
        everywhere, near = model.family.layers(model.encoder)
        rows = max(1, arguments.tokens // length)
        seconds(model, near, length, rows), seconds(model, everywhere, length, rows)
        pairs = [
            (seconds(model, near, length, rows), seconds(model, everywhere, length, rows))
            for _ in range(arguments.rounds)
        ]
        ratios = sorted(local / whole for local, whole in pairs)
        found[str(length)] = {
            "local_over_global": round(statistics.median(ratios), 3),
            "from": round(ratios[0], 3),
            "to": round(ratios[-1], 3),
            "local_ms": round(1000 * statistics.median(local for local, _ in pairs)),
            "local_kept_mb": round(kept_bytes(model, near, length) / 1e6, 1),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
