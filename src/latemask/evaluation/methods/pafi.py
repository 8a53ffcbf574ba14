"""`--method pafi`: the smallest weights are trained, the same ones for every task, and all others keep their bits.

Liao, Meng, Monz 2023 (arXiv 2305.16742). Which tensors are ranked is our choice: the matrices of the encoder's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latemask.evaluation.methods import METHODS, Method, freeze_encoder
from latemask.evaluation.methods.places import linears_of
from latemask.ground.console import say

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.protocol import Protocol


@dataclass(frozen=True)
class Smallest:
    """The smallest weights"""

    share: float = 0.005
    """Of the weights in the layers' linear maps, so much is trained."""


@METHODS.register("pafi")
class Pafi(Method):
    """Who has the encoder finds the same weights again: their values are all that has to be stored."""

    words = "its smallest weights alone"
    Options = Smallest

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights: few are left to do it. The head, which has it, too, bears no more."""
        return 10 * super().learning_rate(width)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Say what is wrong with the share, or cannot be with this encoder."""
        share = protocol.of_method.share
        if not 0 < share <= 1:
            return f"--pafi.share {share:g}: more than 0, and 1 at most"
        if not linears_of(encoder.skeleton()):
            return "its layers have no linear maps to choose weights from; take --method full or bias"
        return None

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Train the values at the smallest weights' places, which are put into frozen matrices at every step."""
        from torch.nn.utils import parametrize

        from latemask.evaluation.methods.parametrizations import Placed

        freeze_encoder(model)
        linears = [one for _, one in linears_of(model)]
        chosen = smallest([one.weight for one in linears], protocol.of_method.share)
        if not any(one.weight.flatten()[places].any() for one, places in zip(linears, chosen, strict=True)):
            say("pafi: all weights that it trains are exactly zero, and so no smallest ones; the first are taken")
        for one, places in zip(linears, chosen, strict=True):
            if len(places):
                parametrize.register_parametrization(one, "weight", Placed(one.weight, places))
        return model

    def merged(self, model: Any) -> Any:
        """Leave the values in their places."""
        from latemask.evaluation.methods.parametrizations import settle

        return settle(model)


def smallest(weights: list[Any], share: float) -> list[Any]:
    """Return the places of the smallest weights of all tensors together, in each as it is flattened.

    Their number is `share` of all, rounded, and one at least; of equal ones the first count as smaller, so that the
    choice depends on the weights alone.
    """
    import torch

    sizes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    count = max(1, round(share * len(sizes)))
    limit = sizes.kthvalue(count).values  # as a stable sort would find it, and much faster
    is_chosen = sizes < limit
    equal = (sizes == limit).nonzero().flatten()
    is_chosen[equal[: count - int(is_chosen.sum())]] = True
    return [part.nonzero().flatten() for part in is_chosen.split([weight.numel() for weight in weights])]
