"""A run that can be run: everything about it is spelled out and checked, and nothing is written yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latemask.budget import planned_steps, sequence_flops, spent
from latemask.ground.errors import UserError
from latemask.masking import COLLATORS, MaskSchedule, SampleDataset
from latemask.model import complete_recipe
from latemask.recipe import Recipe, check_recipe
from latemask.text import Mixture
from latemask.text.tokenizer import load_tokenizer
from latemask.training.arguments import check_training


@dataclass(frozen=True)
class Job:
    """A run that can be run: a recipe that is spelled out, data, steps."""

    recipe: Recipe
    data: Mixture
    steps: int

    @property
    def batch_tokens(self) -> int:
        """Tokens of a step."""
        return self.recipe.train.batch_size * self.recipe.length

    @property
    def row_flops(self) -> float:
        """FLOPs of a row, forward and backward."""
        return sequence_flops(self.recipe).training

    def flops(self, done: int) -> float:
        """Return the FLOPs of the first steps."""
        return spent(self.recipe, self.steps, done)

    def collator(self) -> Any:
        """Return what draws masks and makes batches."""
        masks = MaskSchedule(self.recipe, self.steps)
        return COLLATORS[self.recipe.objective](masks, self.data.vocabulary, self.recipe.seed)

    def validation_collator(self) -> Any:
        """Return what makes batches to validate on, with the same masks in every run on the same data."""
        return COLLATORS[self.recipe.objective](self.recipe.as_validated.counts, self.data.vocabulary)

    def train_samples(self, done: int, left_out: Sequence[int] = ()) -> SampleDataset:
        """Return the samples after the first `done` steps; some batches may be left out, the next then move up."""
        batch = self.recipe.train.batch_size
        rows, weights = self.data.rows("train", self.recipe.length)
        return SampleDataset(
            rows,
            self.steps * batch,
            weights=weights,
            seed=self.recipe.seed,
            first=done * batch,
            gaps=[number * batch for number in sorted(left_out)],
            gap=batch,
        )

    def validation_samples(self) -> SampleDataset | None:
        """Return the samples to validate on, the same every time and in every run; None if there are none."""
        rows, weights = self.data.rows("validation", self.recipe.length)
        total = sum(weights)
        once = min((int(len(part) * total / weight) for part, weight in zip(rows, weights, strict=True)), default=0)
        count = min(max(once, 1), self.recipe.train.eval_rows) if rows else 0
        return SampleDataset(rows, count, weights=weights, shuffle=False) if count else None


def plan_job(recipe: Recipe, data: Mixture) -> Job:
    """Complete a recipe, which was checked, with what the data say, and refuse what cannot be trained."""
    recipe = complete_recipe(recipe, data.vocabulary)
    check_recipe(recipe)
    check_training(recipe.train)
    _check_tokenizer(recipe, data)
    for part in data.parts:
        if not len(part.rows("train", recipe.length)):
            raise UserError(
                f"{part.folder} holds {part.tokens('train')} tokens to train on, less than one row of "
                f"{recipe.length}; give more text or lower --length"
            )
    return Job(recipe, data, planned_steps(recipe))


def _check_tokenizer(recipe: Recipe, data: Mixture) -> None:
    """A checkpoint goes on only with the tokenizer it was trained with."""
    start = recipe.encoder.init
    if start is None:
        return
    if load_tokenizer(start).get_vocab() != data.tokenizer.get_vocab():
        raise UserError(
            f"{data.label} was prepared with another tokenizer than the encoder at '{start}'; "
            f"prepare the data with --tokenizer {start}"
        )
