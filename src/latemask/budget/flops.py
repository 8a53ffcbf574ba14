"""What a run costs, in closed form: the matrix products, a multiply-add counted as two. No torch.

The terms are those of docs/method.md; a test holds them against torch's own counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from latemask.recipe import MLM_RATE, MaskRecipe, Recipe

BACKWARD = 2  # the backward pass costs twice the forward pass
DECODER_FFN_FACTOR = 4
_MOST_STAGES = 1000


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one sequence, by where they go."""

    encoder: float
    decoder: float
    head: float

    @property
    def forward(self) -> float:
        """The forward pass."""
        return self.encoder + self.decoder + self.head

    @property
    def training(self) -> float:
        """Forward and backward."""
        return (1 + BACKWARD) * self.forward

    @property
    def parts(self) -> dict[str, float]:
        """Forward and backward, by where they go."""
        return {name: (1 + BACKWARD) * getattr(self, name) for name in ("encoder", "decoder", "head")}


@dataclass(frozen=True)
class _Layer:
    """The cost of one layer of width d whose feed-forward costs `ffn` a position."""

    d: int
    ffn: float

    def __call__(self, queries: int, keys: int, pairs: int | None = None) -> float:
        """Attention from `queries` to `keys` positions (over `pairs` of them, if not all), then feed-forward."""
        return self.attention(queries, keys, pairs) + queries * self.ffn

    def attention(self, queries: int, keys: int, pairs: int | None = None) -> float:
        pairs = queries * keys if pairs is None else pairs
        return 4 * queries * self.d**2 + 4 * keys * self.d**2 + 4 * pairs * self.d


def sequence_flops(recipe: Recipe, pruned: bool = True) -> Flops:
    """Count one sequence of a recipe that is spelled out (`encoder.ffn_width` and `encoder.vocab_size` known).

    Where the mask rate changes, it is the mean over the run. `pruned` is what latemask does: the last layer works only
    where something is predicted. Without it this is what the paper's shape costs when every layer is computed whole,
    docs/planning.md has both.
    """
    found = [(share, _sequence_flops(stage, pruned)) for share, stage in _stages(recipe)]
    if len(found) == 1:
        return found[0][1]
    return Flops(*(sum(share * getattr(flops, part) for share, flops in found) for part in Flops.__dataclass_fields__))


def spent(recipe: Recipe, steps: int, done: int) -> float:
    """Return the FLOPs of the first `done` of `steps` steps, forward and backward."""
    left, total = float(done), 0.0
    for share, stage in _stages(recipe):
        here = min(share * steps, left)
        total += here * recipe.train.batch_size * _sequence_flops(stage).training
        left -= here
    return total


def _stages(recipe: Recipe) -> list[tuple[float, Recipe]]:
    """Split a run into parts in which the number of predicted positions stays: (share of the run, recipe)."""
    mask, length = recipe.mask, recipe.length
    if mask.rate_end is None or mask.rate_end == mask.rate:
        return [(1.0, recipe.at(0))]
    first, last = mask.rate * length, mask.rate_end * length
    halves = range(math.floor(min(first, last)), math.ceil(max(first, last)) + 1)
    if len(halves) > _MOST_STAGES:  # of very long rows: near enough
        cuts = [number / _MOST_STAGES for number in range(1, _MOST_STAGES)]
    else:
        cuts = sorted((half + 0.5 - first) / (last - first) for half in halves)
    edges = [0.0, *(cut for cut in cuts if 0 < cut < 1), 1.0]
    return [(end - start, recipe.at((start + end) / 2)) for start, end in pairwise(edges)]


def _sequence_flops(recipe: Recipe, pruned: bool = True) -> Flops:
    encoder, counts = recipe.encoder, recipe.counts
    assert encoder.ffn_width is not None
    assert encoder.vocab_size is not None
    d = encoder.width
    gates = 3 if encoder.family == "modernbert" else 2
    layer = _Layer(d, 2 * gates * d * encoder.ffn_width)
    head = 2 * counts.predicted * d**2 + 2 * counts.predicted * d * encoder.vocab_size
    if recipe.objective == "early":
        present = counts.length - counts.dropped
        return Flops(encoder.layers * layer(present, present), 0, head)
    if recipe.join.kind == "inside":
        return Flops(_inside(recipe, layer, pruned), 0, head)
    seen = encoder.layers * layer(counts.visible, counts.visible)
    return Flops(seen, _decoder(recipe, _Layer(d, 4 * DECODER_FFN_FACTOR * d**2), pruned), head)


def mlm_baseline(recipe: Recipe) -> Recipe:
    """Return what a recipe is measured against: the same encoder by masked language modelling at 15 %."""
    return replace(recipe, objective="early", mask=MaskRecipe(rate=MLM_RATE))


def _inside(recipe: Recipe, layer: _Layer, pruned: bool) -> float:
    counts, joined = recipe.counts, recipe.join.layers
    visible, masked, corrupted = counts.visible, counts.masked, counts.corrupted
    stream = visible + masked
    if recipe.join.two_way:
        every, last = stream * stream, counts.predicted * stream
    else:
        every = visible * visible + masked * stream
        last = corrupted * visible + masked * stream
    whole = layer(stream, stream, every)
    return (
        (recipe.encoder.layers - joined) * layer(visible, visible)
        + (joined - 1) * whole
        + (layer(counts.predicted, stream, last) if pruned else whole)
    )


def _decoder(recipe: Recipe, layer: _Layer, pruned: bool) -> float:
    counts, layers = recipe.counts, recipe.join.layers
    visible, predicted = counts.visible, counts.predicted
    if recipe.join.kind == "cross-only":
        return layers * layer(predicted, visible)
    stream = visible + counts.masked
    at_last = predicted if pruned else stream
    total = (layers - 1) * layer(stream, stream) + layer(at_last, stream)
    if recipe.join.kind == "cross":
        total += (layers - 1) * layer.attention(stream, visible) + layer.attention(at_last, visible)
    return total
