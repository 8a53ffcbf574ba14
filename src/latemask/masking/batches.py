"""Samples → the tensors a model takes. B batch, V visible, M masked, R corrupted, P = M + R predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latemask.masking.masks import Masks, draw_masks, slots_of
from latemask.recipe import MaskCounts, Recipe
from latemask.text.tokenizer import Vocabulary


class Batch(dict[str, torch.Tensor]):
    """A dictionary of tensors that comes from a worker process as plain bytes.

    torch would open a shared-memory file for each tensor and pass its handle over a socket: 0.7 ms each here, more
    than it takes to draw all the masks of a batch.
    """

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Batch:
        """Take numpy's arrays as tensors, without a copy."""
        return cls((name, torch.from_numpy(array)) for name, array in arrays.items())

    def __reduce__(self) -> Any:
        if any(tensor.device.type != "cpu" for tensor in self.values()):
            return Batch, (dict(self),)
        return Batch.of, ({name: tensor.numpy() for name, tensor in self.items()},)


@dataclass(frozen=True)
class MaskSchedule:
    """How many positions are what, by sample: all samples of a step have the same counts, whoever loads them."""

    recipe: Recipe
    steps: int

    def of_sample(self, index: int) -> MaskCounts:
        """Return the counts of the step that a sample belongs to."""
        step = index // self.recipe.train.batch_size
        return self.recipe.at(min(1.0, (step + 0.5) / self.steps)).counts


class _Collator(ABC):
    """Draws the masks of a list of samples."""

    def __init__(self, counts: MaskCounts | MaskSchedule, vocabulary: Vocabulary, seed: int = 0):
        self.counts = counts
        self.vocabulary = vocabulary
        self.seed = seed

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = np.stack([sample["ids"] for sample in samples])
        indices = np.array([sample["index"] for sample in samples])
        counts = self.counts.of_sample(int(indices[0])) if isinstance(self.counts, MaskSchedule) else self.counts
        arrays = self.batch(ids, draw_masks(ids, indices, counts, self.vocabulary, self.seed))
        return Batch.of(arrays)

    @abstractmethod
    def batch(self, ids: np.ndarray, masks: Masks) -> dict[str, np.ndarray]:
        """Lay out one batch from the true rows [B, L] and their masks."""


class LateMaskCollator(_Collator):
    """Batches for `LateMaskForPreTraining`: hidden positions are not in the encoder's input at all.

    visible_ids, visible_positions [B, V]; masked_positions [B, M]; corrupted_slots [B, R], where predicted positions
    that stayed visible stand among the visible; labels [B, P], first of the masked, then of the corrupted.
    """

    def batch(self, ids: np.ndarray, masks: Masks) -> dict[str, np.ndarray]:
        """Lay out one batch."""
        return {
            "visible_ids": np.take_along_axis(masks.ids, masks.visible, axis=1),
            "visible_positions": masks.visible,
            "masked_positions": masks.masked,
            "corrupted_slots": slots_of(masks.corrupted, masks.visible, ids.shape[1]),
            "labels": np.take_along_axis(ids, np.concatenate([masks.masked, masks.corrupted], axis=1), axis=1),
        }


class EarlyMaskCollator(_Collator):
    """Batches for `EarlyMaskForPreTraining`: the same masks, with [MASK] in place at the input.

    input_ids, positions [B, L - D]; predicted_slots [B, P], where predicted positions stand in it; labels [B, P].
    """

    def batch(self, ids: np.ndarray, masks: Masks) -> dict[str, np.ndarray]:
        """Lay out one batch."""
        present = np.sort(np.concatenate([masks.visible, masks.masked], axis=1), axis=1)
        predicted = np.concatenate([masks.masked, masks.corrupted], axis=1)
        corrupted = masks.ids.copy()
        np.put_along_axis(corrupted, masks.masked, self.vocabulary.mask, axis=1)
        return {
            "input_ids": np.take_along_axis(corrupted, present, axis=1),
            "positions": present,
            "predicted_slots": slots_of(predicted, present, ids.shape[1]),
            "labels": np.take_along_axis(ids, predicted, axis=1),
        }


COLLATORS: dict[str, type[_Collator]] = {"late": LateMaskCollator, "early": EarlyMaskCollator}
