"""A frozen tensor of a module, and what is computed of it in its place; in the end that is put where it was.

A linear map reads its weight and its bias once in every call, and so each is computed once a forward pass (DeBERTa's
queries and keys twice: it calls them for words and for positions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.utils import parametrize

from latemask.ground.precision import without_autocast

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": gelu}


class Adapted(nn.Module):
    """A frozen tensor and what a bottleneck makes of it: P + f(P·D)·U, for every row of P. U is nothing at first.

    P is a bias [1, k], or the transpose [in, out] of the rows of a matrix that mean one thing; of others it has more.
    """

    def __init__(self, tensor: Tensor, rank: int, function: str, parts: int = 1):
        super().__init__()
        self.function = FUNCTIONS[function]
        blocks = as_blocks(tensor, parts)
        # What a unit says of all rows of P has length one on average, however small or large P is.
        self.down = nn.Parameter(torch.randn(parts, blocks.shape[2], rank) / blocks.norm(dim=(1, 2), keepdim=True))
        self.up = nn.Parameter(torch.zeros(parts, rank, blocks.shape[2]))

    def forward(self, tensor: Tensor) -> Tensor:
        """Return the new tensor; in its own precision, whatever the step computes in."""
        with without_autocast(tensor.device):
            added = self.function(as_blocks(tensor, len(self.down)) @ self.down) @ self.up  # [parts, rows, k]
            return tensor + added.mT.reshape(tensor.shape)


def as_blocks(tensor: Tensor, parts: int) -> Tensor:
    """Return [parts, rows, k] of a bias [parts * k] or a matrix [parts * k, rows]."""
    return tensor.reshape(parts, tensor.shape[0] // parts, -1).mT


class Placed(nn.Module):
    """A frozen tensor, but for some of its places (positions in the flattened tensor): what stands there is trained."""

    places: Tensor

    def __init__(self, tensor: Tensor, places: Tensor):
        super().__init__()
        self.register_buffer("places", places, persistent=False)
        self.values = nn.Parameter(tensor.detach().flatten()[places])

    def forward(self, tensor: Tensor) -> Tensor:
        """Return the tensor with the trained values in their places."""
        return tensor.flatten().index_copy(0, self.places, self.values).view_as(tensor)


def parametrized(model: Any) -> list[tuple[Any, str, Any]]:
    """Return every module that has something computed, the name of what is, and what computes it."""
    return [
        (module, name, steps[0])
        for module in model.modules()
        if parametrize.is_parametrized(module)
        for name, steps in module.parametrizations.items()
    ]


def settle(model: Any) -> Any:
    """Put what is computed where the frozen tensors were; nothing else is left of it."""
    for module, name, _ in parametrized(model):
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return model
