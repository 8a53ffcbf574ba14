"""How a model is fine-tuned: which weights train, what is added, and how it is a stock model again in the end.

    @METHODS.register("head-only")
    class HeadOnly(Method):
        def prepared(self, model, protocol): ...

`--method head-only` then takes it. A method loads torch inside its functions: the table is read for help and mistakes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from latemask.ground.registry import Registry

if TYPE_CHECKING:
    from latemask.evaluation.protocol import Protocol

# Peak learning rates by the encoder's width: RoBERTa's middle ones for base and large; smaller encoders want more
# (google-research/bert's miniatures and ELECTRA-small: 1e-4 to 3e-4; ours were tried, docs/results.md).
_LEARNING_RATES = ((320, 3e-4), (640, 1e-4), (896, 3e-5), (math.inf, 1e-5))


class Method:
    """A way to fine-tune. As it stands here it changes nothing: all weights train."""

    words: str = ""
    """What tables call it, where its name does not say enough."""

    def learning_rate(self, width: int) -> float:
        """Return the peak learning rate that suits an encoder's width."""
        return next(rate for limit, rate in _LEARNING_RATES if width < limit)

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Return the model that is trained, made of the stock model with the task's head; the seed is set."""
        return model

    def merged(self, model: Any) -> Any:
        """Return a trained model as a stock one, with nothing left of the method; None where it cannot be one.

        It is called once, on the weights of the reported epoch, and may use the model up. Without a stock model there
        are scores, and nothing to keep.
        """
        return model


METHODS: Registry[Method] = Registry("fine-tuning method")

from latemask.evaluation.methods import full as _full  # noqa: E402, F401  (enters itself into the table)
