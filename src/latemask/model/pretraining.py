"""The pre-training model: an opened stock encoder, the head, and what the objective adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from latemask.model.head import PredictionHead
from latemask.model.stock import family_of, load_encoder
from latemask.recipe import FAMILIES, OBJECTIVES, EncoderRecipe, Recipe
from latemask.text.tokenizer import Vocabulary


@dataclass
class PreTrainingOutput(ModelOutput):
    """`loss` where labels were given, `logits` [B, P, vocabulary] at predicted positions where they were not."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class PreTrainingConfig(PretrainedConfig):
    """The encoder's own config, the objective, and what the objective must know."""

    model_type = "latemask"
    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init__(
        self,
        encoder: PretrainedConfig | dict | None = None,
        objective: str = "late",
        initializer_range: float = 0.02,
        **settings: Any,
    ):
        self.encoder = _encoder_config(encoder)
        self.objective = objective
        self.initializer_range = initializer_range
        shape = EncoderRecipe(max_length=family_of(self.encoder).longest(self.encoder))
        super().__init__(**{**OBJECTIVES[objective].settings(Recipe(objective, encoder=shape)), **settings})


def _encoder_config(encoder: PretrainedConfig | dict | None) -> PretrainedConfig:
    if isinstance(encoder, PretrainedConfig):
        return encoder
    settings = dict(encoder or {"model_type": "roberta"})
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


class EncoderForPreTraining(PreTrainedModel):
    """An encoder, opened by its family, with a vocabulary head and an objective."""

    config_class = PreTrainingConfig
    base_model_prefix = "encoder"
    main_input_name = "labels"
    accepts_loss_kwargs = False  # a Trainer may leave the division by its accumulation steps to itself
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # which takes flash attention's kernel by itself, where it can
    _supports_flash_attn = False  # transformers' own way to it: the opened layers do not go there

    def __init__(self, config: PreTrainingConfig):
        super().__init__(config)
        self.objective = OBJECTIVES[config.objective]
        self.family = family_of(config.encoder)
        self.encoder = AutoModel.from_config(config.encoder, **self.family.without_pooler)
        self.head = PredictionHead(config.encoder.hidden_size, config.encoder.vocab_size)
        self.objective.add_weights(self, config)
        self.post_init()
        with torch.no_grad():
            self.head.bias.zero_()
            self.objective.start(self)

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        """Start from an existing encoder (continued pre-training); the rest is new."""
        encoder = load_encoder(folder_or_id)
        model = cls(PreTrainingConfig(encoder=encoder.config, **settings))
        model.encoder = encoder
        return model

    @property
    def words(self) -> Tensor:
        """The word table [vocabulary, D]."""
        return self.encoder.get_input_embeddings().weight

    def forward(self, *parts: Tensor, **batch: Tensor) -> PreTrainingOutput:
        """Do what the objective does; see there for what a batch holds."""
        return self.objective.forward(self, *parts, **batch)

    def encode(self, ids: Tensor, positions: Tensor, layers: int | None = None) -> Tensor:
        """Run the encoder, or its first `layers`, on tokens at their original positions: [B, S, D].

        After all layers this is the stock model's last hidden state.
        """
        states = self.family.embed(self.encoder, positions, ids=ids)
        rotation = self.family.rotation(self.encoder, states, positions)
        for layer in list(self.family.layers(self.encoder))[:layers]:
            states = self.family.run(layer, states, rotation)
        return states if layers is not None else self.family.final_norm(self.encoder, states)

    def predict(self, states: Tensor, labels: Tensor | None) -> PreTrainingOutput:
        """Compare states [B, P, D] with the labels [B, P], or show the logits."""
        if labels is None:
            return PreTrainingOutput(logits=self.head.logits(states, self.words))
        return PreTrainingOutput(loss=self.head.loss(states, self.words, labels))


class LateMaskForPreTraining(EncoderForPreTraining):
    """Late masking, by name."""

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        """Start from an existing encoder; `join`, `join_layers`, `two_way` and `positions` are a recipe's."""
        return super().from_encoder(folder_or_id, objective="late", **settings)


class EarlyMaskForPreTraining(EncoderForPreTraining):
    """Masked language modelling, by name."""

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        return super().from_encoder(folder_or_id, objective="early", **settings)


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> EncoderForPreTraining:
    """Build the model of a completed recipe: new, or around an encoder that is there."""
    objective, encoder = OBJECTIVES[recipe.objective], recipe.encoder
    settings = {"objective": recipe.objective, "initializer_range": encoder.init_std, **objective.settings(recipe)}
    if encoder.init is None:
        config = FAMILIES[encoder.family].config(encoder, vocabulary)
        return EncoderForPreTraining(PreTrainingConfig(encoder=config, **settings))
    model = EncoderForPreTraining.from_encoder(encoder.init, **settings)
    with torch.no_grad():
        objective.start_from(model, vocabulary)
    return model
