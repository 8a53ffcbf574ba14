"""What a sequence and a model cost, in closed form: the words in which objectives say it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from latemask.families import FAMILIES, Layer
from latemask.recipe import Recipe

BACKWARD = 2  # the backward pass costs twice the forward pass
DECODER_FFN_FACTOR = 4


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one sequence, by where they go: matrix products, a multiply-add counted as two."""

    encoder: float
    decoder: float
    head: float

    @property
    def forward(self) -> float:
        """The forward pass."""
        return self.encoder + self.decoder + self.head

    @property
    def layers(self) -> float:
        """The forward pass without the head."""
        return self.encoder + self.decoder

    @property
    def training(self) -> float:
        """Forward and backward."""
        return (1 + BACKWARD) * self.forward

    @property
    def parts(self) -> dict[str, float]:
        """Forward and backward, by where they go."""
        return {name: (1 + BACKWARD) * getattr(self, name) for name in ("encoder", "decoder", "head")}


@dataclass(frozen=True)
class Weights:
    """Weights by where they are. `words` and `layers` are the encoder, which is kept; the rest is thrown away."""

    words: int
    """The word table."""
    layers: int
    """The encoder without its word table."""
    decoder: int
    """What the objective adds: layers of a separate decoder, a [MASK] vector."""
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


def layers_of(recipe: Recipe) -> list[Layer]:
    """Return the layers of a recipe's encoder."""
    family = FAMILIES[recipe.encoder.family]
    return [family.layer(recipe, number) for number in range(recipe.encoder.layers)]


def input_flops(recipe: Recipe, positions: int) -> float:
    """What turns words into the first layer's input, where the word table is narrower than the layers."""
    e, d = recipe.encoder.embedding_width, recipe.encoder.width
    return 2 * positions * e * d if e is not None and e != d else 0


def head_flops(recipe: Recipe) -> float:
    """The vocabulary head, where something is predicted."""
    encoder, predicted = recipe.encoder, recipe.counts.predicted
    d, e = encoder.width, encoder.embedding_width or encoder.width
    dense = 0 if FAMILIES[encoder.family].plain_head else 2 * predicted * d * e
    return dense + 2 * predicted * e * (encoder.vocab_size or 0)


def head_kept(recipe: Recipe) -> float:
    """Numbers that the head keeps for the backward pass."""
    encoder, predicted = recipe.encoder, recipe.counts.predicted
    if FAMILIES[encoder.family].plain_head:
        return predicted * encoder.width
    return predicted * (encoder.width + 3 * (encoder.embedding_width or encoder.width))


def linear(inputs: int, outputs: int) -> int:
    """Weights of a linear map."""
    return inputs * outputs + outputs


def norm(width: int) -> int:
    """Weights of a norm."""
    return 2 * width
