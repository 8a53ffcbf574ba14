"""Muon: a matrix moves by its momentum made nearly orthogonal (Jordan et al. 2024), with AdamW for the other weights.

torch.optim.Muon knows no fused matrices and computes in bf16 on every machine. Here queries, keys and values are three
matrices, as they are in a model that does not fuse them, and products are in the precision of the run. Where nothing is
fused the steps are torch's, which a test shows. As in Moonlight (2025) they are as large as AdamW's usually are (torch:
`match_rms_adamw`), so that rate and decay need not be tuned anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latemask.ground.processes import sharded_as, whole
from latemask.training.optimizers import NEWTON_SCHULZ_STEPS

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95
_AS_ADAMW = 0.2  # root mean square of AdamW's usual step
_TINY = 1e-7


class MuonAndAdamW(torch.optim.AdamW):
    """Groups with `is_muon` take Muon's steps, the others AdamW's: one optimizer, one state, one file."""

    def __init__(self, groups: list[dict[str, Any]], parts: dict[Tensor, int], dtype: torch.dtype, **adamw: Any):
        super().__init__(groups, **adamw)
        self.parts, self.dtype = parts, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step with all groups."""
        every = self.param_groups
        self.param_groups = [group for group in every if not group["is_muon"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = every
        for group in every:
            if group["is_muon"]:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._turn(weight, group["lr"], group["weight_decay"])
        return loss

    def _turn(self, weight: Tensor, rate: float | Tensor, decay: float) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        bad = getattr(self, "found_inf", None)
        if bad is not None and weight.device.type != "cpu":  # on a CPU the loop has looked; nobody waits for a GPU
            gradient, rate = torch.where(bad > 0, torch.zeros_like(gradient), gradient), rate * (1 - bad)
        state.setdefault("step", torch.zeros(()))  # AdamW looks for one in every state that it loads
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        ahead = whole(gradient.lerp(momentum, _MOMENTUM))
        parts = ahead.unflatten(0, (self.parts.get(weight, 1), -1))
        size = _AS_ADAMW * max(parts.shape[1:]) ** 0.5
        step = nearly_orthogonal(parts, self.dtype).flatten(0, 1).to(weight.dtype)
        weight.mul_(1 - rate * decay)
        weight.sub_(sharded_as(step, weight) * (rate * size))


def nearly_orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return matrices [N, R, C] with all singular values near 1, by Newton and Schulz' iteration."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.to(dtype)
    found = found.mT if is_tall else found
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
    a, b, c = _COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.mT if is_tall else found
