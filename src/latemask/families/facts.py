"""What is known of encoders without torch: what a layer costs (FLOPs, and the numbers that autograd keeps), and where
the stock head for masked language modelling has its parts.

d width, f feed-forward width, h heads; a multiply-add counts as two. The counts of kept tensors come from reading the
stock layers; tests hold both against torch's own counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latemask.recipe import EncoderRecipe

_SMALLEST_BLOCK = 32  # smaller products are not worth their calls


def block_of(keys: int, window: int) -> int | None:
    """Return the size of the blocks in which attention within a window is computed; None where it is not worth it.

    A block of queries attends to three blocks of keys: its own and those beside it, as wide as the window at least.
    """
    block = max(window, _SMALLEST_BLOCK)
    return block if keys > 4 * block else None


@dataclass(frozen=True)
class LayerFacts:
    """What a family's layer has that the arithmetic must know. The defaults are BERT's."""

    ffn_matrices: int = 2
    """Matrices of the feed-forward: three where it is gated."""
    kept_states: float = 8
    """Tensors of the width that a layer keeps for its backward pass, at every position."""
    kept_wide: float = 2
    """The same, of the feed-forward's width."""
    kept_joined: float = 1
    """More tensors of the width where [MASK]s have joined: two attentions are put together again."""
    kept_by_keys: float = 3
    """Tensors of the width kept at every position by a layer that works only where something is predicted."""
    kept_by_pair: float = 0
    """Numbers kept for every pair of positions and every head, where distances add to the scores."""


@dataclass(frozen=True)
class Layer:
    """One layer of a given size."""

    facts: LayerFacts
    d: int
    f: int
    h: int
    window: int | None = None
    """How far it sees to each side; None: the whole row."""
    kv: int | None = None
    """Width of keys and values, where heads share them."""
    distances: int = 0
    """Vectors of distances that queries and keys are multiplied with (deberta-v2), projected by the layer."""
    rows: int = 1
    """Rows that are computed together, and share those projections."""

    @classmethod
    def of(cls, facts: LayerFacts, encoder: EncoderRecipe, number: int = 0, distances: int = 0, rows: int = 1) -> Layer:
        """Return a layer, by its number, of a recipe that is spelled out."""
        assert encoder.ffn_width is not None
        d, h = encoder.width, encoder.heads
        is_local = encoder.window is not None and number % encoder.global_every
        kv = encoder.key_value_heads and d // h * encoder.key_value_heads
        return cls(facts, d, encoder.ffn_width, h, encoder.window if is_local else None, kv, distances, rows)

    def flops(self, queries: int, keys: int, attended: Sequence[tuple[int, int]] | None = None) -> float:
        """Attention from `queries` to `keys` positions, then feed-forward.

        `attended` holds its parts, each from so many positions to so many, where it has several.
        """
        return self.attention(queries, keys, attended) + queries * 2 * self.facts.ffn_matrices * self.d * self.f

    def attention(self, queries: int, keys: int, attended: Sequence[tuple[int, int]] | None = None) -> float:
        """Projections and products of attention alone."""
        projections = 4 * queries * self.d**2 + 4 * keys * self.d * (self.kv or self.d)
        return projections + sum(self._products(*part) for part in attended or [(queries, keys)] if part[0])

    def _products(self, queries: int, keys: int) -> float:
        """Scores and what they weigh, as computed: a window is computed in blocks, or as a mask over all pairs."""
        pairs = queries * keys
        if self.window is not None and (block := block_of(keys, self.window)):
            pairs = -(-keys // block) * block * 3 * block
        by_distance = 2 * (queries + keys) * self.distances * self.d + 4 * self.distances * self.d**2 / self.rows
        return 4 * pairs * self.d + by_distance

    def kept(self, n: int, scores: bool) -> float:
        """Numbers kept when it runs on n positions as it is; `scores` where attention keeps one for every pair."""
        return self._by_position(n) + self._pairs(n, n, scores) + self._by_distance([(n, n)])

    def kept_joined(self, s: int, scores: bool, attended: Sequence[tuple[int, int]]) -> float:
        """Numbers kept when it runs on visible positions and [MASK]s; `attended` holds the parts of its attention."""
        states = self._by_position(s) + s * self.facts.kept_joined * self.d
        return states + self._pairs(s, s, scores) + self._by_distance(attended)

    def kept_last(self, p: int, s: int, scores: bool, attended: Sequence[tuple[int, int]]) -> float:
        """Keys and values everywhere, the rest where something is predicted."""
        states = s * self.facts.kept_by_keys * self.d + p * (7 * self.d + self.facts.kept_wide * self.f)
        return states + self._pairs(p, s, scores) + self._by_distance(attended)

    def _by_position(self, n: int) -> float:
        return n * (self.facts.kept_states * self.d + self.facts.kept_wide * self.f + self.h)

    def _by_distance(self, attended: Sequence[tuple[int, int]]) -> float:
        """Where distances add to the scores: something for every pair, and what their vectors are multiplied with."""
        parts = [(queries, keys) for queries, keys in attended if queries]
        kept = sum(self.facts.kept_by_pair * self.h * queries * keys for queries, keys in parts)
        if self.distances:
            kept += sum((queries + keys) * self.d + 2 * self.distances * self.d / self.rows for queries, keys in parts)
        return kept

    def _pairs(self, queries: int, keys: int, scores: bool) -> float:
        """By plain products: queries and keys, each scaled, and a score for every pair. A window keeps what it sees."""
        if self.window is not None:
            return self._window_kept(queries, keys)
        scores = scores and not self.facts.kept_by_pair  # which are counted with the distances
        return (queries + keys) * self.d + self.h * queries * keys if scores else 0

    def _window_kept(self, queries: int, keys: int) -> float:
        """Blocks of queries with three blocks of keys and values each, a byte for every pair, and what each weighs (in
        fp32 a kernel keeps no weights: there it is less)."""
        block = block_of(keys, self.window or 0)
        if block is None:
            return queries * keys / 4
        padded = -(-keys // block) * block
        return padded * (8 * self.d + 3 * block * (self.h + 1 / 4))


@dataclass(frozen=True)
class HeadShape:
    """The head for masked language modelling: dense → activation → norm, then the word table."""

    epsilon: float = 1e-5
    """Of the norm."""
    activation: str = "gelu"
    """By transformers' name."""
    plain: bool = False
    """Nothing but the word table."""
    bias: bool = True
    """A number for every piece of the vocabulary."""
    tied: bool = True
    """Whether the word table is the encoder's."""


@dataclass(frozen=True)
class StockHead:
    """Where a stock …ForMaskedLM keeps the parts of its head: names of modules, and of the bias. RoBERTa's."""

    dense: str = "lm_head.dense"
    norm: str = "lm_head.layer_norm"
    words: str = "lm_head.decoder"
    bias: str | None = None
    """Where it is not the word table's."""
