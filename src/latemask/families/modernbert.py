"""ModernBERT: pre-norm, rotary positions, gated feed-forward; full attention in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, LayerFacts, Rotation, split_heads
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@FAMILIES.register("modernbert")
class ModernBert(Family):
    """ModernBERT, as far as every layer sees the whole row."""

    model_type = "modernbert"
    facts = LayerFacts(ffn_matrices=3, kept_states=10, kept_wide=4, kept_joined=0, kept_by_keys=5)
    fused: dict[str, int] = {"Wqkv": 3, "Wi": 2}  # noqa: RUF012
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)

    def problem(self, encoder: EncoderRecipe) -> str | None:
        """Rotary positions turn pairs of numbers."""
        if (encoder.width // encoder.heads) % 2:
            return f"encoder.width / encoder.heads is {encoder.width // encoder.heads}; rotary positions need it even"
        return None

    def ffn_width(self, width: int) -> int:
        """A gated feed-forward has three matrices instead of two, so 8/3 x width costs what 4 x width does."""
        return max(round(8 / 3 * width / 32), 1) * 32

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count a family without biases, whose first layer has no norm before its attention."""
        d, f = encoder.width, encoder.ffn_width or 0
        return encoder.layers * (4 * d * d + 3 * d * f + 2 * d) + d

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        config = AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            cls_token_id=vocabulary.bos,
            sep_token_id=vocabulary.eos,
            max_position_embeddings=encoder.max_length,
            layer_types=["full_attention"] * encoder.layers,
            global_attn_every_n_layers=1,  # the same in the words of transformers 4
            global_rope_theta=encoder.rotary_base,
            attention_dropout=encoder.dropout,
            embedding_dropout=encoder.dropout,
            mlp_dropout=encoder.dropout,
            classifier_pooling="mean",  # masks teach every position something, and the first one least
        )
        config.global_rope_theta = encoder.rotary_base  # transformers 5 reads and forgets it; 4 needs it in the file
        return config

    def start_near(self, layer: Any) -> None:
        """Keys equal to queries: turned by their positions, equal vectors attract most at a distance of 0."""
        queries, keys, _ = layer.attn.Wqkv.weight.chunk(3)
        keys.copy_(queries)

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        *_, values = layer.attn.Wqkv.weight.chunk(3)
        values.copy_(turn)
        layer.attn.Wo.weight.copy_(turn.T)

    def check(self, config: Any) -> None:
        """Refuse sliding windows: they would measure the shortened sequence instead of the original positions."""
        if any(kind != "full_attention" for kind in config.layer_types):
            raise UserError(
                "this ModernBERT has sliding-window layers, which would count the visible tokens instead of the "
                "original positions; latemask needs full attention in every layer (global_attn_every_n_layers=1)"
            )

    def shape(self, config: Any) -> dict[str, Any]:
        """Add the base of the full-attention layers' rotary positions."""
        rotary = getattr(config, "rope_parameters", None) or {}
        base = rotary.get("full_attention", {}).get("rope_theta", EncoderRecipe.rotary_base)
        return {**super().shape(config), "dropout": config.mlp_dropout, "rotary_base": float(base)}

    def shorten(self, encoder: Any, layers: int) -> None:
        """Forget the other layers' kinds of attention, too."""
        super().shorten(encoder, layers)
        encoder.config.layer_types = encoder.config.layer_types[:layers]

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors)

    def layers(self, encoder: Any) -> Any:
        return encoder.layers

    def rotation(self, encoder: Any, states: Tensor, positions: Tensor) -> Rotation | None:
        """Return cosines and sines of the positions [B, S, D/H]."""
        return encoder.rotary_emb(states, positions, "full_attention")

    def run(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        return layer(states, position_embeddings=rotation)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        return layer.attn_norm(states)

    def queries(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Project with the first third of the stock layer's fused matrix, and rotate."""
        queries = _linear_rows(layer.attn.Wqkv, states, slice(None, states.shape[-1]))
        return _rotated(split_heads(queries, layer.attn.head_dim), rotation)

    def keys_values(self, layer: Any, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Project with the other two thirds, and rotate the keys."""
        keys, values = _linear_rows(layer.attn.Wqkv, states, slice(states.shape[-1], None)).chunk(2, dim=-1)
        return _rotated(split_heads(keys, layer.attn.head_dim), rotation), split_heads(values, layer.attn.head_dim)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        states = states + layer.attn.out_drop(layer.attn.Wo(attended))
        return states + layer.mlp(layer.mlp_norm(states))

    def attention_dropout(self, layer: Any) -> float:
        return layer.attn.attention_dropout

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        return encoder.final_norm(states)


def _linear_rows(linear: Any, states: Tensor, rows: slice) -> Tensor:
    from torch.nn import functional as F

    bias = None if linear.bias is None else linear.bias[rows]
    return F.linear(states, linear.weight[rows], bias)


def _rotated(heads: Tensor, rotation: Rotation | None) -> Tensor:
    import torch

    assert rotation is not None
    cos, sin = (part.unsqueeze(1) for part in rotation)
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return ((heads.float() * cos) + (turned.float() * sin)).to(heads.dtype)
