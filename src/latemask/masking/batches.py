"""Samples → the tensors a model takes: an objective lays them out.

B batch, V visible, M masked, R corrupted, P = M + R predicted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.masking.masks import draw_masks
from latemask.recipe import OBJECTIVES, MaskCounts, Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    import torch


class Batch(dict[str, "torch.Tensor"]):
    """A dictionary of tensors that comes from a worker process as plain bytes.

    torch would open a shared-memory file for each tensor and pass its handle over a socket: 0.7 ms each here, more
    than it takes to draw all the masks of a batch.
    """

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Batch:
        """Take numpy's arrays as tensors, without a copy."""
        import torch

        return cls((name, torch.from_numpy(array)) for name, array in arrays.items())

    def __reduce__(self) -> Any:
        if any(tensor.device.type != "cpu" for tensor in self.values()):
            return Batch, (dict(self),)
        return Batch.of, ({name: tensor.numpy() for name, tensor in self.items()},)

    def to(self, device: torch.device) -> Batch:
        """Put all tensors on a device; from pinned memory nobody waits for that."""
        return Batch((name, tensor.to(device, non_blocking=True)) for name, tensor in self.items())

    def pin_memory(self) -> Batch:
        """Let a data loader pin the tensors."""
        return Batch((name, tensor.pin_memory()) for name, tensor in self.items())


@dataclass(frozen=True)
class MaskSchedule:
    """How many positions are what, by sample: all samples of a step have the same counts, whoever loads them."""

    recipe: Recipe
    steps: int
    first: int = 0
    """The sample that step 0 would begin with; not 0 in a branch whose batch is another than its stem's."""

    def of_sample(self, index: int) -> MaskCounts:
        """Return the counts of the step that a sample belongs to."""
        step = (index - self.first) // self.recipe.rows_read
        return self.recipe.at(min(1.0, (step + 0.5) / self.steps)).counts


class Collator:
    """Draws the masks of a list of samples, and lets the objective lay out the batch."""

    objective = "late"

    def __init__(
        self,
        counts: MaskCounts | MaskSchedule,
        vocabulary: Vocabulary,
        seed: int = 0,
        *,
        objective: str | None = None,
        options: Any = None,
        pattern: str = "uniform",
    ):
        self.counts, self.vocabulary, self.seed, self.pattern = counts, vocabulary, seed, pattern
        self.objective = objective or self.objective
        self.options = OBJECTIVES[self.objective].Options() if options is None else options

    @classmethod
    def of(cls, recipe: Recipe, vocabulary: Vocabulary, schedule: MaskSchedule) -> Collator:
        """Return what makes the batches of a run, or of a part of it."""
        return cls._of(recipe, schedule, vocabulary, recipe.seed)

    @classmethod
    def validating(cls, recipe: Recipe, vocabulary: Vocabulary) -> Collator:
        """Return what makes batches to validate on, with the same masks in every run on the same data."""
        validated = recipe.as_validated
        return cls._of(validated, validated.counts, vocabulary, seed=0)

    @classmethod
    def _of(cls, recipe: Recipe, counts: MaskCounts | MaskSchedule, vocabulary: Vocabulary, seed: int) -> Collator:
        how = {"objective": recipe.objective, "options": recipe.options, "pattern": recipe.mask.pattern}
        return cls(counts, vocabulary, seed, **how)

    def __call__(self, samples: Sequence[dict[str, Any]]) -> Batch:
        ids = np.stack([sample["ids"] for sample in samples])
        indices = np.array([sample["index"] for sample in samples])
        counts = self.counts.of_sample(int(indices[0])) if isinstance(self.counts, MaskSchedule) else self.counts
        masks = draw_masks(ids, indices, counts, self.vocabulary, self.seed, self.pattern)
        return Batch.of(OBJECTIVES[self.objective].batch(ids, masks, self.vocabulary, self.options))

    def like(self, recipe: Recipe) -> Collator:
        """Return what lays the same rows and masks out as the objective of another recipe does."""
        other = copy.copy(self)
        other.objective, other.options = recipe.objective, recipe.options
        return other


@dataclass(frozen=True)
class Candidates:
    """Rows to choose from, with one mask each, as two models take them."""

    indices: np.ndarray
    """Of the samples."""
    own: Batch
    theirs: Batch
    """The same for the reference."""

    def pin_memory(self) -> Candidates:
        """Let a data loader pin the tensors."""
        return Candidates(self.indices, self.own.pin_memory(), self.theirs.pin_memory())


class CandidateCollator:
    """Lays the same samples out for the model and for the reference."""

    def __init__(self, own: Collator, reference: Recipe):
        self.own, self.theirs = own, own.like(reference)
        self.are_alike = (own.objective, own.options) == (reference.objective, reference.options)

    def __call__(self, samples: Sequence[dict[str, Any]]) -> Candidates:
        indices = np.array([sample["index"] for sample in samples])
        own = self.own(samples)
        return Candidates(indices, own, own if self.are_alike else self.theirs(samples))


class LateMaskCollator(Collator):
    """Batches for `LateMaskForPreTraining`."""

    objective = "late"


class EarlyMaskCollator(Collator):
    """Batches for `EarlyMaskForPreTraining`."""

    objective = "early"
