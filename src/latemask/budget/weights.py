"""How many weights a recipe's model has, in closed form. No torch; a test counts the real ones."""

from __future__ import annotations

from dataclasses import dataclass

from latemask.budget.flops import DECODER_FFN_FACTOR
from latemask.recipe import Recipe

_FIRST_POSITION = {"roberta": 2, "roberta-prelayernorm": 2, "bert": 0}  # rows of the table before position 0
_SEGMENTS = {"roberta": 1, "roberta-prelayernorm": 1, "bert": 2}


@dataclass(frozen=True)
class Weights:
    """Weights by where they are. `words` and `layers` are the encoder, which is kept; the rest is thrown away."""

    words: int
    """The word table."""
    layers: int
    """The encoder without its word table."""
    decoder: int
    """Layers of a separate decoder, and the [MASK] vector."""
    head: int
    """What the vocabulary head has beside the word table."""

    @property
    def encoder(self) -> int:
        """What is kept."""
        return self.words + self.layers

    @property
    def total(self) -> int:
        """What is trained."""
        return self.encoder + self.decoder + self.head


def count_weights(recipe: Recipe) -> Weights:
    """Count the weights of a recipe that is spelled out."""
    encoder = recipe.encoder
    assert encoder.vocab_size is not None
    d = encoder.width
    layers = _modernbert(recipe) if encoder.family == "modernbert" else _bert(recipe)
    late = recipe.objective == "late"
    return Weights(
        words=encoder.vocab_size * d,
        layers=layers,
        decoder=(d + (0 if recipe.join.kind == "inside" else _decoder(recipe))) if late else 0,
        head=_linear(d, d) + _norm(d) + encoder.vocab_size,
    )


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _norm(d: int) -> int:
    return 2 * d


def _bert(recipe: Recipe) -> int:
    encoder = recipe.encoder
    assert encoder.ffn_width is not None
    d, f = encoder.width, encoder.ffn_width
    tables = recipe.max_length + _FIRST_POSITION[encoder.family] + _SEGMENTS[encoder.family]
    a_layer = 4 * _linear(d, d) + _linear(d, f) + _linear(f, d) + 2 * _norm(d)
    last_norm = _norm(d) if encoder.family == "roberta-prelayernorm" else 0
    return tables * d + _norm(d) + encoder.layers * a_layer + last_norm


def _modernbert(recipe: Recipe) -> int:
    """Count a family without biases, whose first layer has no norm before its attention."""
    encoder = recipe.encoder
    assert encoder.ffn_width is not None
    d, f = encoder.width, encoder.ffn_width
    a_layer = 4 * d * d + 3 * d * f + 2 * d
    return d + encoder.layers * a_layer - d + d


def _decoder(recipe: Recipe) -> int:
    d, join = recipe.encoder.width, recipe.join
    attention = 4 * _linear(d, d)
    attentions = 2 if join.kind == "cross" else 1
    wide = DECODER_FFN_FACTOR * d
    a_layer = attentions * (attention + _norm(d)) + _norm(d) + _linear(d, wide) + _linear(wide, d)
    places = (
        (2 * recipe.max_length - 1) * recipe.encoder.heads if join.positions == "relative" else recipe.max_length * d
    )
    return join.layers * a_layer + 2 * _norm(d) + places
