"""Which positions, keyed by (seed, sample index); samples and batches. Knows no model."""

from latemask.masking.batches import COLLATORS, EarlyMaskCollator, LateMaskCollator, MaskSchedule
from latemask.masking.masks import Masks, draw_masks
from latemask.masking.samples import SampleDataset

__all__ = ["COLLATORS", "EarlyMaskCollator", "LateMaskCollator", "MaskSchedule", "Masks", "SampleDataset", "draw_masks"]
