"""An exponential moving average of the weights: smoother than the last ones, and what is judged and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from latemask.ground.processes import sharded_as, whole

_SOON = 10  # steps: at first the average follows faster, or it would remember the first weights for too long


class Average:
    """A second set of weights, which follows the model's. Sharded as they are."""

    def __init__(self, model: Any, decay: float):
        self.decay = decay
        self.names, weights = zip(*model.named_parameters(), strict=True)
        self.weights: list[Tensor] = list(weights)
        self.average = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def follow(self, done: int) -> None:
        """Take one step towards the weights, of which so many steps were done."""
        decay = min(self.decay, done / (done + _SOON))
        get_ema_multi_avg_fn(decay)(self.average, self.weights, None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the average; meanwhile the weights are here."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(self.weights, self.average, strict=True):
            before = weight.clone()
            weight.copy_(average)
            average.copy_(before)

    def held(self) -> dict[str, Tensor]:
        """Return what is here, by name, put together from all processes."""
        return {name: whole(tensor).cpu() for name, tensor in zip(self.names, self.average, strict=True)}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Be what is given, by name."""
        for name, average in zip(self.names, self.average, strict=True):
            average.copy_(sharded_as(tensors[name].to(average.device), average))
