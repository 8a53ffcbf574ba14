"""BERT and its kin: learned positions, plain feed-forward. RoBERTa counts positions behind its padding id, and
RobertaPreLayerNorm has the norms before attention and feed-forward."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, LayerFacts, Rotation, split_heads
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@FAMILIES.register("bert")
class Bert(Family):
    """BERT: post-norm."""

    model_type = "bert"
    segments = 2
    first_position = 0
    """Rows of the position table before position 0, with the usual padding id."""

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Tables of positions and segments, and the norm after them."""
        tables = max_length + self.first_position + self.segments
        return super().weights(encoder, max_length) + tables * encoder.width + 2 * encoder.width

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        assert encoder.max_length is not None
        return AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            max_position_embeddings=encoder.max_length + self.offset(vocabulary.pad),
            hidden_dropout_prob=encoder.dropout,
            attention_probs_dropout_prob=encoder.dropout,
            type_vocab_size=self.segments,
        )

    def offset(self, pad: int) -> int:
        """Return the row of the position table that position 0 has."""
        return 0

    def longest(self, config: Any) -> int:
        """Leave out the rows of the table that no position uses."""
        return config.max_position_embeddings - self.offset(config.pad_token_id)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        positions = positions + self.offset(encoder.config.pad_token_id)
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors, position_ids=positions)

    def layers(self, encoder: Any) -> Any:
        return encoder.encoder.layer

    def run(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        return layer(states)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        attention = layer.attention.self
        return split_heads(attention.query(states), attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        attention = layer.attention.self
        width = attention.attention_head_size
        return split_heads(attention.key(states), width), split_heads(attention.value(states), width)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        return layer.feed_forward_chunk(layer.attention.output(attended, states))

    def attention_dropout(self, layer: Any) -> float:
        return layer.attention.self.dropout.p


@FAMILIES.register("roberta")
class Roberta(Bert):
    """RoBERTa: BERT whose positions are counted from pad_token_id + 1."""

    model_type = "roberta"
    segments = 1
    first_position = 2

    def offset(self, pad: int) -> int:
        """Count from behind the padding id."""
        return pad + 1

    def check(self, config: Any) -> None:
        """Refuse a config that does not say where its positions start."""
        if config.pad_token_id is None:
            raise UserError("this RoBERTa's config.json has no pad_token_id, and its positions are counted from there")


@FAMILIES.register("roberta-prelayernorm")
class RobertaPreLayerNorm(Roberta):
    """RoBERTa with the norms before attention and feed-forward, and one at the end."""

    model_type = "roberta-prelayernorm"
    facts = replace(LayerFacts(), kept_by_keys=4)

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """One norm more."""
        return super().weights(encoder, max_length) + 2 * encoder.width

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        return layer.attention.LayerNorm(states)

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        return encoder.LayerNorm(states)
