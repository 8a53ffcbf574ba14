"""BERT and its kin: learned positions, plain feed-forward. RoBERTa counts positions behind its padding id,
RobertaPreLayerNorm has the norms before attention and feed-forward, and ELECTRA's word table may be narrower."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, HeadShape, LayerFacts, Places, StockHead, split_heads
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@FAMILIES.register("bert")
class Bert(Family):
    """BERT: post-norm."""

    model_type = "bert"
    stock_head = StockHead(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"
    )
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

    def head_shape(self, config: Any) -> HeadShape:
        """BERT's head has the activation of its layers."""
        return replace(super().head_shape(config), activation=config.hidden_act)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        positions = positions + self.offset(encoder.config.pad_token_id)
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors, position_ids=positions)

    def layers(self, encoder: Any) -> Any:
        return encoder.encoder.layer

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        attention = layer.attention.self
        return split_heads(attention.query(states), attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
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
    stock_head = StockHead()
    segments = 1
    first_position = 2

    def offset(self, pad: int) -> int:
        """Count from behind the padding id."""
        return pad + 1

    def check(self, config: Any) -> None:
        """Refuse a config that does not say where its positions start."""
        if config.pad_token_id is None:
            raise UserError("this RoBERTa's config.json has no pad_token_id, and its positions are counted from there")

    def head_shape(self, config: Any) -> HeadShape:
        """RoBERTa's has its own."""
        return replace(super().head_shape(config), activation="gelu")


@FAMILIES.register("xlm-roberta")
class XlmRoberta(Roberta):
    """RoBERTa for many languages."""

    model_type = "xlm-roberta"


@FAMILIES.register("camembert")
class Camembert(Roberta):
    """RoBERTa for French."""

    model_type = "camembert"


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


@FAMILIES.register("electra")
class Electra(Bert):
    """ELECTRA's generator or discriminator: BERT whose words and positions may be narrower than its layers."""

    model_type = "electra"
    options = frozenset({"embedding_width"})
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)
    stock_head = StockHead("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Tables as wide as the words, their norm, and what makes them as wide as the layers."""
        d, e = encoder.width, encoder.embedding_width or encoder.width
        projection = e * d + d if e != d else 0
        return Family.weights(self, encoder, max_length) + (max_length + self.segments + 2) * e + projection

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        config = super().config(encoder, vocabulary)
        config.embedding_size = encoder.embedding_width or encoder.width
        return config

    def shape(self, config: Any) -> dict[str, Any]:
        """Add the width of the word table."""
        return {**super().shape(config), "embedding_width": config.embedding_size}

    def head_shape(self, config: Any) -> HeadShape:
        """The generator's activation is always the same."""
        return replace(super().head_shape(config), activation="gelu")

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return self.widened(encoder, super().embed(encoder, positions, ids, vectors))

    def widened(self, encoder: Any, vector: Tensor) -> Tensor:
        """Project where the word table is narrower."""
        wide: Tensor = encoder.embeddings_project(vector) if hasattr(encoder, "embeddings_project") else vector
        return wide
