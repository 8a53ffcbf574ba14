"""Encoder + decoder + head: LateMask and EarlyMask (the baseline). Draws nothing at random, reads no corpus."""

from latemask.model.build import MODELS, build_model, complete_recipe
from latemask.model.config import EarlyMaskConfig, LateMaskConfig
from latemask.model.early import EarlyMaskForPreTraining
from latemask.model.late import LateMaskForPreTraining
from latemask.model.load import load_model

__all__ = [
    "MODELS",
    "EarlyMaskConfig",
    "EarlyMaskForPreTraining",
    "LateMaskConfig",
    "LateMaskForPreTraining",
    "build_model",
    "complete_recipe",
    "load_model",
]
