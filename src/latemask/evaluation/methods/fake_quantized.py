"""A linear map on its way to a quantised one: in fp32 still, with the values that it will have, and with gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from latemask.evaluation.methods.quantized import QuantizedLinear, Shape, half

_CLIP = 4.0  # σ(4) = 0.982 of the range, where learning begins
_STEP_LIMITS = 1e-5, 1e4
_ALTERNATIONS = 5  # LoftQ's


def fake_quantized(weight: Tensor, high: Tensor, low: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Ŵ of W [rows, groups, group], and the codes, scales and zero points that it is made of.

    A group's range goes from `low` times its least to `high` times its greatest weight, and has zero in it. Gradients
    pass the rounding of w/s and of s alone: high and low learn by the scale.
    """
    most = 2**bits - 1
    top = high * weight.amax(-1, keepdim=True).clamp(min=0)
    bottom = low * weight.amin(-1, keepdim=True).clamp(max=0)
    scales = half(((top - bottom) / most).clamp(*_STEP_LIMITS))  # as stored, before anything is made of it
    zeros = (-bottom / scales).round().clamp(0, most)
    steps = weight / scales
    codes = (steps + (steps.round() - steps).detach() + zeros).clamp(0, most)
    return (codes - zeros) * scales, codes, scales, zeros


class Fitted(nn.Module):
    """A linear map on its way to a quantised one: ranges and the low-rank part are learned, its weight stays."""

    def __init__(self, stock: nn.Linear, shape: Shape, generator: torch.Generator, clip: float = _CLIP):
        super().__init__()
        self.shape, self.bias = shape, stock.bias
        self.take(stock.weight.detach())
        rows, columns = stock.weight.shape
        start = self.groups.new_full((rows, columns // shape.group, 1), clip)
        self.high, self.low = nn.Parameter(start), nn.Parameter(start.clone())
        drawn = torch.rand(shape.rank, columns, generator=generator).to(start.device)
        self.down = nn.Parameter((2 * drawn - 1) / math.sqrt(columns))  # Kaiming's, as peft has it
        self.up = nn.Parameter(start.new_zeros(rows, shape.rank))

    def take(self, weight: Tensor) -> None:
        """Take the weights that are to be quantised."""
        self.groups = weight.unflatten(1, (-1, self.shape.group))

    def on_grid(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return Ŵ, codes, scales and zero points [rows, groups, …] of the ranges as they are now."""
        return fake_quantized(self.groups, self.high.sigmoid(), self.low.sigmoid(), self.shape.bits)

    def forward(self, x: Tensor) -> Tensor:
        """Do what the quantised map will do, to the last bits of a sum."""
        beside = linear(linear(x, half(self.down)), half(self.up) * self.shape.scale, self.bias)
        return linear(x, self.on_grid()[0].flatten(1)) + beside

    @torch.no_grad()
    def frozen(self) -> QuantizedLinear:
        """Return the quantised map."""
        _, codes, scales, zeros = self.on_grid()
        rows, columns = codes.shape[0], codes.shape[1] * codes.shape[2]
        found = QuantizedLinear(columns, rows, self.bias is not None, self.shape).to(codes.device)
        found.fill(codes.flatten(1), scales[..., 0], zeros[..., 0])
        found.down.copy_(self.down)
        found.up.copy_(self.up)
        if found.bias is not None:
            found.bias.copy_(self.bias)
        return found


@torch.no_grad()
def loftq(stock: nn.Linear, shape: Shape, generator: torch.Generator) -> Fitted:
    """Alternate: the nearest codes of W − scale·up·down, and the best up and down for what they leave (Li et al.)."""
    found = Fitted(stock, shape, generator, clip=math.inf)
    weight, root = stock.weight, math.sqrt(shape.scale)
    for _ in range(_ALTERNATIONS):
        found.take(weight - shape.scale * half(found.up) @ half(found.down))
        left, values, right = torch.linalg.svd(weight - found.on_grid()[0].flatten(1), full_matrices=False)
        values = values[: shape.rank].sqrt() / root
        found.up.copy_(left[:, : shape.rank] * values)
        found.down.copy_(values[:, None] * right[: shape.rank])
    return found
