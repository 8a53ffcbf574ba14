"""`inside`: the encoder's own last layers run on [visible ; [MASK]s]. No extra weights but the [MASK] vector.

One-way, the visible positions attend to one another only and the [MASK]s to everything, which is two plain attentions
over shared keys and values: no attention mask, no work on the pairs that would be masked out.

B batch, V visible, M masked, R corrupted, P = M + R predicted, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from latemask.families import Rotation, merge_heads


def take_slots(states: Tensor, slots: Tensor) -> Tensor:
    """Gather [B, n, D] of [B, S, D] at `slots` [B, n]."""
    return states.gather(1, slots.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def checkpointed(is_on: bool, layer: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run a layer; with gradient checkpointing, keep nothing of it but what went in."""
    return checkpoint(layer, *arguments, use_reentrant=False) if is_on else layer(*arguments)


class JoinedLayers:
    """The encoder's last layers over a stream of V visible positions and M [MASK]s behind them."""

    def __init__(self, model: Any, layers: int, two_way: bool):
        self.encoder, self.family = model.encoder, model.family
        self.layers = list(self.family.layers(self.encoder))[-layers:]
        self.two_way = two_way
        self.saves_memory = model.is_gradient_checkpointing and model.training

    def predicted(
        self,
        visible: Tensor,
        mask_vector: Tensor,
        visible_positions: Tensor,
        masked_positions: Tensor,
        corrupted_slots: Tensor | None,
    ) -> Tensor:
        """Let [MASK]s join the visible states [B, V, D]; return states where something is predicted [B, P, D]."""
        stream, rotation = self.stream(visible, mask_vector, visible_positions, masked_positions)
        predicted = self.run_to_predictions(stream, rotation, visible.shape[1], corrupted_slots)
        return self.family.final_norm(self.encoder, predicted)

    def stream(
        self, visible: Tensor, mask_vector: Tensor, visible_positions: Tensor, masked_positions: Tensor
    ) -> tuple[Tensor, Rotation | None]:
        """Return [visible ; [MASK]s] [B, V + M, D], and its rotation."""
        vectors = mask_vector.expand(*masked_positions.shape, -1)
        masks = self.family.embed(self.encoder, masked_positions, vectors=vectors)
        stream = torch.cat((visible, masks), dim=1)
        positions = torch.cat((visible_positions, masked_positions), dim=1)
        return stream, self.family.rotation(self.encoder, stream, positions)

    def run(self, stream: Tensor, rotation: Rotation | None, visible: int) -> Tensor:
        """Run every layer on all positions: [B, V + M, D]. The oracle of the tests."""
        for layer in self.layers:
            stream = self._layer(layer, stream, rotation, visible)
        return stream

    def run_to_predictions(
        self, stream: Tensor, rotation: Rotation | None, visible: int, corrupted_slots: Tensor | None
    ) -> Tensor:
        """Like `run`, but the last layer works only where something is predicted: [B, P, D], masked then corrupted."""
        *others, last = self.layers
        for layer in others:
            stream = checkpointed(self.saves_memory, self._layer, layer, stream, rotation, visible)
        return checkpointed(self.saves_memory, self._last_layer, last, stream, rotation, visible, corrupted_slots)

    def _layer(self, layer: Any, stream: Tensor, rotation: Rotation | None, visible: int) -> Tensor:
        normed = self.family.before_attention(layer, stream)
        queries = self.family.queries(layer, normed, rotation)
        keys, values = self.family.keys_values(layer, normed, rotation)
        attended = self._attend(layer, queries[:, :, :visible], queries[:, :, visible:], keys, values, visible)
        return self.family.after_attention(layer, attended, stream)

    def _last_layer(
        self,
        layer: Any,
        stream: Tensor,
        rotation: Rotation | None,
        visible: int,
        corrupted_slots: Tensor | None,
    ) -> Tensor:
        normed = self.family.before_attention(layer, stream)
        keys, values = self.family.keys_values(layer, normed, rotation)
        slots = _predicted_slots(stream, visible, corrupted_slots)
        turned = None if rotation is None else (take_slots(rotation[0], slots), take_slots(rotation[1], slots))
        queries = self.family.queries(layer, take_slots(normed, slots), turned)
        corrupted = slots.shape[1] - (stream.shape[1] - visible)
        attended = self._attend(layer, queries[:, :, :corrupted], queries[:, :, corrupted:], keys, values, visible)
        predicted = self.family.after_attention(layer, attended, take_slots(stream, slots))
        return torch.cat((predicted[:, corrupted:], predicted[:, :corrupted]), dim=1) if corrupted else predicted

    def _attend(
        self, layer: Any, from_visible: Tensor, from_masked: Tensor, keys: Tensor, values: Tensor, visible: int
    ) -> Tensor:
        """Attend from visible queries (may be none) and from [MASK]s; [B, queries, D] in that order."""
        dropout = self.family.attention_dropout(layer) if layer.training else 0.0
        if self.two_way:
            queries = torch.cat((from_visible, from_masked), dim=2)
            return merge_heads(F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout))
        parts = [F.scaled_dot_product_attention(from_masked, keys, values, dropout_p=dropout)]
        if from_visible.shape[2]:
            keys, values = keys[:, :, :visible], values[:, :, :visible]
            parts.insert(0, F.scaled_dot_product_attention(from_visible, keys, values, dropout_p=dropout))
        return torch.cat([merge_heads(part) for part in parts], dim=1)


def _predicted_slots(stream: Tensor, visible: int, corrupted_slots: Tensor | None) -> Tensor:
    """Slots of the stream that are predicted: the corrupted ones among the visible, then all [MASK]s."""
    masked = torch.arange(visible, stream.shape[1], device=stream.device).expand(stream.shape[0], -1)
    return masked if corrupted_slots is None else torch.cat((corrupted_slots, masked), dim=1)
