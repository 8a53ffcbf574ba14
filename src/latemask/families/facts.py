"""What one layer of an encoder costs: FLOPs, and the numbers that autograd keeps. Arithmetic, no torch.

d width, f feed-forward width, h heads; a multiply-add counts as two. The counts of kept tensors come from reading the
stock layers; tests hold both against torch's own counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from latemask.recipe import EncoderRecipe


@dataclass(frozen=True)
class LayerFacts:
    """What a family's layer has that the arithmetic must know. The defaults are BERT's."""

    ffn_matrices: int = 2
    """Matrices of the feed-forward: three where it is gated."""
    kept_states: int = 8
    """Tensors of the width that a layer keeps for its backward pass, at every position."""
    kept_wide: int = 2
    """The same, of the feed-forward's width."""
    kept_joined: int = 1
    """More tensors of the width where [MASK]s have joined: two attentions are put together again."""
    kept_by_keys: int = 3
    """Tensors of the width kept at every position by a layer that works only where something is predicted."""


@dataclass(frozen=True)
class Layer:
    """One layer of a given size."""

    facts: LayerFacts
    d: int
    f: int
    h: int

    @classmethod
    def of(cls, facts: LayerFacts, encoder: EncoderRecipe) -> Layer:
        """Return the layer of a recipe that is spelled out."""
        assert encoder.ffn_width is not None
        return cls(facts, encoder.width, encoder.ffn_width, encoder.heads)

    def flops(self, queries: int, keys: int, pairs: int | None = None) -> float:
        """Attention from `queries` to `keys` positions (over `pairs` of them, if not all), then feed-forward."""
        return self.attention(queries, keys, pairs) + queries * 2 * self.facts.ffn_matrices * self.d * self.f

    def attention(self, queries: int, keys: int, pairs: int | None = None) -> float:
        """Projections and products of attention alone."""
        pairs = queries * keys if pairs is None else pairs
        return 4 * queries * self.d**2 + 4 * keys * self.d**2 + 4 * pairs * self.d

    def kept(self, n: int, scores: bool) -> float:
        """Numbers kept when it runs on n positions as it is; `scores` where attention keeps one for every pair."""
        facts = self.facts
        return n * (facts.kept_states * self.d + facts.kept_wide * self.f + self.h) + self._scores(n, n, scores)

    def kept_joined(self, s: int, scores: bool) -> float:
        """Numbers kept when it runs on visible positions and [MASK]s."""
        return self.kept(s, scores) + s * self.facts.kept_joined * self.d

    def kept_last(self, p: int, s: int, scores: bool) -> float:
        """Keys and values everywhere, the rest where something is predicted."""
        wide = self.facts.kept_wide * self.f
        return s * self.facts.kept_by_keys * self.d + p * (7 * self.d + wide) + self._scores(p, s, scores)

    def _scores(self, queries: int, keys: int, scores: bool) -> float:
        """By plain products: queries and keys, each scaled, and a score for every pair."""
        return (queries + keys) * self.d + self.h * queries * keys if scores else 0
