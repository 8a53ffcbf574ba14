"""The loss of the head, forward and backward: products in fp32 in chunks of so many rows, and in bf16.

python benchmarks/head.py --predicted 1216 --width 192 --vocabulary 8192       (one JSON object last)

Alternating, several repeats. The bf16 part runs where the CPU has it.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch.nn import LinearCrossEntropyOptions
from torch.nn import functional as F

from latemask.ground.allocator import keep_freed_memory
from latemask.ground.precision import mixed_precision
from latemask.model import head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predicted", type=int, default=1216)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    states = torch.randn(arguments.predicted, arguments.width, requires_grad=True)
    words = (0.02 * torch.randn(arguments.vocabulary, arguments.width)).requires_grad_()
    bias = torch.zeros(arguments.vocabulary, requires_grad=True)
    labels = torch.randint(0, arguments.vocabulary, (arguments.predicted,))

    def in_fp32(options: LinearCrossEntropyOptions | None) -> Callable[[], torch.Tensor]:
        return lambda: F.linear_cross_entropy(states, words, labels, linear_bias=bias, options=options)

    def in_bf16(rows: int) -> Callable[[], torch.Tensor]:
        def loss() -> torch.Tensor:
            head.CHUNK_ROWS = rows
            return head.HalfPrecisionLoss.apply(states, words, bias, labels, torch.bfloat16)

        return loss

    variants = {"plain": in_fp32(None), "torch's own": in_fp32(LinearCrossEntropyOptions())}
    variants |= {str(n): in_fp32(LinearCrossEntropyOptions(batch_chunk_size=n)) for n in (64, 128, 256, 512, 1024)}
    if mixed_precision("auto"):
        variants |= {f"bf16, {n}": in_bf16(n) for n in (64, 128, 256, 512, 1024)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(arguments.repeats):
        for name, loss in variants.items():
            start = time.perf_counter()
            loss().backward()
            times[name].append(time.perf_counter() - start)
            states.grad = words.grad = bias.grad = None
    best = {name: min(values) for name, values in times.items()}
    spread = {name: round(max(values) / min(values), 2) for name, values in times.items()}
    ratio = {name: round(value / best["512"], 2) for name, value in best.items()}
    print(json.dumps({**vars(arguments), "over_512": ratio, "best_seconds": best, "max_over_min": spread}))


if __name__ == "__main__":
    main()
