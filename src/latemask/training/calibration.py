"""A few real steps of a recipe on this machine, to know its speed before a run."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latemask.budget import sequence_flops
from latemask.ground.allocator import keep_freed_memory
from latemask.ground.console import say
from latemask.ground.precision import attention_kernels, mixed_precision, precision_name
from latemask.masking import COLLATORS
from latemask.model import build_model
from latemask.recipe import Recipe, batch_split
from latemask.text import Vocabulary
from latemask.training.peak import measured_peak, synchronize

_SECONDS = 20.0
_FEWEST, _MOST = 5, 50
_LONGEST_STEP = 4.0  # seconds; a step that would take longer is timed with fewer rows
_WARM_UP = 2


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


class BareStep:
    """Forward, backward, clip, AdamW: a step of a recipe without a Trainer around it."""

    def __init__(self, recipe: Recipe, rows: int, device: torch.device):
        self.recipe, self.rows, self.device = recipe, rows, device
        self.vocabulary = _vocabulary(recipe)
        self.model = build_model(recipe, self.vocabulary).train().to(device)
        train = recipe.train
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
            weight_decay=train.weight_decay,
            fused=True,
        )
        self.collate = COLLATORS[recipe.objective](recipe.counts, self.vocabulary, recipe.seed)
        self.random = np.random.default_rng(recipe.seed)
        self.kind = mixed_precision(train.precision)
        self.done = 0

    def forward_backward(self) -> float:
        """Do the larger part of a step, its batch included; return the seconds."""
        started = time.perf_counter()
        batch = self._batch()
        mixed = torch.autocast(self.device.type, self.kind, enabled=self.kind is not None)
        with mixed, attention_kernels(self.device, self.kind, self.recipe.length):
            loss = self.model(**batch).loss
        loss.backward()
        synchronize(self.device)
        return time.perf_counter() - started

    def update(self) -> float:
        """Clip and change the weights; return the seconds."""
        started = time.perf_counter()
        if self.recipe.train.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize(self.device)
        return time.perf_counter() - started

    def _batch(self) -> dict[str, Any]:
        ids = self.random.integers(len(self.vocabulary.special), self.vocabulary.size, (self.rows, self.recipe.length))
        first, self.done = self.done, self.done + self.rows
        batch = self.collate([{"ids": row, "index": first + number} for number, row in enumerate(ids)])
        return {name: tensor.to(self.device) for name, tensor in batch.items()}


def calibrated(recipe: Recipe, since: float) -> Calibration:
    """Time some steps of a recipe that is spelled out, on random words; `since` is when the program started."""
    keep_freed_memory()
    recipe = recipe.at(0.5)  # where the mask rate changes: in the middle
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    kind = mixed_precision(recipe.train.precision)
    peak = measured_peak(device, kind or torch.float32)
    on_device, accumulation = batch_split(recipe.train, 1)
    fits = int(_LONGEST_STEP * 0.5 * peak / sequence_flops(recipe).training)
    rows = max(min(on_device, fits), 1)
    say(f"calibrating: steps of {rows} rows on this machine, about {_SECONDS:.0f} seconds")
    step = BareStep(recipe, rows, device)
    start = time.monotonic() - since
    passes, updates = _timed(step)
    seconds = accumulation * (on_device / rows) * statistics.median(passes) + statistics.median(updates)
    peak = max(peak, measured_peak(device, kind or torch.float32))  # a shared machine may have been busy the first time
    flops = recipe.train.batch_size * sequence_flops(recipe).training
    return Calibration(
        peak=peak,
        share=flops / seconds / peak,
        start_seconds=start,
        memory=_memory(device),
        cores=torch.get_num_threads(),
        precision=precision_name(recipe.train.precision),
        on_cpu=device.type == "cpu",
    )


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _timed(step: BareStep) -> tuple[list[float], list[float]]:
    passes: list[float] = []
    updates: list[float] = []
    started = time.perf_counter()
    for number in range(_WARM_UP + _MOST):
        if number == _WARM_UP:
            started = time.perf_counter()
            passes, updates = [], []
        passes.append(step.forward_backward())
        updates.append(step.update())
        if number >= _WARM_UP + _FEWEST and time.perf_counter() - started > _SECONDS:
            break
    return passes, updates


def _vocabulary(recipe: Recipe) -> Vocabulary:
    """Return a vocabulary of the recipe's size; the words of a calibration mean nothing."""
    assert recipe.encoder.vocab_size is not None
    return Vocabulary(size=recipe.encoder.vocab_size, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))
