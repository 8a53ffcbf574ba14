"""Encoder families: how a stock Hugging Face encoder is made, opened and run, and what it costs. One file a kin.

Opened, because the [MASK]s join inside: the last layers run on a stream that the stock `forward` does not know, and the
very last one computes queries and feed-forward only where something is predicted. Every piece used here is the stock
layer's own module; the tests hold the sum of the pieces against the stock forward pass.

B batch, S slots, Q queries, K keys, D width, E width of the word table, H heads. Nothing here loads torch or
transformers until a model is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from latemask.families.facts import HeadShape, Layer, LayerFacts, StockHead
from latemask.families.sight import Places, attention, merge_heads, split_heads
from latemask.ground.errors import UserError
from latemask.recipe import FAMILIES, EncoderRecipe, Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FAMILIES",
    "Family",
    "HeadShape",
    "Layer",
    "LayerFacts",
    "Places",
    "StockHead",
    "attention",
    "checkpointed",
    "merge_heads",
    "split_heads",
]

_OPTIONAL = ("window", "key_value_heads", "embedding_width", "buckets")
"""Keys of an encoder's recipe that not every family has."""


class Family(ABC):
    """What the rest of the house asks of an encoder."""

    model_type: str
    """What transformers calls it; a recipe's name for it, too."""
    facts = LayerFacts()
    options: frozenset[str] = frozenset()
    """Of the keys of an encoder's recipe that not every family has, those that it has."""
    fused: dict[str, int] = {}  # noqa: RUF012
    """Linear maps that are several in one matrix, one above the other: their names, and how many."""
    without_pooler: dict[str, Any] = {"add_pooling_layer": False}  # noqa: RUF012
    """How transformers is told not to make a pooler, which pre-training would not train."""
    untrained: tuple[str, ...] = ()
    """Parts of the stock encoder that its states do not depend on, by name: they stay as they are."""
    stock_head = StockHead()
    """Where its stock …ForMaskedLM keeps the head."""
    plain_head = False
    """Whether that head is the word table alone."""

    # What a recipe makes of it

    def problem(self, encoder: EncoderRecipe) -> str | None:
        """Say what in a recipe this family cannot be."""
        for key in _OPTIONAL:
            if getattr(encoder, key) is not None and key not in self.options:
                has = ", ".join(sorted(name for name, family in FAMILIES.items() if key in family.options))
                return f"encoder.{key} is for {has}; a {self.model_type} encoder has none"
        return None

    def ffn_width(self, width: int) -> int:
        """Return the feed-forward width where a recipe gives none."""
        return 4 * width

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count the encoder's weights without its word table."""
        d, f = encoder.width, encoder.ffn_width or 0
        a_layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
        return encoder.layers * a_layer

    def layer(self, recipe: Recipe, number: int) -> Layer:
        """Return what a layer of a recipe that is spelled out costs, by its number."""
        return Layer.of(self.facts, recipe.encoder, number)

    @abstractmethod
    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        """Return the stock config of a new encoder."""

    def usual_settings(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return what nearly every stock config calls by the same names."""
        return {
            "vocab_size": encoder.vocab_size,
            "hidden_size": encoder.width,
            "num_hidden_layers": encoder.layers,
            "num_attention_heads": encoder.heads,
            "intermediate_size": encoder.ffn_width,
            "initializer_range": encoder.init_std,
            "tie_word_embeddings": encoder.tied,
            "pad_token_id": vocabulary.pad,
            "bos_token_id": vocabulary.bos,
            "eos_token_id": vocabulary.eos,
        }

    # How a new one starts, where the corpus is counted first

    def start_near(self, layer: Any) -> None:
        """Let a layer attend to what is near and alike; nothing where positions do not turn queries and keys."""
        return

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        """Let a layer hand on what it attends to: values through `turn` [D, D], output through its transpose."""
        return

    # What a stock checkpoint is

    def check(self, config: Any) -> None:
        """Refuse a variant on which leaving positions out would not be exact; most families have none."""
        return

    def longest(self, config: Any) -> int:
        """Return the longest input of an encoder with this config."""
        return config.max_position_embeddings

    def shape(self, config: Any) -> dict[str, Any]:
        """Return what a recipe says of an existing encoder."""
        return {
            "family": self.model_type,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "ffn_width": config.intermediate_size,
            "dropout": getattr(config, "hidden_dropout_prob", 0.0),
            "max_length": self.longest(config),
            "vocab_size": config.vocab_size,
            "tied": config.tie_word_embeddings,
        }

    def is_untrained(self, name: str) -> bool:
        """Whether a weight of the stock encoder, by name, is one that its states do not depend on."""
        return any(part in name for part in ("pooler", *self.untrained))

    # Its head for masked language modelling

    def config_changes(self, unexpected: Iterable[str]) -> dict[str, Any]:
        """Return what a checkpoint's config should say, where weights that it has no place for tell of another head."""
        return {}

    def stock_head_of(self, config: Any) -> StockHead:
        """Return where the stock …ForMaskedLM with this config keeps its head."""
        return self.stock_head

    def head_shape(self, config: Any) -> HeadShape:
        """Return the shape of the stock head, by the encoder's config."""
        return HeadShape(config.layer_norm_eps, plain=self.plain_head, tied=config.tie_word_embeddings)

    def config_with_head(self, config: Any) -> None:
        """Let a config for …ForMaskedLM have what our head has and the stock one may lack, such as a bias."""
        return

    def stretch(self, config: Any, longest: int, rotary_base: float | None) -> None:
        """Let a config take inputs of so many tokens, and turn positions by this base where a recipe gives one."""
        if longest > (known := self.longest(config)):
            raise UserError(
                f"takes {known} tokens at most: what it learnt of positions ends there; lower length (or "
                f"encoder.max_length) from {longest}"
            )

    def settle(self, encoder: Any) -> None:
        """Let an encoder whose weights were loaded be what its config says, where a file holds what follows from it."""
        return

    def shorten(self, encoder: Any, layers: int) -> None:
        """Keep only the first layers; the norm after the last one stays."""
        del self.layers(encoder)[layers:]
        encoder.config.num_hidden_layers = layers

    # How it runs

    @abstractmethod
    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """Return the input of the first layer [B, S, D] for word ids, or for vectors [B, S, E] in their place."""

    def mask_input(self, encoder: Any, mask: int) -> Tensor:
        """Return the vector [E] that the stock encoder reads in the place of its mask token."""
        vector: Tensor = encoder.get_input_embeddings().weight[mask]
        return vector

    def widened(self, encoder: Any, vector: Tensor) -> Tensor:
        """Turn a vector of the word table [E] into one of the layers [D]; most families have one width."""
        return vector

    @abstractmethod
    def layers(self, encoder: Any) -> Any:
        """Return the encoder's layers, an nn.ModuleList."""

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        """Return what the layers need to know of the positions [B, S] of a stream; `ordered`: they rise."""
        return Places(positions, ordered=ordered)

    def runs_whole(self, layer: Any) -> bool:
        """Whether the stock layer, as it is, does what is right for any positions; if not, its pieces do."""
        return True

    @abstractmethod
    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Run a stock layer as it is."""

    def run(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Run a layer on a whole stream."""
        if self.runs_whole(layer):
            return self.stock(layer, states, places)
        saves = layer.training and getattr(layer, "gradient_checkpointing", False)
        return checkpointed(saves, self.in_pieces, layer, states, places)

    def in_pieces(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Run a layer by its pieces, everything to everything that it may see."""
        normed = self.before_attention(layer, states)
        keys, values = self.keys_values(layer, normed, places)
        attended = self.attend(layer, self.queries(layer, normed, places), keys, values, places, places)
        return self.after_attention(layer, attended, states)

    @abstractmethod
    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        """Return what a layer's projections take: normalised states in pre-norm families."""

    @abstractmethod
    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Project to queries [B, H, Q, D/H]."""

    @abstractmethod
    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Project to keys and values, each [B, H, K, D/H]."""

    def attend(self, layer: Any, queries: Tensor, keys: Tensor, values: Tensor, at: Places, to: Places) -> Tensor:
        """Attend from queries at some places to keys and values at others: [B, Q, D]."""
        return attention(
            queries,
            keys,
            values,
            at,
            to,
            window=self.window(layer),
            bias=self.bias(layer, queries, keys, at, to),
            scale=self.scale(layer),
            dropout=self.attention_dropout(layer) if layer.training else 0.0,
        )

    def window(self, layer: Any) -> int | None:
        """Return how many positions a layer sees to each side; None: all of them."""
        return None

    def bias(self, layer: Any, queries: Tensor, keys: Tensor, at: Places, to: Places) -> Tensor | None:
        """Return what is added to the scores [B, H, Q, K], if anything."""
        return None

    def scale(self, layer: Any) -> float | None:
        """Return what the products of queries and keys are multiplied with, if not 1 / √(D/H)."""
        return None

    @abstractmethod
    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        """Run the rest of a layer: output projection, residual, feed-forward."""

    @abstractmethod
    def attention_dropout(self, layer: Any) -> float:
        """Return the dropout of a layer's attention weights."""

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        """Normalise after the last layer, where the family does."""
        return states


def checkpointed(is_on: bool, layer: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run a layer; with gradient checkpointing, keep nothing of it but what went in."""
    if not is_on:
        return layer(*arguments)
    from torch.utils.checkpoint import checkpoint

    kept: Tensor = checkpoint(layer, *arguments, use_reentrant=False)
    return kept


from latemask.families import (  # noqa: E402  (they register themselves)
    bert,  # noqa: F401
    deberta,  # noqa: F401
    distilbert,  # noqa: F401
    esm,  # noqa: F401
    eurobert,  # noqa: F401
    modernbert,  # noqa: F401
    mpnet,  # noqa: F401
    nomic_bert,  # noqa: F401
)
