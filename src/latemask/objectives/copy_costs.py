"""What several states for every hidden token cost: layers, the head at each, transitions between them. No torch.

d width, e width of the word table, k copies.
"""

from __future__ import annotations

from dataclasses import replace

from latemask.families import FAMILIES, Layer
from latemask.objectives.costs import layers_of
from latemask.recipe import Recipe

ENDS = 2
"""Start and end are expanded like hidden tokens."""
_HEAD_PASSES = 4  # forward, once more on the way back, and two gradients: others have three


def slots_of(recipe: Recipe) -> int:
    """Return how many slots a path may visit."""
    return int(recipe.options.copies * (recipe.counts.masked + ENDS))


def heads_of(recipe: Recipe) -> int:
    """Return the heads of the transitions."""
    return int(recipe.encoder.heads if recipe.options.heads is None else recipe.options.heads)


def whole_flops(recipe: Recipe) -> float:
    """Count layers in which everything sees everything."""
    stream = recipe.counts.visible + slots_of(recipe)
    return sum(_unblocked(layer).flops(stream, stream) for layer in layers_of(recipe))


def whole_kept(recipe: Recipe, scores: bool) -> float:
    """Numbers that those keep."""
    stream, layers = recipe.counts.visible + slots_of(recipe), layers_of(recipe)
    return sum(_unblocked(layer).kept(stream, scores) + _mask_kept(layer, stream, stream) for layer in layers)


def joined_flops(recipe: Recipe, pruned: bool) -> float:
    """Count first layers that see visible tokens, and last ones that copies join; the very last is for these alone."""
    visible, slots, layers = recipe.counts.visible, slots_of(recipe), layers_of(recipe)
    stream, first = visible + slots, len(layers) - recipe.options.layers
    of_copies = [(slots, stream)]
    before = sum(layer.flops(visible, visible) for layer in layers[:first])
    joined = [
        _unblocked(layer).flops(stream, stream, of_copies) + layer.attention(0, 0, [(visible, visible)])
        for layer in layers[first:]
    ]
    last = _unblocked(layers[-1]).flops(slots, stream, of_copies) if pruned else joined[-1]
    return before + sum(joined[:-1]) + last


def joined_kept(recipe: Recipe, scores: bool) -> float:
    """Numbers that those keep."""
    visible, slots, layers = recipe.counts.visible, slots_of(recipe), layers_of(recipe)
    stream, first = visible + slots, len(layers) - recipe.options.layers
    of_copies = [(slots, stream)]
    kept = sum(layer.kept(visible, scores) for layer in layers[:first])
    for layer in layers[first:-1]:
        kept += _unblocked(layer).kept_joined(stream, scores, [(visible, visible), *of_copies])
        kept += _mask_kept(layer, slots, stream) + _mask_kept(layer, visible, visible)
    last = _unblocked(layers[-1]).kept_last(slots, stream, scores, of_copies)
    return kept + last + _mask_kept(layers[-1], slots, stream)


def _unblocked(layer: Layer) -> Layer:
    """A layer as slots that share positions run it: all pairs are computed, and masked outside of a window."""
    return replace(layer, window=None)


def _mask_kept(layer: Layer, queries: int, keys: int) -> float:
    """That mask: a byte for every pair."""
    return queries * keys / 4 if layer.window is not None else 0


def transition_flops(recipe: Recipe) -> float:
    """Count from all slots but the last to all but the first."""
    slots, d = slots_of(recipe) - 1, recipe.encoder.width
    return 2 * slots * 2 * d * (2 * d + heads_of(recipe)) + 2 * slots**2 * d


def emission_flops(recipe: Recipe) -> float:
    """Count the head at every slot, so that forward and backward come to what is done (the word table: four passes)."""
    encoder, slots = recipe.encoder, slots_of(recipe)
    d, e = encoder.width, encoder.embedding_width or encoder.width
    dense = 0 if FAMILIES[encoder.family].plain_head else 2 * slots * d * e
    return dense + _HEAD_PASSES * 2 * slots * e * (encoder.vocab_size or 0) / 3


def lattice_kept(recipe: Recipe) -> float:
    """Numbers kept of the head, of what every head of the transitions says of each pair of slots, and of path sums."""
    encoder, slots, targets = recipe.encoder, slots_of(recipe), recipe.counts.masked + ENDS
    d, e = encoder.width, encoder.embedding_width or encoder.width
    head = slots * (d if FAMILIES[encoder.family].plain_head else d + 3 * e)
    transitions = 4 * slots * d + (3 * heads_of(recipe) + 2) * slots**2
    return head + transitions + 2 * targets * slots
