"""`inside`: the encoder's own last layers run on [visible ; [MASK]s]. No extra weights but the [MASK] vector.

One-way, the visible positions attend to one another only and the [MASK]s to everything, which is two plain attentions
over shared keys and values: no attention mask, no work on the pairs that would be masked out.

B batch, V visible, M masked, R corrupted, P = M + R predicted, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latemask.model.families import Family, Rotation, merge_heads


def take_slots(states: Tensor, slots: Tensor) -> Tensor:
    """Gather [B, n, D] of [B, S, D] at `slots` [B, n]."""
    return states.gather(1, slots.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


class JoinedLayers:
    """The encoder's last layers over a stream of V visible positions and M [MASK]s behind them."""

    def __init__(self, family: Family, encoder: Any, layers: int, two_way: bool):
        self.family = family
        self.layers = list(family.layers(encoder))[-layers:]
        self.two_way = two_way

    def run(self, stream: Tensor, rotation: Rotation | None, visible: int) -> Tensor:
        """Run every layer on all positions: [B, V + M, D]."""
        for layer in self.layers:
            stream = self._layer(layer, stream, rotation, visible)
        return stream

    def run_to_predictions(
        self, stream: Tensor, rotation: Rotation | None, visible: int, corrupted_slots: Tensor | None
    ) -> Tensor:
        """Like `run`, but the last layer works only where something is predicted: [B, P, D], masked then corrupted."""
        *others, last = self.layers
        for layer in others:
            stream = self._layer(layer, stream, rotation, visible)
        return self._last_layer(last, stream, rotation, visible, corrupted_slots)

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
        queries = self.family.queries(layer, take_slots(normed, slots), _rotation_at(rotation, slots))
        corrupted = slots.shape[1] - (stream.shape[1] - visible)
        attended = self._attend(layer, queries[:, :, :corrupted], queries[:, :, corrupted:], keys, values, visible)
        predicted = self.family.after_attention(layer, attended, take_slots(stream, slots))
        return torch.cat((predicted[:, corrupted:], predicted[:, :corrupted]), dim=1) if corrupted else predicted

    def _attend(
        self,
        layer: Any,
        from_visible: Tensor,
        from_masked: Tensor,
        keys: Tensor,
        values: Tensor,
        visible: int,
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


def _rotation_at(rotation: Rotation | None, slots: Tensor) -> Rotation | None:
    return None if rotation is None else (take_slots(rotation[0], slots), take_slots(rotation[1], slots))
