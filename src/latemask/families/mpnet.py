"""MPNet: BERT with a learned number for every kind of distance and every head, added to the scores of all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Layer, LayerFacts, Places, split_heads
from latemask.families.bert import Roberta
from latemask.families.sight import distances
from latemask.recipe import EncoderRecipe, Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

_PAD = 1  # from where positions are counted, whatever the config says of padding
_BUCKETS = 32  # of distances that the stock encoder tells apart, whatever the config says


@FAMILIES.register("mpnet")
class MpNet(Roberta):
    """MPNet: learned positions behind row 1, and a bias by the distance."""

    model_type = "mpnet"
    segments = 0
    facts = LayerFacts(kept_joined=1)

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Add a number for every distance and head."""
        return super().weights(encoder, max_length) + _BUCKETS * encoder.heads

    def layer(self, recipe: Recipe, number: int) -> Layer:
        """Keep a score for every pair and head, and an integer of eight bytes for every pair."""
        facts = replace(self.facts, kept_by_pair=1 + 2 / recipe.encoder.heads)
        return Layer.of(facts, recipe.encoder, number)

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        config = super().config(encoder, vocabulary)
        config.relative_attention_num_buckets = _BUCKETS
        return config

    def offset(self, pad: int) -> int:
        return _PAD + 1

    def check(self, config: Any) -> None:
        """Nothing to refuse: where its positions start is known."""

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        """Share what every distance adds to the scores: [2 × longest - 1, H]."""
        import torch

        longest = self.longest(encoder.config)
        every = torch.arange(1 - longest, longest, device=positions.device)
        relative = encoder.encoder
        return Places(
            positions, {}, relative.relative_attention_bias(relative.relative_position_bucket(every)), ordered
        )

    def runs_whole(self, layer: Any) -> bool:
        """The stock layer has no attention of its own choice: in pieces it keeps less."""
        return False

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states, position_bias=_looked_up(places.shared, places, places))[0]

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        attention = layer.attention.attn
        return split_heads(attention.q(states), attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        attention = layer.attention.attn
        width = attention.attention_head_size
        return split_heads(attention.k(states), width), split_heads(attention.v(states), width)

    def bias(self, layer: Any, queries: Tensor, keys: Tensor, at: Places, to: Places) -> Tensor:
        return _looked_up(at.shared, at, to).to(queries.dtype)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        attention = layer.attention
        states = attention.LayerNorm(attention.dropout(attention.attn.o(attended)) + states)
        return layer.output(layer.intermediate(states), states)

    def attention_dropout(self, layer: Any) -> float:
        return layer.attention.attn.dropout.p


def _looked_up(table: Tensor, at: Places, to: Places) -> Tensor:
    """Return what the distances between places add to the scores [B, H, Q, K]."""
    from torch.nn import functional as F

    return F.embedding(distances(at, to) + len(table) // 2, table).permute(0, 3, 1, 2)
