"""`--method bias`: biases, norms and the head are trained, every matrix stays as it is (BitFit)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.evaluation.methods import METHODS, Method

if TYPE_CHECKING:
    from latemask.evaluation.protocol import Protocol


@METHODS.register("bias")
class Bias(Method):
    """The control of every method that stores little."""

    words = "its biases and norms alone"

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights: BitFit's authors took 1e-4 to 1e-3 for base and large."""
        return 10 * super().learning_rate(width)

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Freeze what has two dimensions."""
        for weight in model.base_model.parameters():
            weight.requires_grad_(weight.dim() == 1)
        return model
