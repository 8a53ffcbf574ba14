"""DistilBERT: BERT with half its layers and no segments, in names of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, HeadShape, Places, StockHead, split_heads
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-12  # of every norm; the config does not say it


@FAMILIES.register("distilbert")
class DistilBert(Family):
    """DistilBERT: post-norm, learned positions; also those that begin as sines."""

    model_type = "distilbert"
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)
    stock_head = StockHead("vocab_transform", "vocab_layer_norm", "vocab_projector")

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """A table of positions, and the norm after it."""
        return super().weights(encoder, max_length) + (max_length + 2) * encoder.width

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        own = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
        }
        settings = self.usual_settings(encoder, vocabulary)
        return AutoConfig.for_model(
            self.model_type,
            **{own.get(name, name): value for name, value in settings.items()},
            max_position_embeddings=encoder.max_length,
            dropout=encoder.dropout,
            attention_dropout=encoder.dropout,
        )

    def shape(self, config: Any) -> dict[str, Any]:
        return {
            "family": self.model_type,
            "layers": config.n_layers,
            "width": config.dim,
            "heads": config.n_heads,
            "ffn_width": config.hidden_dim,
            "dropout": config.dropout,
            "max_length": self.longest(config),
            "vocab_size": config.vocab_size,
            "tied": config.tie_word_embeddings,
        }

    def head_shape(self, config: Any) -> HeadShape:
        return HeadShape(_EPSILON, config.activation, tied=config.tie_word_embeddings)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return encoder.embeddings(ids, vectors, positions)

    def layers(self, encoder: Any) -> Any:
        return encoder.transformer.layer

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return split_heads(layer.attention.q_lin(states), layer.attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        attention = layer.attention
        width = attention.attention_head_size
        return split_heads(attention.k_lin(states), width), split_heads(attention.v_lin(states), width)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        states = layer.sa_layer_norm(layer.attention.out_lin(attended) + states)
        return layer.output_layer_norm(layer.ffn(states) + states)

    def attention_dropout(self, layer: Any) -> float:
        return layer.attention.dropout.p
