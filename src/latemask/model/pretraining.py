"""The pre-training model: an opened stock encoder, the head, and what the objective adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from latemask.families import HeadShape
from latemask.model.emissions import log_probabilities
from latemask.model.growing import grown
from latemask.model.head import PredictionHead
from latemask.model.load import load_config
from latemask.model.stock import StockModel, checkpoint_of, family_of, open_stock, stretched
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
        head: dict[str, Any] | None = None,
        **settings: Any,
    ):
        self.encoder = _encoder_config(encoder)
        self.objective = objective
        self.initializer_range = initializer_range
        family = family_of(self.encoder)
        if head is None:  # a file that says nothing of it is older than other heads than RoBERTa's
            head = asdict(HeadShape() if "transformers_version" in settings else family.head_shape(self.encoder))
        self.head = head
        shape = EncoderRecipe(max_length=family.longest(self.encoder))
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
    has_trained_head = False
    """Whether head and encoder come from an encoder that had one."""
    gives_row_losses = False
    """Whether the loss is asked for row by row [B]; see `row_losses`."""
    Output = PreTrainingOutput
    """What an objective's forward pass returns."""
    _supports_sdpa = True  # which takes flash attention's kernel by itself, where it can
    _supports_flash_attn = False  # transformers' own way to it: the opened layers do not go there

    def __init__(self, config: PreTrainingConfig):
        super().__init__(config)
        self.objective = OBJECTIVES[config.objective]
        self.family = family_of(config.encoder)
        self.encoder = AutoModel.from_config(config.encoder, **self.family.without_pooler)
        self._leave_untrained()
        vocabulary, words_width = self.words.shape
        self.head = PredictionHead(config.encoder.hidden_size, vocabulary, words_width, HeadShape(**config.head))
        self.objective.add_weights(self, config)
        self.post_init()
        with torch.no_grad():
            if self.head.bias is not None:
                self.head.bias.zero_()
            if self.head.words is not None:
                self.head.words.copy_(self.words)
            self.objective.start(self)

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        """Start from an existing encoder, and from its head where it has one; the rest is new."""
        return cls.from_stock(open_stock(folder_or_id), **settings)

    @classmethod
    def from_stock(cls, stock: StockModel, **settings: Any) -> EncoderForPreTraining:
        """The same, once it is loaded."""
        model = cls(PreTrainingConfig(encoder=stock.encoder.config, **settings))
        model.encoder = stock.encoder
        model.family.settle(model.encoder)
        model._leave_untrained()
        stock.give_head(model.head)
        model.has_trained_head = bool(stock.head)
        return model

    def _leave_untrained(self) -> None:
        """Keep what the encoder's states do not depend on as it is."""
        for name in self.family.untrained:
            self.encoder.get_submodule(name).requires_grad_(False)

    def take_head_of_before(self) -> None:
        """Compute as every head did before they were those of their families; the weights are the same."""
        assert self.head.norm is not None
        self.config.head = asdict(HeadShape())
        self.head.norm.eps = HeadShape.epsilon

    def save_pretrained(self, *args: Any, **settings: Any) -> None:
        """Save by our names; transformers would take those that an encoder had when it was first released."""
        super().save_pretrained(*args, **{"save_original_format": False, **settings})

    @property
    def words(self) -> Tensor:
        """The word table [vocabulary, E]."""
        return self.encoder.get_input_embeddings().weight

    @property
    def output_words(self) -> Tensor:
        """The word table that predictions are compared with [vocabulary, E]: the same, unless the head has its own."""
        return self.words if self.head.words is None else self.head.words

    def forward(self, *parts: Tensor, **batch: Tensor) -> PreTrainingOutput:
        """Do what the objective does; see there for what a batch holds."""
        if self.gives_row_losses:
            return PreTrainingOutput(loss=self.objective.row_losses(self, **batch))
        return self.objective.forward(self, *parts, **batch)

    @torch.no_grad()
    def row_losses(self, **batch: Tensor) -> Tensor:
        """Return the mean loss of each row of a batch [B] in fp32, whatever the objective."""
        self.gives_row_losses = True
        try:
            loss: Tensor = self(**batch).loss  # as a module is called: weights may be sharded
        finally:
            self.gives_row_losses = False
        return loss.float()

    def encode(self, ids: Tensor, positions: Tensor, layers: int | None = None) -> Tensor:
        """Run the encoder, or its first `layers`, on tokens at their original positions: [B, S, D].

        After all layers this is the stock model's last hidden state.
        """
        for states in self._each(ids, positions, layers):
            last = states
        return last if layers is not None else self.family.final_norm(self.encoder, last)

    def encode_each(self, ids: Tensor, positions: Tensor) -> list[Tensor]:
        """Return the input of the first layer and the output of every layer, the last as `encode` returns it."""
        *states, last = self._each(ids, positions)
        return [*states, self.family.final_norm(self.encoder, last)]

    def _each(self, ids: Tensor, positions: Tensor, layers: int | None = None) -> Iterator[Tensor]:
        states = self.family.embed(self.encoder, positions, ids=ids)
        places = self.family.places(self.encoder, states, positions)
        yield states
        for layer in list(self.family.layers(self.encoder))[:layers]:
            states = self.family.run(layer, states, places)
            yield states

    def predict(self, states: Tensor, labels: Tensor | None) -> PreTrainingOutput:
        """Compare states [B, P, D] with the labels [B, P], or show the logits."""
        if labels is None:
            return PreTrainingOutput(logits=self.head.logits(states, self.output_words))
        loss = self.head.row_losses if self.gives_row_losses else self.head.loss
        return PreTrainingOutput(loss=loss(states, self.output_words, labels))

    def log_probabilities(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return how likely each state [B, N, D] of a row finds each token of the row [B, T]: [B, N, T], in fp32."""
        return log_probabilities(self.head, states, self.output_words, tokens)


class LateMaskForPreTraining(EncoderForPreTraining):
    """Late masking, by name."""

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        """Start from an existing encoder; `join`, `join_layers`, `two_way`, `positions`… are a recipe's."""
        return super().from_encoder(folder_or_id, objective="late", **settings)


class EarlyMaskForPreTraining(EncoderForPreTraining):
    """Masked language modelling, by name."""

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        return super().from_encoder(folder_or_id, objective="early", **settings)


def model_like(checkpoint: Path, recipe: Recipe) -> EncoderForPreTraining:
    """Build a model as a checkpoint's config has it, without its weights, with the objective of the recipe."""
    settings = load_config(checkpoint).to_dict()
    if settings["objective"] != recipe.objective:
        settings |= {"objective": recipe.objective, **OBJECTIVES[recipe.objective].settings(recipe)}
    return EncoderForPreTraining(PreTrainingConfig.from_dict(settings))


def build_model(
    recipe: Recipe, vocabulary: Vocabulary, new_pieces: Sequence[Sequence[int]] = ()
) -> EncoderForPreTraining:
    """Build the model of a completed recipe: new, or around an encoder that is there.

    `new_pieces` are the old ids that spelled each of the last pieces, where the encoder was trained without them.
    """
    objective, encoder = OBJECTIVES[recipe.objective], recipe.encoder
    settings = {"objective": recipe.objective, "initializer_range": encoder.init_std, **objective.settings(recipe)}
    if encoder.init is None:
        config = FAMILIES[encoder.family].config(encoder, vocabulary)
        return EncoderForPreTraining(PreTrainingConfig(encoder=config, **settings))
    stock = open_stock(checkpoint_of(encoder.init), lambda config: stretched(config, encoder))
    stock = grown(stock, encoder.vocab_size or 0, new_pieces, vocabulary.size)
    model = EncoderForPreTraining.from_stock(stock, **settings)
    with torch.no_grad():
        if stock.mask is None:
            objective.start_from(model, vocabulary)
        else:
            objective.start_as_a_word(model, stock.mask, vocabulary)
    return model
