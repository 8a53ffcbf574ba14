"""Effective rank: the share of an encoder's dimensions that hold 90 % of the variance of its tokens' states.

After *Representation Deficiency in Masked Language Modeling* (Meng et al., ICLR 2024): an encoder that is trained with
[MASK]s in its input spends dimensions on them, which real tokens then lack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from latemask.evaluation.features import Feature
from latemask.evaluation.layers import layer_states, tokenized
from latemask.ground.console import printable
from latemask.ground.errors import UserError

SHARE = 0.9
MASK_RATE = 0.15
_TOKENS_PER_DIMENSION = 10  # with fewer, the sample bounds the rank rather than the encoder


@dataclass(frozen=True)
class LayerRank:
    """Effective ranks of one layer, as shares of its width."""

    layer: int
    clean: float
    """Of real tokens, no [MASK] in the input."""
    masked: float
    """Of the same tokens, the others replaced by [MASK]."""
    with_masks: float
    """Of all tokens of that input, its [MASK]s included."""


@dataclass(frozen=True)
class EffectiveRank:
    """Effective ranks of all layers: of this encoder, and of an untrained one."""

    share: float
    mask_rate: float
    tokens: int
    """Real tokens that stay visible."""
    masks: int
    encoder: list[LayerRank]
    random: list[LayerRank]


class Moments:
    """Sums from which a covariance follows, so that no state has to be kept."""

    def __init__(self, width: int):
        self.count = 0
        self.sum: np.ndarray = np.zeros(width)
        self.products: np.ndarray = np.zeros((width, width))

    def add(self, states: np.ndarray) -> None:
        """Add states [tokens, D]."""
        states = states.astype(np.float64)
        self.count += len(states)
        self.sum += states.sum(0)
        self.products += states.T @ states

    def __add__(self, other: Moments) -> Moments:
        both = Moments(len(self.sum))
        both.count, both.sum = self.count + other.count, self.sum + other.sum
        both.products = self.products + other.products
        return both

    def covariance(self) -> np.ndarray:
        """Return the covariance [D, D]."""
        mean = self.sum / self.count
        return self.products / self.count - np.outer(mean, mean)


def effective_rank(covariance: np.ndarray, share: float = SHARE) -> int:
    """Return the smallest number of directions that hold `share` of the variance; 0 where nothing varies."""
    held = np.cumsum(np.linalg.eigvalsh(covariance)[::-1].clip(0))
    rounding = 1e-9
    return int(np.searchsorted(held, (share - rounding) * held[-1]) + 1) if held[-1] > 0 else 0


def ranked(encoder: Any, texts: list[str]) -> EffectiveRank:
    """Measure an `encoders.Encoder` and an untrained one of the same shape on the same tokens and [MASK]s."""
    mask = encoder.tokenizer.mask_token_id
    if mask is None:
        raise UserError(f"--rank: the tokenizer of '{printable(encoder.name)}' has no [MASK] token")
    special = set(encoder.tokenizer.all_special_ids)
    rows = [row for row in tokenized(encoder, texts) if len(set(row["input_ids"]) - special) > 1]
    places = _drawn(rows, special)
    tokens, masks = (sum(len(sides[side]) for sides in places) for side in (0, 1))
    if tokens < _TOKENS_PER_DIMENSION * encoder.width:
        raise UserError(
            f"--rank: {tokens:,} tokens of text are too few for an encoder of width {encoder.width}; it needs "
            f"{_TOKENS_PER_DIMENSION * encoder.width:,}: give more text or more --examples"
        )
    ours, theirs = (_ranks(one.plain(), encoder, rows, places, mask) for one in (encoder, encoder.untrained()))
    return EffectiveRank(SHARE, MASK_RATE, tokens, masks, ours, theirs)


def _drawn(rows: list[Feature], special: set[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw (visible places, masked places) among the real tokens of each row; one is masked at least."""
    random = np.random.default_rng(0)
    found = []
    for row in rows:
        real = random.permutation([place for place, piece in enumerate(row["input_ids"]) if piece not in special])
        masked = max(1, round(MASK_RATE * len(real)))
        found.append((real[masked:], real[:masked]))
    return found


def _ranks(
    model: Any, encoder: Any, rows: list[Feature], places: list[tuple[np.ndarray, np.ndarray]], mask: int
) -> list[LayerRank]:
    visible, masked = zip(*places, strict=True)
    with_masks = [
        {**row, "input_ids": [mask if place in hidden else piece for place, piece in enumerate(row["input_ids"])]}
        for row, hidden in zip(rows, map(set, masked), strict=True)
    ]
    (clean,) = _moments(model, encoder, rows, [visible])
    real, masks = _moments(model, encoder, with_masks, [visible, masked])
    width = len(clean[0].sum)
    return [
        LayerRank(layer, *(effective_rank(each.covariance()) / width for each in (before, after, after + added)))
        for layer, (before, after, added) in enumerate(zip(clean, real, masks, strict=True))
    ]


def _moments(model: Any, encoder: Any, rows: list[Feature], selections: list[Any]) -> list[list[Moments]]:
    """Return moments for each selection of places (one array for each row) and layer."""
    found: list[list[Moments]] = [[] for _ in selections]
    for batch, _, layers in layer_states(model, encoder, rows):
        for sums, places in zip(found, selections, strict=True):
            sums.extend(Moments(states.shape[-1]) for states in layers[len(sums) :])
            at: np.ndarray = np.repeat(np.arange(len(batch)), [len(places[row]) for row in batch])
            slots = np.concatenate([places[row] for row in batch])
            for moments, states in zip(sums, layers, strict=True):
                moments.add(states[at, slots].float().cpu().numpy())
    return found
