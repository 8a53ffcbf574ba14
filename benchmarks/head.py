"""How the rows a chunk of the loss change its time: alternating, several repeats, one JSON object last.

python benchmarks/head.py --predicted 1216 --width 192 --vocabulary 8192
"""

import argparse
import json
import time

import torch
from torch.nn import LinearCrossEntropyOptions
from torch.nn import functional as F


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predicted", type=int, default=1216)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    states = torch.randn(arguments.predicted, arguments.width, requires_grad=True)
    words = (0.02 * torch.randn(arguments.vocabulary, arguments.width)).requires_grad_()
    labels = torch.randint(0, arguments.vocabulary, (arguments.predicted,))
    variants = {"plain": None, "torch's own": LinearCrossEntropyOptions()}
    variants |= {str(rows): LinearCrossEntropyOptions(batch_chunk_size=rows) for rows in (64, 128, 256, 512, 1024)}

    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(arguments.repeats):
        for name, options in variants.items():
            start = time.perf_counter()
            F.linear_cross_entropy(states, words, labels, options=options).backward()
            times[name].append(time.perf_counter() - start)
            states.grad = words.grad = None
    best = {name: min(values) for name, values in times.items()}
    spread = {name: round(max(values) / min(values), 2) for name, values in times.items()}
    ratio = {name: round(value / best["512"], 2) for name, value in best.items()}
    print(json.dumps({**vars(arguments), "over_512": ratio, "best_seconds": best, "max_over_min": spread}))


if __name__ == "__main__":
    main()
