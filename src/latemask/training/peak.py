"""How fast this machine multiplies matrices at best: what speeds are a share of."""

from __future__ import annotations

import time

import torch

_CPU_SIZE, _GPU_SIZE = 768, 8192
_REPEATS = 8


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return FLOP/s, the best of a few products; a fraction of a second."""
    size = _CPU_SIZE if device.type == "cpu" else _GPU_SIZE
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    result = left @ right  # the first one warms up
    best = min(_seconds(left, right, result) for _ in range(_REPEATS))
    return 2 * size**3 / best


def _seconds(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> float:
    synchronize(left.device)
    started = time.perf_counter()
    torch.mm(left, right, out=result)
    synchronize(left.device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait for what was asked of a device; a CPU has done it already."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
