"""Memory of a training step, in closed form: what autograd keeps of every layer, and the optimizer. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from latemask.budget.flops import count_weights
from latemask.recipe import OBJECTIVES, OPTIMIZERS, Recipe

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
    def parts(self) -> dict[str, float]:
        """Bytes by what they are for."""
        names = ("weights", "gradients", "optimizer", "activations", "logits", "program")
        return {name: getattr(self, name) for name in names}

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
    parts = (recipe.at(0), recipe.at(1))  # masks may become fewer, and move to the input
    chunk = min(HEAD_ROWS, rows * max(one.counts.predicted for one in parts)) * (recipe.encoder.vocab_size or 0)
    number = HALF if half else FP32
    kept = getattr(OPTIMIZERS[recipe.train.optimizer], "kept", None)
    copies = 2 if recipe.train.average else 1
    scores = half and on_cpu and recipe.length <= SHORT_ROWS
    reference = (recipe.select.reference_weights or 0) * FP32  # scores without gradient: nothing else stays of it
    return Memory(
        weights=reference + weights.total * (copies * FP32 + (HALF if half else 0)),  # autocast keeps each in half, too
        gradients=weights.total * FP32,
        optimizer=kept(recipe) * FP32 if kept else weights.total * FP32 * _MOMENTS,
        activations=rows * max(OBJECTIVES[one.objective].kept_numbers(one, scores) for one in parts) * number,
        logits=chunk * _HEAD_COPIES * FP32,
        program=_PROGRAM if on_cpu else 0,
        accumulates=accumulates,
        word_table=weights.words * FP32,
    )
