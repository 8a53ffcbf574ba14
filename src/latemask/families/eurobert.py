"""EuroBERT: Llama's layers without a causal mask. Pre-norm with RMSNorm, rotary positions, gated feed-forward, and keys
and values that several heads may share. Its head is a word table alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, HeadShape, LayerFacts, Places, StockHead, split_heads
from latemask.families.rotary import ONE_KIND, Rotary, rotary_settings, rotated, start_near, start_passing
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@FAMILIES.register("eurobert")
class EuroBert(Rotary):
    """EuroBERT."""

    model_type = "eurobert"
    options = frozenset({"key_value_heads"})
    stock_head = StockHead(words="lm_head")
    plain_head = True
    facts = LayerFacts(ffn_matrices=3, kept_states=10, kept_wide=4, kept_joined=0, kept_by_keys=5)
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)

    def problem(self, encoder: EncoderRecipe) -> str | None:
        """Every head of keys and values serves as many heads of queries."""
        shared = encoder.key_value_heads
        if shared is not None and (shared < 1 or encoder.heads % shared):
            return f"encoder.key_value_heads {shared} does not divide encoder.heads {encoder.heads}"
        return super().problem(encoder)

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count a family without biases."""
        d, f = encoder.width, encoder.ffn_width or 0
        kv = d // encoder.heads * (encoder.key_value_heads or encoder.heads)
        return encoder.layers * (2 * d * d + 2 * d * kv + 3 * d * f + 2 * d) + d

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            **rotary_settings(encoder),
            mask_token_id=vocabulary.mask,
            num_key_value_heads=encoder.key_value_heads or encoder.heads,
            max_position_embeddings=encoder.max_length,
            attention_dropout=encoder.dropout,
            classifier_pooling="mean",  # masks teach every position something, and the last one least
        )

    def start_near(self, layer: Any) -> None:
        attention = layer.self_attn
        start_near(attention.q_proj.weight, attention.k_proj.weight, attention.head_dim)

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        attention = layer.self_attn
        start_passing(attention.v_proj.weight, attention.o_proj.weight, turn, attention.head_dim)

    def shape(self, config: Any) -> dict[str, Any]:
        """Add how many heads of keys and values there are, where several heads share one."""
        shared = config.num_key_value_heads
        own = {"key_value_heads": shared if shared != config.num_attention_heads else None}
        return {**super().shape(config), "dropout": config.attention_dropout, **own}

    def head_shape(self, config: Any) -> HeadShape:
        return HeadShape(plain=True, bias=config.mlp_bias, tied=config.tie_word_embeddings)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        if vectors is not None:
            return vectors
        embedded: Tensor = encoder.embed_tokens(ids)
        return embedded

    def layers(self, encoder: Any) -> Any:
        return encoder.layers

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states, position_embeddings=places.rotations[ONE_KIND])

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        return layer.input_layernorm(states)

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        attention = layer.self_attn
        return rotated(split_heads(attention.q_proj(states), attention.head_dim), places.rotations[ONE_KIND])

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Project and rotate, then give every head of queries its own."""
        attention = layer.self_attn
        keys, values = (split_heads(part(states), attention.head_dim) for part in (attention.k_proj, attention.v_proj))
        turned = rotated(keys, places.rotations[ONE_KIND])
        sharing = attention.num_key_value_groups
        if sharing == 1:
            return turned, values
        return turned.repeat_interleave(sharing, dim=1), values.repeat_interleave(sharing, dim=1)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        states = states + layer.self_attn.o_proj(attended)
        return states + layer.mlp(layer.post_attention_layernorm(states))

    def attention_dropout(self, layer: Any) -> float:
        return layer.self_attn.attention_dropout

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        return encoder.norm(states)
