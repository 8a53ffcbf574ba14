"""Encoder families: how a stock Hugging Face encoder is made, opened and run, and what it costs. One file a kin.

Opened, because the [MASK]s join inside: the last layers run on a stream that the stock `forward` does not know, and the
very last one computes queries and feed-forward only where something is predicted. Every piece used here is the stock
layer's own module; the tests hold the sum of the pieces against the stock forward pass.

B batch, S positions, Q queries, D width, H heads. Nothing here loads torch or transformers until a model is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from latemask.families.facts import Layer, LayerFacts
from latemask.recipe import FAMILIES, EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILIES", "Family", "Layer", "LayerFacts", "merge_heads", "split_heads"]

Rotation = tuple["Tensor", "Tensor"]


class Family(ABC):
    """What the rest of the house asks of an encoder."""

    model_type: str
    """What transformers calls it; a recipe's name for it, too."""
    facts = LayerFacts()
    fused: dict[str, int] = {}  # noqa: RUF012
    """Linear maps that are several in one matrix, one above the other: their names, and how many."""
    without_pooler: dict[str, Any] = {"add_pooling_layer": False}  # noqa: RUF012
    """How transformers is told not to make a pooler, which pre-training would not train."""

    # What a recipe makes of it

    def problem(self, encoder: EncoderRecipe) -> str | None:
        """Say what in a recipe this family cannot be."""
        return None

    def ffn_width(self, width: int) -> int:
        """Return the feed-forward width where a recipe gives none."""
        return 4 * width

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count the encoder's weights without its word table."""
        d, f = encoder.width, encoder.ffn_width or 0
        a_layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
        return encoder.layers * a_layer

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
        }

    def shorten(self, encoder: Any, layers: int) -> None:
        """Keep only the first layers; the norm after the last one stays."""
        del self.layers(encoder)[layers:]
        encoder.config.num_hidden_layers = layers

    # How it runs

    @abstractmethod
    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """Return the input of the first layer [B, S, D] for word ids or for vectors in their place."""

    @abstractmethod
    def layers(self, encoder: Any) -> Any:
        """Return the encoder's layers, an nn.ModuleList."""

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


from latemask.families import bert, modernbert  # noqa: E402, F401  (they register themselves)
