"""Optimizers: model + recipe → a torch optimizer. A new one is one function.

Every group of weights may have its own `lr`: it is the peak, and the schedule scales all of them alike.
"""

from __future__ import annotations

import re
from typing import Any

from latemask.recipe import OPTIMIZERS as OPTIMIZERS
from latemask.recipe import TrainRecipe

_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(^|\.|_)norm($|\.)", re.IGNORECASE)


@OPTIMIZERS.register("adamw")
def adamw(model: Any, train: TrainRecipe) -> Any:
    """AdamW, in one fused kernel."""
    import torch

    groups, betas = decay_groups(model, train.weight_decay), (train.beta1, train.beta2)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.epsilon, fused=True)


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights in two groups: matrices decay, biases and norms do not."""
    import torch

    norms = (module for module in model.modules() if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)))
    of_norms = {id(weight) for module in norms for weight in module.parameters()}
    decayed: list[Any] = []
    others: list[Any] = []
    for name, weight in model.named_parameters():
        (others if id(weight) in of_norms or _NOT_DECAYED.search(name) else decayed).append(weight)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
