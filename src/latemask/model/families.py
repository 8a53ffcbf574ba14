"""How to open a stock encoder: one entry a family, so that a new family is one class.

Needed because the [MASK]s join inside: the last layers run on a stream the stock model's `forward` does not know,
and the very last one computes queries and feed-forward only where something is predicted. Every piece used here is
the stock layer's own module; the tests hold the sum of the pieces against the stock forward pass.

B batch, S positions, Q queries, D width, H heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latemask.ground.errors import UserError

Rotation = tuple[Tensor, Tensor]


class Family(ABC):
    """What our models ask of an encoder."""

    def positions(self, encoder: Any, positions: Tensor) -> Tensor:
        """Return positions counted as the encoder counts them."""
        return positions

    def longest(self, config: Any) -> int:
        """Return the longest input of an encoder with this config."""
        return config.max_position_embeddings

    def check(self, config: Any) -> None:
        """Refuse a variant on which leaving positions out would not be exact; most families have none."""
        return

    @abstractmethod
    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """Return the input of the first layer [B, S, D] for word ids or for vectors in their place."""

    @abstractmethod
    def layers(self, encoder: Any) -> nn.ModuleList:
        """Return the encoder's layers."""

    def rotation(self, encoder: Any, states: Tensor, positions: Tensor) -> Rotation | None:
        """Return what the layers need to know of positions, if anything."""
        return None

    @abstractmethod
    def run(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Run a stock layer as it is."""

    @abstractmethod
    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Return what a layer's projections take: normalised states in pre-norm families."""

    @abstractmethod
    def queries(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Project to queries [B, H, Q, D/H]."""

    @abstractmethod
    def keys_values(self, layer: Any, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Project to keys and values, each [B, H, S, D/H]."""

    @abstractmethod
    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        """Run the rest of a layer: output projection, residual, feed-forward."""

    @abstractmethod
    def attention_dropout(self, layer: Any) -> float:
        """Return the dropout of a layer's attention weights."""

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        """Normalise after the last layer, where the family does."""
        return states


def split_heads(states: Tensor, head_width: int) -> Tensor:
    """[B, S, D] → [B, H, S, D/H]."""
    return states.unflatten(-1, (-1, head_width)).transpose(1, 2)


def merge_heads(states: Tensor) -> Tensor:
    """[B, H, S, D/H] → [B, S, D]."""
    return states.transpose(1, 2).flatten(2)


class BertFamily(Family):
    """BERT: post-norm, learned positions."""

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """Add word, position and segment vectors."""
        positions = self.positions(encoder, positions)
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors, position_ids=positions)

    def layers(self, encoder: Any) -> nn.ModuleList:
        """Return the encoder's layers."""
        return encoder.encoder.layer

    def run(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Run a stock layer as it is."""
        return layer(states)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Project to queries."""
        attention = layer.attention.self
        return split_heads(attention.query(states), attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Project to keys and values."""
        attention = layer.attention.self
        width = attention.attention_head_size
        return split_heads(attention.key(states), width), split_heads(attention.value(states), width)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        """Run the rest of a layer."""
        return layer.feed_forward_chunk(layer.attention.output(attended, states))

    def attention_dropout(self, layer: Any) -> float:
        """Return the dropout of a layer's attention weights."""
        return layer.attention.self.dropout.p


class RobertaFamily(BertFamily):
    """RoBERTa: BERT whose positions start behind the padding id."""

    def positions(self, encoder: Any, positions: Tensor) -> Tensor:
        """Count from pad_token_id + 1."""
        return positions + encoder.config.pad_token_id + 1

    def check(self, config: Any) -> None:
        """Refuse a config that does not say where its positions start."""
        if config.pad_token_id is None:
            raise UserError("this RoBERTa's config.json has no pad_token_id, and its positions are counted from there")

    def longest(self, config: Any) -> int:
        """Leave out the rows of the table that no position uses."""
        return config.max_position_embeddings - config.pad_token_id - 1


class RobertaPreLayerNormFamily(RobertaFamily):
    """RoBERTa with the norms before attention and feed-forward, and one at the end."""

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Normalise."""
        return layer.attention.LayerNorm(states)

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        """Normalise after the last layer."""
        return encoder.LayerNorm(states)


class ModernBertFamily(Family):
    """ModernBERT: pre-norm, rotary positions, gated feed-forward; full attention in every layer."""

    def check(self, config: Any) -> None:
        """Refuse sliding windows: they would measure the shortened sequence instead of the original positions."""
        if any(kind != "full_attention" for kind in config.layer_types):
            raise UserError(
                "this ModernBERT has sliding-window layers, which would count the visible tokens instead of the "
                "original positions; latemask needs full attention in every layer (global_attn_every_n_layers=1)"
            )

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """Look words up; positions come in by rotation."""
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors)

    def layers(self, encoder: Any) -> nn.ModuleList:
        """Return the encoder's layers."""
        return encoder.layers

    def rotation(self, encoder: Any, states: Tensor, positions: Tensor) -> Rotation | None:
        """Return cosines and sines of the positions [B, S, D/H]."""
        return encoder.rotary_emb(states, positions, "full_attention")

    def run(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Run a stock layer as it is."""
        return layer(states, position_embeddings=rotation)

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Normalise."""
        return layer.attn_norm(states)

    def queries(self, layer: Any, states: Tensor, rotation: Rotation | None) -> Tensor:
        """Project with the first third of the stock layer's fused matrix, and rotate."""
        width = states.shape[-1]
        queries = _linear_rows(layer.attn.Wqkv, states, slice(None, width))
        return _rotated(split_heads(queries, layer.attn.head_dim), rotation)

    def keys_values(self, layer: Any, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Project with the other two thirds, and rotate the keys."""
        width = states.shape[-1]
        keys, values = _linear_rows(layer.attn.Wqkv, states, slice(width, None)).chunk(2, dim=-1)
        return _rotated(split_heads(keys, layer.attn.head_dim), rotation), split_heads(values, layer.attn.head_dim)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        """Run the rest of a layer."""
        states = states + layer.attn.out_drop(layer.attn.Wo(attended))
        return states + layer.mlp(layer.mlp_norm(states))

    def attention_dropout(self, layer: Any) -> float:
        """Return the dropout of a layer's attention weights."""
        return layer.attn.attention_dropout

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        """Normalise after the last layer."""
        return encoder.final_norm(states)


def _linear_rows(linear: nn.Linear, states: Tensor, rows: slice) -> Tensor:
    bias = None if linear.bias is None else linear.bias[rows]
    return F.linear(states, linear.weight[rows], bias)


def _rotated(heads: Tensor, rotation: Rotation | None) -> Tensor:
    assert rotation is not None
    cos, sin = (part.unsqueeze(1) for part in rotation)
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return ((heads.float() * cos) + (turned.float() * sin)).to(heads.dtype)


FAMILIES: dict[str, Family] = {
    "bert": BertFamily(),
    "modernbert": ModernBertFamily(),
    "roberta": RobertaFamily(),
    "roberta-prelayernorm": RobertaPreLayerNormFamily(),
}


def family_of(config: Any) -> Family:
    """Return the family of an encoder's config, or say which there are."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UserError(f"latemask cannot open a '{config.model_type}' encoder; it can: {', '.join(sorted(FAMILIES))}")
    family.check(config)
    return family
