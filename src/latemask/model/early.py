"""The baseline: masked language modelling as RoBERTa does it, [MASK] at the input.

As well built as late masking but for one thing: its last layer works at every position, as everybody's does, and could
work at the predicted ones alone.
"""

from __future__ import annotations

from torch import Tensor

from latemask.model.base import EncoderForPreTraining, PreTrainingOutput
from latemask.model.config import EarlyMaskConfig
from latemask.model.inside import take_slots


class EarlyMaskForPreTraining(EncoderForPreTraining):
    """A stock encoder with [MASK]s in its input; logits only where something is predicted."""

    config_class = EarlyMaskConfig

    def __init__(self, config: EarlyMaskConfig):
        super().__init__(config)
        self.post_init()

    def forward(
        self, input_ids: Tensor, positions: Tensor, predicted_slots: Tensor, labels: Tensor | None = None
    ) -> PreTrainingOutput:
        """Encode, take, loss.

        Args:
            input_ids: [B, S] tokens with [MASK]s in place.
            positions: [B, S] their positions in the row.
            predicted_slots: [B, P] which of them are predicted.
            labels: [B, P] true tokens; without them logits are returned.
        """
        states = self.encode(input_ids, positions)
        return self.predict(take_slots(states, predicted_slots), labels)
