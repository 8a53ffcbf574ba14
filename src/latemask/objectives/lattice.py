"""All ways to emit the hidden tokens of a row in order, each from a slot behind the one before: ExLM's lattice.

A path begins at the first slot, ends at the last, and visits a slot for every target. Sums over paths are in fp32, with
true infinities: a row that no path can emit has a loss that is infinite and a gradient that is no number, which the
training loop refuses.

B batch, N slots, T targets, D width, C heads. `steps` [B, N-1, N-1] holds the logarithm of how likely a path goes from
slot i (all but the last) to slot j + 1 (all but the first); minus infinity where that is not behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from latemask.families import split_heads
from latemask.ground.precision import without_autocast

_NEVER = -math.inf
_LOGIT_ROWS = 512  # states whose logits are mixed at once


class Transitions(nn.Module):
    """From every slot to the slots behind it: several heads, each a softmax over them, mixed by a gate."""

    def __init__(self, width: int, heads: int, length: int, copies: int):
        super().__init__()
        self.head_width = width // heads
        self.positions = nn.Embedding(length + 1, width)  # the end stands behind a row
        self.copies = nn.Embedding(copies, width)
        self.query = nn.Linear(2 * width, width)
        self.key = nn.Linear(2 * width, width)
        self.gate = nn.Linear(2 * width, heads)

    def forward(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the steps between slots with states [B, N, D]; `positions` [B, T] are those of their targets."""
        places = self.positions(positions)[:, :, None] + self.copies.weight
        features = torch.cat((states, places.flatten(1, 2).to(states.dtype)), dim=-1)
        queries = split_heads(self.query(features[:, :-1]), self.head_width)
        keys = split_heads(self.key(features[:, 1:]), self.head_width)
        gates = self.gate(features[:, :-1]).float().log_softmax(-1)
        with without_autocast(states.device):
            scores = queries.float() @ keys.float().transpose(2, 3) * self.head_width**-0.5
            return _mixed(scores, gates)


def _mixed(scores: Tensor, gates: Tensor) -> Tensor:
    """[B, C, N-1, N-1] and [B, N-1, C] → steps. Nothing that is infinite is summed: its gradient would be no number."""
    behind = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu()
    each = scores.masked_fill(~behind, _NEVER).log_softmax(-1).masked_fill(~behind, 0.0)
    mixed = (each + gates.transpose(1, 2)[..., None]).logsumexp(1)
    return mixed.masked_fill(~behind, _NEVER)


def path_sums(emissions: Tensor, steps: Tensor) -> Tensor:
    """Return the log-sum [B] over all paths that emit the targets; `emissions` [B, N, T] are log-probabilities."""
    found: Tensor = _PathSums.apply(emissions, steps)
    return found


def shares_of_slots(steps: Tensor, targets: int) -> Tensor:
    """Return how likely each target is emitted from each slot [B, T, N], in logarithms, whatever the tokens are."""
    emissions = steps.new_zeros(len(steps), steps.shape[1] + 1, targets)
    before, behind = _sums_before(emissions, steps), _sums_behind(emissions, steps)
    return torch.stack([one + other for one, other in zip(before, behind, strict=True)], dim=1).log_softmax(-1)


class _PathSums(torch.autograd.Function):
    """Forward and backward recursions in place of autograd's: of all that a path sum needs, only sums are kept."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, steps: Tensor) -> Tensor:
        before = _sums_before(emissions, steps)
        ctx.save_for_backward(emissions, steps, *before)
        return before[-1][:, -1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients are how likely a path visits a slot for a target, and goes from one slot to another."""
        emissions, steps, *before = ctx.saved_tensors
        behind, total = _sums_behind(emissions, steps), before[-1][:, -1]
        visits = [(one + other - total[:, None]).exp() for one, other in zip(before, behind, strict=True)]
        moves = torch.zeros_like(steps)
        for target in range(1, emissions.shape[2]):
            come, go = before[target - 1][:, :-1, None], (emissions[:, :, target] + behind[target])[:, None, 1:]
            moves += (come + steps + go - total[:, None, None]).exp_()
        weight = gradients[0][:, None, None]
        return torch.stack(visits, dim=2) * weight, moves * weight


def _sums_before(emissions: Tensor, steps: Tensor) -> list[Tensor]:
    """Return for each target the log-sums [B, N] over the ways to emit it from a slot, and those before it."""
    first = torch.full_like(emissions[:, :, 0], _NEVER)
    first[:, 0] = emissions[:, 0, 0]
    sums = [first]
    for target in range(1, emissions.shape[2]):
        reached = (sums[-1][:, :-1, None] + steps).logsumexp(1)
        sums.append(emissions[:, :, target] + F.pad(reached, (1, 0), value=_NEVER))
    return sums


def _sums_behind(emissions: Tensor, steps: Tensor) -> Sequence[Tensor]:
    """Return for each target the log-sums [B, N] over the ways to emit all behind it, once it came from a slot."""
    last = torch.full_like(emissions[:, :, 0], _NEVER)
    last[:, -1] = 0.0
    sums = [last]
    for target in range(emissions.shape[2] - 1, 0, -1):
        go = (emissions[:, :, target] + sums[-1])[:, None, 1:]
        sums.append(F.pad((steps + go).logsumexp(2), (0, 1), value=_NEVER))
    return sums[::-1]


def mixed_logits(model: Any, states: Tensor, shares: Tensor) -> Tensor:
    """Return the logarithm of every token's probability at each target [B, M, W]: that of its slots, by their shares.

    `shares` [B, M, N] are logarithms. A few rows at a time: no more logits are held than the head's loss holds.
    """
    rows = max(1, _LOGIT_ROWS // states.shape[1])
    found = []
    for some, theirs in zip(states.split(rows), shares.split(rows), strict=True):
        each = model.predict(some, None).logits.float().log_softmax(-1)
        found.append(torch.stack([(share[..., None] + each).logsumexp(1) for share in theirs.unbind(1)], dim=1))
    return torch.cat(found)
