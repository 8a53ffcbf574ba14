"""NomicBERT and GTE: BERT's order of norms with rotary positions and a gated feed-forward. NomicBERT has no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, HeadShape, LayerFacts, Places, StockHead, split_heads
from latemask.families.rotary import ONE_KIND, Rotary, rotary_settings, rotated, start_near, start_passing
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@FAMILIES.register("nomic_bert")
class NomicBert(Rotary):
    """NomicBERT."""

    model_type = "nomic_bert"
    stock_head = StockHead(
        "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.decoder"
    )
    facts = LayerFacts(ffn_matrices=3, kept_wide=4)
    segments = 2

    def biases(self, encoder: EncoderRecipe) -> int:
        """Count the biases of a layer's linear maps."""
        return 0

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count two norms a layer, the table of segments, and the norm after it."""
        d, f = encoder.width, encoder.ffn_width or 0
        a_layer = 4 * d * d + 3 * d * f + 4 * d + self.biases(encoder)
        return encoder.layers * a_layer + self.segments * d + 2 * d

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            **rotary_settings(encoder),
            max_position_embeddings=encoder.max_length,
            hidden_dropout_prob=encoder.dropout,
            attention_probs_dropout_prob=encoder.dropout,
            type_vocab_size=self.segments,
        )

    def start_near(self, layer: Any) -> None:
        attention = layer.self_attn
        start_near(attention.q_proj.weight, attention.k_proj.weight, attention.head_dim)

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        attention = layer.self_attn
        start_passing(attention.v_proj.weight, attention.o_proj.weight, turn, attention.head_dim)

    def head_shape(self, config: Any) -> HeadShape:
        """Its head has the layers' activation."""
        return HeadShape(config.layer_norm_eps, config.hidden_act, tied=config.tie_word_embeddings)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors)

    def layers(self, encoder: Any) -> Any:
        return encoder.layers

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states, position_embeddings=places.rotations[ONE_KIND])

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        attention = layer.self_attn
        return rotated(split_heads(attention.q_proj(states), attention.head_dim), places.rotations[ONE_KIND])

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        attention = layer.self_attn
        keys, values = (split_heads(part(states), attention.head_dim) for part in (attention.k_proj, attention.v_proj))
        return rotated(keys, places.rotations[ONE_KIND]), values

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        attended = layer.post_attention_dropout(layer.self_attn.o_proj(attended))
        states = layer.post_attention_layernorm(states + attended)
        return layer.post_mlp_layernorm(states + layer.post_mlp_dropout(layer.mlp(states)))

    def attention_dropout(self, layer: Any) -> float:
        return layer.self_attn.attention_dropout


@FAMILIES.register("gte")
class Gte(NomicBert):
    """GTE: with biases, but for the gate; a checkpoint may have no table of segments."""

    model_type = "gte"
    stock_head = StockHead()
    segments = 1

    def biases(self, encoder: EncoderRecipe) -> int:
        """Count those of attention and of what follows the gate."""
        return 5 * encoder.width

    def head_shape(self, config: Any) -> HeadShape:
        """Its head has GELU, whatever the layers have."""
        return HeadShape(config.layer_norm_eps, tied=config.tie_word_embeddings)
