"""Optimizers: model + recipe → a torch optimizer. A new one is one function.

Every group of weights may have its own `lr`: it is the peak, and the schedule scales all of them alike. One that
multiplies matrices or keeps something else than AdamW's two moments says so (`flops`, `kept`). Importing this loads no
torch.
"""

from __future__ import annotations

import re
from typing import Any

from latemask.recipe import OBJECTIVES, Recipe, TrainRecipe
from latemask.recipe import OPTIMIZERS as OPTIMIZERS

_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(^|\.|_)norm($|\.)", re.IGNORECASE)


@OPTIMIZERS.register("adamw")
def adamw(model: Any, train: TrainRecipe) -> Any:
    """AdamW, in one fused kernel."""
    import torch

    return torch.optim.AdamW(decay_groups(model, train.weight_decay), **adamw_settings(train))


def adamw_settings(train: TrainRecipe) -> dict[str, Any]:
    """Return the settings of AdamW that a recipe has."""
    betas = (train.beta1, train.beta2)
    return {"lr": train.learning_rate, "betas": betas, "eps": train.epsilon, "fused": True}


@OPTIMIZERS.register("muon")
class Muon:
    """Muon for the matrices of layers and head, AdamW for everything else. One rate suits both."""

    def __call__(self, model: Any, train: TrainRecipe) -> Any:
        """Return one torch optimizer that does both."""
        import torch

        from latemask.ground.precision import mixed_precision
        from latemask.training.muon import MuonAndAdamW

        matrices = {module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)}
        groups = []
        for group in decay_groups(model, train.weight_decay):
            for is_muon in (True, False):
                chosen = [weight for weight in group["params"] if (weight in matrices) == is_muon]
                groups += [{**group, "params": chosen, "is_muon": is_muon}] if chosen else []
        dtype = mixed_precision(train.precision) or torch.float32
        return MuonAndAdamW(groups, fused_parts(model), dtype, **adamw_settings(train))

    def flops(self, recipe: Recipe) -> float:
        """Count the products of a step; the rows of a batch do not matter."""
        return sum(count * newton_schulz_flops(m, n) for count, m, n in OBJECTIVES[recipe.objective].matrices(recipe))

    def kept(self, recipe: Recipe) -> float:
        """Count what it keeps: one number for a weight of a matrix, two for any other."""
        objective = OBJECTIVES[recipe.objective]
        once = sum(count * m * n for count, m, n in objective.matrices(recipe))
        return 2 * objective.weights(recipe).total - once


NEWTON_SCHULZ_STEPS = 5


def newton_schulz_flops(m: int, n: int) -> float:
    """Count what makes a matrix nearly orthogonal: three products a step, a multiply-add counted as two."""
    m, n = min(m, n), max(m, n)
    return NEWTON_SCHULZ_STEPS * (4 * m * m * n + 2 * m**3)


def fused_parts(model: Any) -> dict[Any, int]:
    """Return of how many matrices each fused one is made, one above the other."""
    names = {**model.family.fused, **model.objective.fused}
    found = ((weight, name.rpartition(".")[0].rpartition(".")[2]) for name, weight in model.named_parameters())
    return {weight: names[module] for weight, module in found if module in names and weight.ndim > 1}


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights that are trained in two groups: matrices decay, biases and norms do not."""
    import torch

    norms = (module for module in model.modules() if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)))
    of_norms = {id(weight) for module in norms for weight in module.parameters()}
    decayed: list[Any] = []
    others: list[Any] = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        (others if id(weight) in of_norms or _NOT_DECAYED.search(name) else decayed).append(weight)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
