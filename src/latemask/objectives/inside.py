"""`inside`: the encoder's own last layers run on [visible ; [MASK]s]. No extra weights but the [MASK] vector.

One-way, the visible positions attend to one another only and the [MASK]s to everything, which is two plain attentions
over shared keys and values: no attention mask, no work on the pairs that would be masked out.

B batch, V visible, M masked, R corrupted, P = M + R predicted, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from latemask.families import Places, checkpointed


def take_slots(states: Tensor, slots: Tensor) -> Tensor:
    """Gather [B, n, D] of [B, S, D] at `slots` [B, n]."""
    return states.gather(1, slots.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


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
        stream, places = self.stream(visible, mask_vector, visible_positions, masked_positions)
        predicted = self.run_to_predictions(stream, places, visible.shape[1], corrupted_slots)
        return self.family.final_norm(self.encoder, predicted)

    def stream(
        self, visible: Tensor, mask_vector: Tensor, visible_positions: Tensor, masked_positions: Tensor
    ) -> tuple[Tensor, Places]:
        """Return [visible ; [MASK]s] [B, V + M, D], and its places."""
        vectors = mask_vector.expand(*masked_positions.shape, -1)
        masks = self.family.embed(self.encoder, masked_positions, vectors=vectors)
        stream = torch.cat((visible, masks), dim=1)
        positions = torch.cat((visible_positions, masked_positions), dim=1)
        return stream, self.places(stream, positions)

    def places(self, stream: Tensor, positions: Tensor) -> Places:
        """Return the places of the stream."""
        return self.family.places(self.encoder, stream, positions, ordered=False)

    def run(self, stream: Tensor, places: Places, visible: int) -> Tensor:
        """Run every layer on all positions: [B, V + M, D]. The oracle of the tests."""
        for layer in self.layers:
            stream = self._layer(layer, stream, places, visible)
        return stream

    def run_to_predictions(
        self, stream: Tensor, places: Places, visible: int, corrupted_slots: Tensor | None
    ) -> Tensor:
        """Like `run`, but the last layer works only where something is predicted: [B, P, D], masked then corrupted."""
        *others, last = self.layers
        for layer in others:
            stream = checkpointed(self.saves_memory, self._layer, layer, stream, places, visible)
        return checkpointed(self.saves_memory, self._last_layer, last, stream, places, visible, corrupted_slots)

    def _layer(self, layer: Any, stream: Tensor, places: Places, visible: int) -> Tensor:
        normed = self.family.before_attention(layer, stream)
        queries = self.family.queries(layer, normed, places)
        keys, values = self.family.keys_values(layer, normed, places)
        attended = self._attend(layer, queries, keys, values, places, places, visible, visible)
        return self.family.after_attention(layer, attended, stream)

    def _last_layer(
        self, layer: Any, stream: Tensor, places: Places, visible: int, corrupted_slots: Tensor | None
    ) -> Tensor:
        normed = self.family.before_attention(layer, stream)
        keys, values = self.family.keys_values(layer, normed, places)
        slots = _predicted_slots(stream, visible, corrupted_slots)
        at = places.at(slots)
        queries = self.family.queries(layer, take_slots(normed, slots), at)
        corrupted = slots.shape[1] - (stream.shape[1] - visible)
        attended = self._attend(layer, queries, keys, values, at, places, corrupted, visible)
        predicted = self.family.after_attention(layer, attended, take_slots(stream, slots))
        return torch.cat((predicted[:, corrupted:], predicted[:, :corrupted]), dim=1) if corrupted else predicted

    def _attend(
        self,
        layer: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        at: Places,
        to: Places,
        from_visible: int,
        visible: int,
    ) -> Tensor:
        """Attend from queries, of which the first `from_visible` are no [MASK]s (may be none): [B, Q, D]."""
        attend = self.family.attend
        if self.two_way or not from_visible:
            return attend(layer, queries, keys, values, at, to)
        theirs, ours = slice(from_visible), slice(from_visible, None)
        seen = slice(visible)
        # The visible stand in their order, before the [MASK]s.
        among = replace(to.at(seen), ordered=True, distinct=True)
        own = among if from_visible == visible else at.at(theirs)
        of_masks = attend(layer, queries[:, :, ours], keys, values, at.at(ours), to)
        of_visible = attend(layer, queries[:, :, theirs], keys[:, :, seen], values[:, :, seen], own, among)
        return torch.cat((of_visible, of_masks), dim=1)


def _predicted_slots(stream: Tensor, visible: int, corrupted_slots: Tensor | None) -> Tensor:
    """Slots of the stream that are predicted: the corrupted ones among the visible, then all [MASK]s."""
    masked = torch.arange(visible, stream.shape[1], device=stream.device).expand(stream.shape[0], -1)
    return masked if corrupted_slots is None else torch.cat((corrupted_slots, masked), dim=1)
