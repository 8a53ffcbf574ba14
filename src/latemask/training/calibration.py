"""How fast this machine is: at multiplying matrices at best, and at real steps of a recipe, before a run."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from latemask.budget.flops import sequence_flops, step_flops
from latemask.ground.console import say
from latemask.ground.precision import mixed_precision, precision_name
from latemask.ground.processes import own_device
from latemask.masking.batches import Batch, Collator, MaskSchedule
from latemask.model import build_model
from latemask.recipe import Recipe, SelectRecipe, batch_split
from latemask.text import Vocabulary
from latemask.text.units import Units
from latemask.text.words import all_words
from latemask.training.loop import Loop

_SECONDS = 20.0
_FEWEST, _MOST = 5, 50
_LONGEST_STEP = 4.0  # seconds; a step that would take longer is timed with fewer rows
_WARM_UP = 2
_MANY = 10_000  # steps; nobody takes them all
_CPU_SIZE, _GPU_SIZE = 768, 8192
_REPEATS = 8


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    peak: float
    """FLOP/s of matrix products at best."""
    share: float
    """Share of it that the steps of the recipe got."""
    start_seconds: float
    """Until the first step: imports and a model."""
    memory: float
    """Bytes that the device has."""
    cores: int
    precision: str
    on_cpu: bool


class RandomSteps:
    """Steps of a recipe on random words: the loop that trains, without a run around it."""

    def __init__(self, recipe: Recipe, rows: int, device: torch.device):
        assert recipe.encoder.vocab_size is not None
        special = (0, 1, 2, 3, 4)
        size, units = recipe.encoder.vocab_size, Units.of([], b"")
        ids = {"bos": 0, "eos": 2, "pad": 1, "mask": 4}
        self.vocabulary = Vocabulary(size, **ids, special=special, words=all_words(size), units=units)
        self.recipe, self.rows = recipe, rows
        torch.manual_seed(recipe.seed)
        self.loop = Loop(recipe, _MANY, build_model(recipe, self.vocabulary), device)
        self.collator = Collator.of(recipe, self.vocabulary, MaskSchedule(recipe, _MANY))
        self.random = np.random.default_rng(recipe.seed)

    def seconds(self, batches: int = 1) -> float:
        """Take a step on so many batches of `rows`, making them included; return the seconds."""
        started = time.perf_counter()
        self.loop.step([self.batch() for _ in range(batches)])
        synchronize(self.loop.device)
        return time.perf_counter() - started

    def batch(self) -> Batch:
        """Return rows of random words."""
        first = len(self.vocabulary.special)
        ids = self.random.integers(first, self.vocabulary.size, (self.rows, self.recipe.length))
        return self.collator([{"ids": row, "index": number} for number, row in enumerate(ids)])


def calibrated(recipe: Recipe, since: float) -> Calibration:
    """Time some steps of a recipe that is spelled out; `since` is when the program started."""
    recipe = recipe.at(0.5)  # where the mask rate changes: in the middle
    recipe = replace(recipe, select=SelectRecipe())  # choosing rows is charged at the speed of training on them
    device, dtype = own_device(), mixed_precision(recipe.train.precision) or torch.float32
    peak = measured_peak(device, dtype)
    on_device, accumulation = batch_split(recipe.train, 1)
    fits = int(_LONGEST_STEP * 0.5 * peak / sequence_flops(recipe).training)
    rows = max(min(on_device, fits), 1)
    say(f"calibrating: steps of {rows} rows on this machine, about {_SECONDS:.0f} seconds")
    steps = RandomSteps(recipe, rows, device)
    start = time.monotonic() - since
    one, two = _timed(steps)
    batch = max(two - one, 0.0)  # what one more batch of so many rows takes, without the update
    seconds = one + (accumulation * on_device / rows - 1) * batch
    peak = max(peak, measured_peak(device, dtype))  # a shared machine may have been busy the first time
    flops = step_flops(recipe)
    return Calibration(
        peak=peak,
        share=flops / seconds / peak,
        start_seconds=start,
        memory=_memory(device),
        cores=torch.get_num_threads(),
        precision=precision_name(recipe.train.precision),
        on_cpu=device.type == "cpu",
    )


def _timed(steps: RandomSteps) -> tuple[float, float]:
    """Return the median seconds of steps on one batch and on two, taken in turns."""
    one: list[float] = []
    two: list[float] = []
    started = time.perf_counter()
    for number in range(_WARM_UP + _MOST):
        if number == _WARM_UP:
            started, one, two = time.perf_counter(), [], []
        one.append(steps.seconds(1))
        two.append(steps.seconds(2))
        if number >= _WARM_UP + _FEWEST and time.perf_counter() - started > _SECONDS:
            break
    return statistics.median(one), statistics.median(two)


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return FLOP/s of matrix products, the best of a few; a fraction of a second."""
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
