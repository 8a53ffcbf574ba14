"""The pre-training model: encoder + head + objective. Draws nothing at random, reads no corpus."""

from latemask.model.load import load_model
from latemask.model.pretraining import (
    EarlyMaskForPreTraining,
    EncoderForPreTraining,
    LateMaskForPreTraining,
    PreTrainingConfig,
    build_model,
)
from latemask.model.stock import complete_recipe

__all__ = [
    "EarlyMaskForPreTraining",
    "EncoderForPreTraining",
    "LateMaskForPreTraining",
    "PreTrainingConfig",
    "build_model",
    "complete_recipe",
    "load_model",
]
