"""What a separate decoder costs, in closed form; objectives/decoder.py is the decoder. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from latemask.families import Layer, LayerFacts
from latemask.objectives.costs import DECODER_FFN_FACTOR, linear, norm
from latemask.recipe import Recipe


@dataclass(frozen=True)
class DecoderCosts:
    """The decoder of a recipe that is spelled out."""

    recipe: Recipe
    kind: str
    layers: int
    positions: str
    mix: bool = False
    """Whether each layer reads its own mix of the outputs of all layers of the encoder, and of their input."""

    @property
    def _width(self) -> int:
        return self.recipe.encoder.width

    @cached_property
    def _sizes(self) -> tuple[int, int, int]:
        """Positions that are visible, predicted, and of the stream."""
        counts = self.recipe.counts
        return counts.visible, counts.predicted, counts.visible + counts.masked

    @property
    def _read(self) -> int:
        """States of the encoder that are mixed."""
        return self.recipe.encoder.layers + 1

    def flops(self, pruned: bool) -> float:
        """Of one sequence, forward; `pruned`: the last layer works only where something is predicted."""
        d, (visible, predicted, stream) = self._width, self._sizes
        layer = Layer(LayerFacts(), d, DECODER_FFN_FACTOR * d, self.recipe.encoder.heads)
        if self.kind == "cross-only":
            mixing = 2 * self.layers * self._read * visible * d if self.mix else 0
            return self.layers * layer.flops(predicted, visible) + mixing
        at_last = predicted if pruned else stream
        total = (self.layers - 1) * layer.flops(stream, stream) + layer.flops(at_last, stream)
        if self.kind == "cross":
            total += (self.layers - 1) * layer.attention(stream, visible) + layer.attention(at_last, visible)
        return total

    def weights(self) -> int:
        """Without what stands for a [MASK]."""
        d, attentions = self._width, 2 if self.kind == "cross" else 1
        wide = DECODER_FFN_FACTOR * d
        a_layer = attentions * (4 * linear(d, d) + norm(d)) + norm(d) + linear(d, wide) + linear(wide, d)
        relative = (2 * self.recipe.max_length - 1) * self.recipe.encoder.heads
        places = relative if self.positions == "relative" else self.recipe.max_length * d
        reading = self.layers * (norm(d) + self._read) if self.mix else norm(d)
        return self.layers * a_layer + reading + norm(d) + places

    def matrices(self) -> list[tuple[int, int, int]]:
        """Of its layers: how many, rows, columns."""
        d, attentions = self._width, 2 if self.kind == "cross" else 1
        return [(4 * attentions * self.layers, d, d), (2 * self.layers, d, DECODER_FFN_FACTOR * d)]

    def kept(self, scores: bool) -> float:
        """Numbers kept for the backward pass of a row.

        With a bias over the distance, attention keeps its scores; without, only by plain products.
        """
        d, (v, p, s) = self._width, self._sizes
        wide, relative = 2 * DECODER_FFN_FACTOR * d, self.positions == "relative"
        h = self.recipe.encoder.heads if relative or scores else 0
        distance = 2 if relative else 0  # an integer of eight bytes
        kept = (self._read + 2 * self.layers) * v * d if self.mix else 2 * v * d
        if self.kind == "cross-only":
            return kept + distance * p * v + self.layers * (p * (6 * d + wide) + 2 * v * d + h * p * v)
        kept += (h + distance) * s * s + (self.layers - 1) * (s * (8 * d + wide) + h * s * s)
        kept += 3 * s * d + p * (7 * d + wide) + h * p * s
        if self.kind == "cross":
            kept += (self.layers - 1) * (2 * v * d + 4 * s * d + h * s * v) + 3 * v * d + 4 * p * d + h * p * v
        return kept
