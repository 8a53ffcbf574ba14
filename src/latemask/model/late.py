"""Late masking (3ML): the encoder sees visible tokens only; the [MASK]s join later.

B batch, V visible, M masked, R corrupted (visible and predicted), P = M + R predicted, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from latemask.model.base import EncoderForPreTraining, PreTrainingOutput
from latemask.model.config import LateMaskConfig
from latemask.model.decoder import Decoder
from latemask.model.inside import JoinedLayers


class LateMaskForPreTraining(EncoderForPreTraining):
    """A stock encoder pre-trained with [MASK]s that join `inside` its last layers or at a decoder."""

    config_class = LateMaskConfig

    def __init__(self, config: LateMaskConfig):
        super().__init__(config)
        width = config.encoder.hidden_size
        # Not a row of the word table: what a [MASK] is has nothing to do with what a word means.
        self.mask_vector = nn.Parameter(torch.empty(width))
        heads = config.encoder.num_attention_heads
        self.decoder = (
            None
            if config.join == "inside"
            else Decoder(config.join, config.join_layers, width, heads, config.length, config.positions)
        )
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            init.normal_(self.mask_vector, std=self.config.initializer_range)

    def forward(
        self,
        visible_ids: Tensor,
        visible_positions: Tensor,
        masked_positions: Tensor,
        corrupted_slots: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> PreTrainingOutput:
        """Encode, join, loss.

        Args:
            visible_ids: [B, V] tokens the encoder sees.
            visible_positions: [B, V] their positions in the row.
            masked_positions: [B, M] positions that are hidden and predicted.
            corrupted_slots: [B, R] where predicted positions that stayed visible stand among the visible.
            labels: [B, P] true tokens, first of the masked, then of the corrupted; without them logits are returned.
        """
        visible = self.encode(visible_ids, visible_positions, self.layers_before_join)
        predicted = self.join(visible, visible_positions, masked_positions, corrupted_slots)
        return self.predict(predicted, labels)

    @property
    def layers_before_join(self) -> int | None:
        """How many of the encoder's layers see no [MASK]; None: all of them."""
        return self.config.encoder.num_hidden_layers - self.config.join_layers if self.decoder is None else None

    def join(
        self, visible: Tensor, visible_positions: Tensor, masked_positions: Tensor, corrupted_slots: Tensor | None
    ) -> Tensor:
        """Let the [MASK]s join the visible states [B, V, D]; return states where something is predicted [B, P, D]."""
        if corrupted_slots is not None and not corrupted_slots.shape[1]:
            corrupted_slots = None
        if self.decoder is not None:
            return self.decoder(visible, self.mask_vector, visible_positions, masked_positions, corrupted_slots)
        stream, rotation = self.joined_stream(visible, visible_positions, masked_positions)
        predicted = self.joined_layers.run_to_predictions(stream, rotation, visible.shape[1], corrupted_slots)
        return self.family.final_norm(self.encoder, predicted)

    def joined_stream(self, visible: Tensor, visible_positions: Tensor, masked_positions: Tensor) -> Any:
        """Return [visible ; [MASK]s] [B, V + M, D] as the joined layers take it, and its rotation."""
        vectors = self.mask_vector.expand(*masked_positions.shape, -1)
        masks = self.family.embed(self.encoder, masked_positions, vectors=vectors)
        positions = torch.cat((visible_positions, masked_positions), dim=1)
        stream = torch.cat((visible, masks), dim=1)
        return stream, self.family.rotation(self.encoder, stream, positions)

    @property
    def joined_layers(self) -> JoinedLayers:
        """The encoder's own last layers, opened."""
        return JoinedLayers(self.family, self.encoder, self.config.join_layers, self.config.two_way)

    @classmethod
    def from_encoder(
        cls, folder_or_id: str, mask_token_id: int | None = None, **settings: Any
    ) -> LateMaskForPreTraining:
        """Start from an existing encoder; its word vector for <mask>, if given, is where the [MASK] vector starts."""
        model: Any = super().from_encoder(folder_or_id, **settings)
        if mask_token_id is not None:
            with torch.no_grad():
                model.mask_vector.copy_(model.words[mask_token_id])
        return model
