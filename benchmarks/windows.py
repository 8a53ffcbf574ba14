"""What a local layer costs beside a global one, on long rows: seconds of forward and backward, and bytes kept.

python benchmarks/windows.py        (prints one JSON object)

Layers of ModernBERT-base's size with its window of 64 positions to each side; the two are timed in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from latemask.families.sight import Places, attention
from latemask.ground.allocator import keep_freed_memory
from latemask.model import build_model
from latemask.recipe import EncoderRecipe, Recipe, spelled_out
from latemask.text.tokenizer import Vocabulary

VOCABULARY = Vocabulary(size=512, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))
BASE = EncoderRecipe(layers=2, width=768, heads=12, window=64, global_every=2)


def seconds(model: Any, layer: Any, length: int, rows: int, bf16: bool) -> float:
    """Time a layer, forward and backward."""
    states = torch.randn(rows, length, BASE.width, requires_grad=True)
    places = model.family.places(model.encoder, states, torch.arange(length).expand(rows, -1))
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out = model.family.run(layer, states, places)
    out.sum().backward()
    return time.perf_counter() - began


def attention_seconds(model: Any, layer: Any, length: int, rows: int, bf16: bool) -> float:
    """Time what differs between the two, forward and backward: attention, between the projections."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    shape = (rows, BASE.heads, length, BASE.width // BASE.heads)
    queries, keys, values = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    places = Places(torch.arange(length).expand(rows, -1))
    began = time.perf_counter()
    attention(queries, keys, values, places, places, window=model.family.window(layer)).sum().backward()
    return time.perf_counter() - began


def flops(model: Any, layer: Any, length: int) -> int:
    """Count a layer on a row, forward, by torch's own counter."""
    places = model.family.places(model.encoder, torch.empty(1, length, BASE.width), torch.arange(length)[None])
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.family.run(layer, torch.randn(1, length, BASE.width), places)
    return counter.get_total_flops()


def in_turn(timed: Callable[[Any], float], near: Any, everywhere: Any, rounds: int) -> list[tuple[float, float]]:
    """Time two layers in turn; the first round warms up."""
    return [(timed(near), timed(everywhere)) for _ in range(rounds + 1)][1:]


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
    parser.add_argument("--ffn-width", type=int, default=1152, help="ModernBERT-base's by default")
    parser.add_argument("--bf16", action="store_true", help="products in bfloat16, as train.precision: bf16 has them")
    arguments = parser.parse_args()
    keep_freed_memory()  # as every training command does
    base = replace(BASE, ffn_width=arguments.ffn_width)
    found: dict[str, Any] = {"threads": torch.get_num_threads(), **vars(arguments)}
    for length in arguments.lengths:
        model = build_model(spelled_out(Recipe(length=length, encoder=base), VOCABULARY.size), VOCABULARY).train()
        everywhere, near = model.family.layers(model.encoder)
        rows = max(1, arguments.tokens // length)
        of_this = {"length": length, "rows": rows, "bf16": arguments.bf16}
        pairs = in_turn(lambda layer, m=model, o=of_this: seconds(m, layer, **o), near, everywhere, arguments.rounds)
        parts = in_turn(
            lambda layer, m=model, o=of_this: attention_seconds(m, layer, **o), near, everywhere, arguments.rounds
        )
        ratios = sorted(local / whole for local, whole in pairs)
        found[str(length)] = {
            "local_over_global": round(statistics.median(ratios), 3),
            "from": round(ratios[0], 3),
            "to": round(ratios[-1], 3),
            "flops": round(flops(model, near, length) / flops(model, everywhere, length), 3),
            "attention_alone": round(statistics.median(local / whole for local, whole in parts), 3),
            "local_ms": round(1000 * statistics.median(local for local, _ in pairs)),
            "local_kept_mb": round(kept_bytes(model, near, length) / 1e6, 1),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
