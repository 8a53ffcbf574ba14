"""What is written beside the weights of a pre-training model."""

from __future__ import annotations

from typing import ClassVar

from transformers import AutoConfig, PretrainedConfig

JOINS = ("inside", "self", "cross", "cross-only")


class LateMaskConfig(PretrainedConfig):
    """An encoder's own config, and how the [MASK]s join."""

    model_type = "latemask"
    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init__(
        self,
        encoder: PretrainedConfig | dict | None = None,
        join: str = "inside",
        join_layers: int = 2,
        two_way: bool = False,
        positions: str = "relative",
        length: int = 512,
        initializer_range: float = 0.02,
        **kwargs: object,
    ):
        if join not in JOINS:
            raise ValueError(f"join must be one of {', '.join(JOINS)}, not {join!r}")
        self.encoder = _encoder_config(encoder)
        self.join = join
        self.join_layers = join_layers
        self.two_way = two_way
        self.positions = positions
        self.length = length
        self.initializer_range = initializer_range
        super().__init__(**kwargs)


class EarlyMaskConfig(PretrainedConfig):
    """An encoder's own config; the baseline needs no more."""

    model_type = "earlymask"
    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init__(
        self,
        encoder: PretrainedConfig | dict | None = None,
        initializer_range: float = 0.02,
        **kwargs: object,
    ):
        self.encoder = _encoder_config(encoder)
        self.initializer_range = initializer_range
        super().__init__(**kwargs)


def _encoder_config(encoder: PretrainedConfig | dict | None) -> PretrainedConfig:
    if isinstance(encoder, PretrainedConfig):
        return encoder
    settings = dict(encoder or {"model_type": "roberta"})
    return AutoConfig.for_model(settings.pop("model_type"), **settings)
