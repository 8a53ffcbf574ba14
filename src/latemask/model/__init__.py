"""The pre-training model: encoder + head + objective. Draws nothing at random, reads no corpus."""

from latemask.model.load import load_model
from latemask.model.pretraining import (
    EarlyMaskForPreTraining,
    EncoderForPreTraining,
    LateMaskForPreTraining,
    PreTrainingConfig,
    build_model,
    model_like,
)
from latemask.model.stock import checkpoint_shape, complete_recipe, masked_language_model, tokenizer_of

__all__ = [
    "EarlyMaskForPreTraining",
    "EncoderForPreTraining",
    "LateMaskForPreTraining",
    "PreTrainingConfig",
    "build_model",
    "checkpoint_shape",
    "complete_recipe",
    "load_model",
    "masked_language_model",
    "model_like",
    "tokenizer_of",
]
