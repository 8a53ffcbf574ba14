"""Memory of a training step, in closed form: what autograd keeps of every layer, and the optimizer. No torch.

The numbers of kept tensors come from reading the layers; a test counts the real ones by torch's saved-tensor hooks.
d width, f feed-forward width, h heads; v visible, p predicted, s = v + masked positions of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from latemask.budget.flops import DECODER_FFN_FACTOR
from latemask.budget.weights import count_weights
from latemask.recipe import Recipe

FP32 = 4
HALF = 2
HEAD_ROWS = 512  # the head works in chunks of this many positions
SHORT_ROWS = 256  # in bf16 on a CPU, rows of so many attend by plain products, which keep their scores
_HEAD_COPIES = 2  # of a chunk of logits: themselves and their gradient
_MOMENTS = 2  # AdamW
_PROGRAM = 0.55e9  # Python, torch and transformers themselves, on a CPU; measured


@dataclass(frozen=True)
class Memory:
    """Bytes on one device. Gradients grow while activations are given back: the peak is less than the sum."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    """The head's chunk, and its gradient of the word table."""
    program: float
    """What the process has before there is a model."""
    accumulates: bool
    """Whether gradients of an earlier part of the batch are there while the next is computed."""
    word_table: float

    @property
    def peak(self) -> float:
        """Most at once: at the end of the forward pass, or at the end of the backward pass."""
        forward = self.activations + self.logits + (self.gradients if self.accumulates else self.word_table)
        backward = self.gradients + self.word_table  # the look-up's own gradient of the table comes last
        return self.program + self.weights + self.optimizer + max(forward, backward)


def step_memory(
    recipe: Recipe, rows: int, accumulates: bool = False, half: bool = False, on_cpu: bool = True
) -> Memory:
    """Estimate a step with `rows` on a device at once; `half` is mixed precision."""
    weights = count_weights(recipe)
    chunk = min(HEAD_ROWS, rows * recipe.counts.predicted) * (recipe.encoder.vocab_size or 0)
    number = HALF if half else FP32
    scores = half and on_cpu and recipe.length <= SHORT_ROWS
    return Memory(
        weights=weights.total * (FP32 + (HALF if half else 0)),  # autocast keeps a copy of each in half
        gradients=weights.total * FP32,
        optimizer=weights.total * FP32 * _MOMENTS,
        activations=rows * kept_numbers(recipe, scores) * number,
        logits=chunk * _HEAD_COPIES * FP32,
        program=_PROGRAM if on_cpu else 0,
        accumulates=accumulates,
        word_table=weights.words * FP32,
    )


def kept_numbers(recipe: Recipe, scores: bool = False) -> float:
    """Return how many numbers the forward pass of a row keeps for the backward pass; with `scores`, attention's too."""
    encoder, counts = recipe.encoder, recipe.counts
    assert encoder.ffn_width is not None
    d = encoder.width
    layer = _Layer(encoder.family, d, encoder.ffn_width, encoder.heads, scores)
    head = 4 * counts.predicted * d
    if recipe.objective == "early":
        present = counts.length - counts.dropped
        return 2 * present * d + encoder.layers * layer.plain(present) + head + counts.predicted * d
    v, s = counts.visible, counts.visible + counts.masked
    before = 2 * v * d + head
    if recipe.join.kind == "inside":
        joined = (recipe.join.layers - 1) * layer.joined(s) + layer.last(counts.predicted, s)
        return before + (encoder.layers - recipe.join.layers) * layer.plain(v) + joined
    return before + encoder.layers * layer.plain(v) + _decoder(recipe, scores)


@dataclass(frozen=True)
class _Layer:
    """What one layer of an encoder keeps."""

    family: str
    d: int
    f: int
    h: int
    scores: bool

    def plain(self, n: int) -> float:
        """Run on n positions as it is."""
        return n * (self._states + self._wide + self.h) + self._attention(n, n)

    def joined(self, s: int) -> float:
        """Run on visible positions and [MASK]s: two attentions, put together again."""
        again = 0 if self.family == "modernbert" else self.d
        return self.plain(s) + s * again

    def last(self, p: int, s: int) -> float:
        """Keys and values everywhere, the rest where something is predicted."""
        everywhere = {"modernbert": 5, "roberta-prelayernorm": 4}.get(self.family, 3)
        return s * everywhere * self.d + p * (7 * self.d + self._wide) + self._attention(p, s)

    def _attention(self, queries: int, keys: int) -> float:
        """By plain products: queries and keys, each scaled, and a score for every pair."""
        return (queries + keys) * self.d + self.h * queries * keys if self.scores else 0

    @property
    def _states(self) -> int:
        return (10 if self.family == "modernbert" else 8) * self.d

    @property
    def _wide(self) -> int:
        return (4 if self.family == "modernbert" else 2) * self.f


def _decoder(recipe: Recipe, scores: bool) -> float:
    """With a bias over the distance, attention keeps its scores; without, only by plain products."""
    counts, layers, d = recipe.counts, recipe.join.layers, recipe.encoder.width
    v, p, s = counts.visible, counts.predicted, counts.visible + counts.masked
    wide = 2 * DECODER_FFN_FACTOR * d
    relative = recipe.join.positions == "relative"
    h = recipe.encoder.heads if relative or scores else 0
    distance = 2 if relative else 0  # an integer of eight bytes
    kept = 2 * v * d
    if recipe.join.kind == "cross-only":
        return kept + distance * p * v + layers * (p * (6 * d + wide) + 2 * v * d + h * p * v)
    kept += (h + distance) * s * s + (layers - 1) * (s * (8 * d + wide) + h * s * s)
    kept += 3 * s * d + p * (7 * d + wide) + h * p * s
    if recipe.join.kind == "cross":
        kept += (layers - 1) * (2 * v * d + 4 * s * d + h * s * v) + 3 * v * d + 4 * p * d + h * p * v
    return kept
