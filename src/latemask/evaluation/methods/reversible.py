"""Layers that are computed backwards: what went into them follows from what came out, so nothing of them is kept.

Two streams x1, x2 go through a layer: y1 = λ x1 + F(x2), y2 = β x2 + G(y1). So x2 = (y2 - G(y1)) / β, and then
x1 = (y1 - F(x2)) / λ. F and G compute in the encoder's precision, the streams are in fp64: each division by λ = 0.1
makes an error ten times as large, and in fp64 it stays below what F and G can see for some layers. They are given the
very bits that they had before, or nearly so: bf16 would make large errors of small ones. B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from latemask.ground.precision import attention_kernels, autocast_dtype

Half = Callable[[Tensor], Tensor]  # F or G: [B, T, D] -> [B, T, D]


@dataclass(frozen=True)
class Coupling:
    """One layer of one forward pass: F, G, their trained weights, λ, β, and whether the streams change places."""

    first: Half
    second: Half
    first_weights: tuple[Tensor, ...]
    second_weights: tuple[Tensor, ...]
    first_scale: float
    second_scale: float
    swaps: bool


def storing(couplings: Sequence[Coupling], states: Tensor) -> tuple[Tensor, Tensor]:
    """Send states through both streams of all layers, and leave the backward pass to autograd."""
    first = second = states.to(_wide(states))
    for coupling in couplings:
        first, second = forth(coupling, first, second, states.dtype)
    return first.to(states.dtype), second.to(states.dtype)


def forgetting(couplings: Sequence[Coupling], states: Tensor, anchors: int) -> tuple[Tensor, Tensor]:
    """Do the same, and keep the streams after every so many layers alone, counted from the last one."""
    weights = [weight for one in couplings for weight in (*one.first_weights, *one.second_weights)]
    found: tuple[Tensor, Tensor] = _Forgetting.apply(states, couplings, anchors, *weights)
    return found


class _Forgetting(torch.autograd.Function):
    """All layers at once; backward makes the graph of one half of a layer at a time."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, couplings: Sequence[Coupling], anchors: int, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.couplings, ctx.anchors, ctx.dtype = couplings, anchors, states.dtype
        ctx.surroundings, ctx.draws = Surroundings.of(states), []
        kept: list[Tensor] = []
        first = second = states.to(_wide(states))
        with ctx.surroundings.mixed():
            for below, coupling in zip(reversed(range(len(couplings))), couplings, strict=True):
                first, second = forth(
                    coupling, first, second, ctx.dtype, lambda: ctx.draws.append(random_state(states.device))
                )
                if below % anchors == 0:
                    kept += [first, second]
        ctx.save_for_backward(*kept)
        return first.to(ctx.dtype), second.to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_first: Tensor, of_second: Tensor) -> tuple[Tensor | None, ...]:
        at = Between(of_first, of_second)
        kept, draws, found = list(ctx.saved_tensors), list(ctx.draws), list[Tensor]()
        with ctx.surroundings.again():
            for above, coupling in enumerate(reversed(ctx.couplings)):
                if above % ctx.anchors == 0:
                    at.second, at.first = kept.pop(), kept.pop()
                found[:0] = back(coupling, at, ctx.dtype, draws.pop(), draws.pop())
        of_states = at.of_first + at.of_second if ctx.needs_input_grad[0] else None
        return of_states, None, None, *found


@dataclass
class Between:
    """Between two layers, on the way back: the loss's gradients with respect to both streams, and the streams.

    It changes from layer to layer, so that nothing stays alive that is no longer needed.
    """

    of_first: Tensor
    of_second: Tensor
    first: Tensor = field(init=False)
    second: Tensor = field(init=False)


def forth(
    coupling: Coupling, first: Tensor, second: Tensor, dtype: torch.dtype, before: Callable[[], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Go through a layer; `before` is called before each half."""
    if before:
        before()
    first = torch.add(coupling.first(second.to(dtype)), first, alpha=coupling.first_scale)
    if before:
        before()
    second = torch.add(coupling.second(first.to(dtype)), second, alpha=coupling.second_scale)
    return (second, first) if coupling.swaps else (first, second)


def back(
    coupling: Coupling, at: Between, dtype: torch.dtype, second_draws: RandomState, first_draws: RandomState
) -> list[Tensor]:
    """Go back through a layer; return the gradients of its weights."""
    if coupling.swaps:
        at.first, at.second, at.of_first, at.of_second = at.second, at.first, at.of_second, at.of_first
    weights = coupling.second_weights
    out, into, of_second = _again(coupling.second, at.first.to(dtype), weights, at.of_second, second_draws)
    at.second = torch.sub(at.second, out).div_(coupling.second_scale)
    at.of_first = at.of_first + into
    del out, into
    weights = coupling.first_weights
    out, into, of_first = _again(coupling.first, at.second.to(dtype), weights, at.of_first, first_draws)
    at.first = torch.sub(at.first, out).div_(coupling.first_scale)
    at.of_second = torch.add(into, at.of_second, alpha=coupling.second_scale)
    at.of_first = at.of_first * coupling.first_scale
    return [*of_first, *of_second]


def _again(
    half: Half, states: Tensor, weights: tuple[Tensor, ...], gradient: Tensor, draws: RandomState
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Compute a half again; return what comes out, and the gradients of what went in and of its weights."""
    set_random_state(states.device, draws)
    with torch.enable_grad():
        states = states.detach().requires_grad_()
        out = half(states)
        into, *of_weights = torch.autograd.grad(out, (states, *weights), gradient.to(out.dtype))
    return out.detach(), into, of_weights


def _wide(states: Tensor) -> torch.dtype:
    """Return what streams are in; Apple's GPUs have no fp64."""
    return torch.float32 if states.device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Surroundings:
    """What a forward pass computes in. The backward pass is outside of it, and must compute the same bits."""

    device: torch.device
    dtype: torch.dtype | None
    length: int

    @classmethod
    def of(cls, states: Tensor) -> Surroundings:
        """Return what is around now."""
        return cls(states.device, autocast_dtype(states.device), states.shape[1])

    @contextmanager
    def mixed(self) -> Iterator[None]:
        """Compute as there, but let autocast remember no weights that it cast: they would stay alive until it ends."""
        cast = torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None, cache_enabled=False)
        with cast, attention_kernels(self.device, self.dtype, self.length):
            yield

    @contextmanager
    def again(self) -> Iterator[None]:
        """Compute as there, and leave the random numbers that others will draw as they were."""
        before = random_state(self.device)
        try:
            with self.mixed():
                yield
        finally:
            set_random_state(self.device, before)


RandomState = tuple[Tensor, Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """Return where the random numbers of the CPU and of the device stand."""
    return torch.get_rng_state(), None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()


def set_random_state(device: torch.device, state: RandomState) -> None:
    """Let the same numbers be drawn again."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.get_device_module(device).set_rng_state(state[1])
