"""DeBERTa-v2 and -v3: what a token is and how far it stands away attend to one another, by vectors of distances that
all layers share. Near distances are told apart one by one, far ones by their logarithm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, HeadShape, Layer, LayerFacts, Places, StockHead, split_heads
from latemask.families.sight import distances
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe, Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

_BUCKETS = 256
_BOTH = {"c2p", "p2c"}  # words attend to distances, and distances to words


@FAMILIES.register("deberta-v2")
class DebertaV2(Family):
    """DeBERTa-v2: post-norm, distances beside words in every attention."""

    model_type = "deberta-v2"
    options = frozenset({"embedding_width", "buckets"})
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)
    facts = LayerFacts(kept_joined=1)
    stock_head = StockHead(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"
    )
    v3_head = StockHead(
        "lm_predictions.lm_head.dense",
        "lm_predictions.lm_head.LayerNorm",
        "deberta.embeddings.word_embeddings",
        bias="lm_predictions.lm_head.bias",
    )

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Vectors of distances and their norm, the norm of the words, and what makes these as wide as the layers."""
        d, e = encoder.width, encoder.embedding_width or encoder.width
        projection = e * d if e != d else 0
        return super().weights(encoder, max_length) + _vectors(encoder) * d + 4 * d + projection

    def layer(self, recipe: Recipe, number: int) -> Layer:
        """Keep a score for every pair and head, and an integer of eight bytes for every pair."""
        train, encoder = recipe.train, recipe.encoder
        facts = replace(self.facts, kept_by_pair=1 + 2 / encoder.heads)
        return Layer.of(facts, encoder, number, _vectors(encoder), train.micro_batch_size or train.batch_size)

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            embedding_size=encoder.embedding_width or encoder.width,
            max_position_embeddings=encoder.max_length,
            hidden_dropout_prob=encoder.dropout,
            attention_probs_dropout_prob=encoder.dropout,
            type_vocab_size=0,
            position_biased_input=False,
            relative_attention=True,
            position_buckets=encoder.buckets or _BUCKETS,
            pos_att_type=["p2c", "c2p"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
        )

    def check(self, config: Any) -> None:
        """Refuse what reads neighbours in a shortened row, and what our counts of FLOPs do not know."""
        if getattr(config, "conv_kernel_size", 0) > 0:
            raise UserError(
                "this DeBERTa has a convolution (conv_kernel_size in config.json), which reads the neighbours of a "
                "token; where hidden tokens are left out of a row, these would be others"
            )
        if not config.relative_attention or set(config.pos_att_type or []) != _BOTH:
            raise UserError(
                "this DeBERTa's layers do not weigh distances both ways (relative_attention and pos_att_type in "
                "config.json); latemask opens and counts those that do"
            )

    def shape(self, config: Any) -> dict[str, Any]:
        """Add the width of the word table and the distances that are told apart."""
        width = getattr(config, "embedding_size", config.hidden_size)
        return {**super().shape(config), "embedding_width": width, "buckets": _span(config)}

    def stock_head_of(self, config: Any) -> StockHead:
        return self.stock_head if config.legacy else self.v3_head

    def head_shape(self, config: Any) -> HeadShape:
        """The head of v3 has no word table of its own, whatever the config says."""
        tied = config.tie_word_embeddings or not config.legacy
        return HeadShape(config.layer_norm_eps, config.hidden_act, tied=tied)

    def config_with_head(self, config: Any) -> None:
        config.legacy = config.legacy or not config.tie_word_embeddings

    def config_changes(self, unexpected: Iterable[str]) -> dict[str, Any]:
        """Microsoft's checkpoints of v3 have their head, and a config.json that does not say which."""
        return {"legacy": False} if any(name.startswith("lm_predictions.lm_head.") for name in unexpected) else {}

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors, position_ids=positions)

    def widened(self, encoder: Any, vector: Tensor) -> Tensor:
        """Project where the word table is narrower."""
        projection = encoder.embeddings.embed_proj
        return vector if projection is None else projection(vector)

    def layers(self, encoder: Any) -> Any:
        return encoder.encoder.layer

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        """Share the vectors of distances [2 × span, D], and which of them every distance has [2 × longest - 1]."""
        span = _span(encoder.config)
        rows = (_buckets(encoder, positions) + span).clamp(0, 2 * span - 1)
        return Places(positions, {}, (encoder.encoder.get_rel_embedding()[: 2 * span], rows), ordered)

    def runs_whole(self, layer: Any) -> bool:
        """The stock layer takes distances that are the same in every row."""
        return False

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Run a layer on rows whose positions are all the same."""
        vectors, rows = places.shared
        relative = _rows_of(rows, places, places)[:1] - len(vectors) // 2
        everywhere = states.new_ones(len(states), 1, states.shape[1], states.shape[1])
        return layer(states, everywhere, relative_pos=relative, rel_embeddings=vectors)[0]

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Post-norm: nothing to do."""
        return states

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        attention = layer.attention.self
        return split_heads(attention.query_proj(states), attention.attention_head_size)

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        attention = layer.attention.self
        width = attention.attention_head_size
        return split_heads(attention.key_proj(states), width), split_heads(attention.value_proj(states), width)

    def bias(self, layer: Any, queries: Tensor, keys: Tensor, at: Places, to: Places) -> Tensor:
        """Words to distances, and distances to words: both look at the distance from the key to the query."""
        from latemask.families.lookup import LookUp

        attention = layer.attention.self
        vectors, rows = at.shared
        vectors, width = attention.pos_dropout(vectors)[None], attention.attention_head_size
        of_keys = attention.key_proj if attention.share_att_key else attention.pos_key_proj
        of_queries = attention.query_proj if attention.share_att_key else attention.pos_query_proj
        index = _rows_of(rows, at, to)[:, None].expand(-1, queries.shape[1], -1, -1)
        to_distances = _all_rows_times(queries, split_heads(of_keys(vectors), width))
        from_distances = _all_rows_times(keys, split_heads(of_queries(vectors), width))
        scores = LookUp.apply(to_distances, index) + LookUp.apply(from_distances, index.mT).mT
        return scores * self.scale(layer)

    def scale(self, layer: Any) -> float:
        """Three products are added: words by words, words by distances, distances by words."""
        return (3 * layer.attention.self.attention_head_size) ** -0.5

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        states = layer.attention.output(attended, states)
        return layer.output(layer.intermediate(states), states)

    def attention_dropout(self, layer: Any) -> float:
        return layer.attention.self.dropout.p


def _vectors(encoder: EncoderRecipe) -> int:
    """Return how many distances have a vector: so many to each side."""
    return 2 * (encoder.buckets or _BUCKETS)


def _reach(config: Any) -> int:
    """Return the largest distance that the logarithms are made for."""
    reach = getattr(config, "max_relative_positions", -1)
    return config.max_position_embeddings if reach < 1 else reach


def _span(config: Any) -> int:
    """Return how many distances to each side have a vector."""
    buckets = getattr(config, "position_buckets", -1)
    return buckets if buckets > 0 else _reach(config)


def _buckets(encoder: Any, positions: Tensor) -> Tensor:
    """Return the bucket of every distance from a key to a query, from the smallest on [2 × longest - 1]."""
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    config = encoder.config
    longest, buckets = config.max_position_embeddings, getattr(config, "position_buckets", -1)
    every = torch.arange(1 - longest, longest, device=positions.device)
    if buckets > 0:
        every = make_log_bucket_position(every, buckets, _reach(config)).long()
    return every


def _rows_of(rows: Tensor, at: Places, to: Places) -> Tensor:
    """Return which vector each pair has [B, Q, K]."""
    return rows[len(rows) // 2 - distances(at, to)]


def _all_rows_times(heads: Tensor, vectors: Tensor) -> Tensor:
    """Multiply [B, H, S, D/H] with [1, H, N, D/H] that all rows share, without a copy of these for every row."""
    import torch

    return torch.einsum("bhsd,hnd->bhsn", heads, vectors[0])
