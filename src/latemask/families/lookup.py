"""A gather that keeps only its index: torch's keeps what it looked up in, for nothing but its size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LookUp(torch.autograd.Function):
    """[B, H, Q, N] at an index [B, H, Q, K] of its last dimension: [B, H, Q, K]."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        """Keep the index, which may be the same for all heads, and how many there are to choose from."""
        ctx.save_for_backward(index)
        ctx.count = table.shape[-1]
        return table.gather(-1, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Add up what went to each."""
        (gradient,), (index,) = gradients, ctx.saved_tensors
        return gradient.new_zeros(*gradient.shape[:-1], ctx.count).scatter_add_(-1, index, gradient), None
