"""Where the compute goes: base and large over kind x layers x rate x drop x corruption, MLM at 15 % being 1.

In both accountings: with the head, as everything else of ours is counted, and the layers alone, which is how the
paper's own numbers seem to be counted (docs/planning.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latemask.budget.flops import mlm_baseline, sequence_flops
from latemask.objectives.late import KINDS, Join, Kind
from latemask.recipe import EncoderRecipe, MaskRecipe, Recipe, spelled_out

LENGTH = 512
VOCABULARY = 50265
LAYERS = (1, 2, 3)
SIZES = {
    "base": EncoderRecipe(family="roberta", layers=12, width=768, heads=12),
    "large": EncoderRecipe(family="roberta", layers=24, width=1024, heads=16),
}
PAPER = {"base": 0.78, "large": 0.68}
"""What the paper claims (3ML, against its own MLM): to be held against layers alone."""

MASKS = {
    "40 %": MaskRecipe(rate=0.4),
    "50 %": MaskRecipe(rate=0.5),
    "50 %, 80/10/10": MaskRecipe(rate=0.5, random=0.1, keep=0.1),
    "40 %, drop 20 %": MaskRecipe(rate=0.4, drop=0.2),
    "30 %, drop 30 %": MaskRecipe(rate=0.3, drop=0.3),
}
PUBLISHED = (2, "50 %, 80/10/10")
"""Layers and masks of the paper's shape, in its simplest reading: the recipes 3ml-self-… and 3ml-cross-…"""


@dataclass(frozen=True)
class Cell:
    """One shape, one way of joining, one way of masking."""

    size: str
    kind: Kind
    layers: int
    masking: str
    encoder: float
    decoder: float
    head: float
    without_pruning: float
    """The whole, were the last layer not pruned to the predicted positions."""
    layers_only: float
    """Layers of encoder and decoder, over those of MLM's encoder: no head on either side."""
    layers_only_without_pruning: float

    @property
    def ratio(self) -> float:
        """FLOPs over those of MLM at 15 %."""
        return self.encoder + self.decoder + self.head

    def record(self) -> dict[str, Any]:
        """Return the cell with its settings in numbers."""
        mask = MASKS[self.masking]
        return {
            **{name: getattr(self, name) for name in ("size", "kind", "layers")},
            **{name: getattr(mask, name) for name in ("rate", "drop", "random", "keep")},
            **{name: getattr(self, name) for name in ("encoder", "decoder", "head", "ratio")},
            "ratio_without_pruning": self.without_pruning,
            **{name: getattr(self, name) for name in ("layers_only", "layers_only_without_pruning")},
            "paper": PAPER[self.size],
        }


def cost_table() -> list[Cell]:
    """Return every cell, in the order of the tables: by size, kind, layers and masking."""
    return [
        _cell(size, kind, layers, masking) for size in SIZES for kind in KINDS for layers in LAYERS for masking in MASKS
    ]


def _cell(size: str, kind: Kind, layers: int, masking: str) -> Cell:
    recipe = Recipe(length=LENGTH, encoder=SIZES[size], mask=MASKS[masking], options=Join(kind, layers))
    recipe = spelled_out(recipe, VOCABULARY)
    mlm, flops, whole = sequence_flops(mlm_baseline(recipe)), sequence_flops(recipe), sequence_flops(recipe, False)
    ratios = (part / mlm.forward for part in (flops.encoder, flops.decoder, flops.head, whole.forward))
    return Cell(size, kind, layers, masking, *ratios, *(one.layers / mlm.layers for one in (flops, whole)))
