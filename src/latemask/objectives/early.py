"""The baseline: masked language modelling as RoBERTa does it, [MASK] at the input.

As well built as late masking but for one thing: its last layer works at every position, as everybody's does, and could
work at the predicted ones alone.

B batch, L length, D dropped, P predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.masking.masks import Masks, slots_of
from latemask.objectives import OBJECTIVES, Flops, Objective
from latemask.objectives.costs import head_flops, head_kept, input_flops, layers_of
from latemask.recipe import Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@OBJECTIVES.register("early")
class EarlyMasking(Objective):
    """A stock encoder with [MASK]s in its input; logits only where something is predicted."""

    is_baseline = mask_in_input = True
    card = "masked language modelling"

    def batch(self, ids: np.ndarray, masks: Masks, vocabulary: Vocabulary, options: Any) -> dict[str, np.ndarray]:
        """input_ids, positions [B, L - D]; predicted_slots [B, P], where predicted ones stand in it; labels [B, P]."""
        present = np.sort(np.concatenate([masks.visible, masks.masked], axis=1), axis=1)
        predicted = np.concatenate([masks.masked, masks.corrupted], axis=1)
        corrupted = masks.ids.copy()
        np.put_along_axis(corrupted, masks.masked, vocabulary.mask, axis=1)
        return {
            "input_ids": np.take_along_axis(corrupted, present, axis=1),
            "positions": present,
            "predicted_slots": slots_of(predicted, present, ids.shape[1]),
            "labels": np.take_along_axis(ids, predicted, axis=1),
        }

    def forward(
        self,
        model: Any,
        input_ids: Tensor,
        positions: Tensor,
        predicted_slots: Tensor,
        labels: Tensor | None = None,
    ) -> Any:
        states = model.encode(input_ids, positions)
        index = predicted_slots.unsqueeze(-1).expand(-1, -1, states.shape[-1])
        return model.predict(states.gather(1, index), labels)

    def fill_batch(self, ids: Tensor, is_mask: Tensor) -> dict[str, Tensor]:
        positions = ids.new_ones(ids.shape).cumsum(1) - 1
        return {"input_ids": ids, "positions": positions, "predicted_slots": positions[is_mask].view(len(ids), -1)}

    def flops(self, recipe: Recipe, pruned: bool = True) -> Flops:
        """Every layer sees every position but the dropped ones."""
        present = recipe.counts.length - recipe.counts.dropped
        layers = sum(layer.flops(present, present) for layer in layers_of(recipe))
        return Flops(input_flops(recipe, present) + layers, 0, head_flops(recipe))

    def kept_numbers(self, recipe: Recipe, scores: bool) -> float:
        """Words and positions, every layer, and what is taken out of the last."""
        d, present = recipe.encoder.width, recipe.counts.length - recipe.counts.dropped
        layers = sum(layer.kept(present, scores) for layer in layers_of(recipe))
        return 2 * present * d + layers + head_kept(recipe) + recipe.counts.predicted * d

    def where(self, recipe: Recipe) -> str:
        return "[MASK] at the input"
