"""A run that can be run: everything about it is spelled out and checked, and nothing is written yet."""

from __future__ import annotations

import shutil
import signal
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from latemask.budget.flops import planned_steps, spent
from latemask.ground.errors import UserError
from latemask.ground.precision import mixed_precision
from latemask.ground.processes import own_device, rank, world_size
from latemask.masking.batches import Batch, CandidateCollator, Collator, MaskSchedule
from latemask.masking.patterns import vocabulary_for
from latemask.masking.samples import SampleDataset
from latemask.model import complete_recipe
from latemask.model.vocabulary import pieces_new_to
from latemask.recipe import ROOT, EncoderRecipe, Recipe, Stem, batch_split, check_recipe
from latemask.references import Reference, with_reference
from latemask.text import Mixture, Vocabulary
from latemask.training.schedules import Phases
from latemask.training.trackers import refuse_missing


@dataclass(frozen=True)
class Job:
    """A recipe that is spelled out, data, steps."""

    recipe: Recipe
    data: Mixture
    steps: int
    """In all: a branch's with those of its stem."""
    stem: Stem = ROOT
    new_pieces: tuple[tuple[int, ...], ...] = ()
    """The old ids that spelled each of the last pieces, where the encoder to begin with has no rows for them."""
    reference: Reference | None = None
    """What rows are selected against, if they are."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, with all that the masking pattern needs."""
        return vocabulary_for(self.recipe.mask.pattern, self.data)

    @property
    def batch_tokens(self) -> int:
        """Tokens that a step trains on."""
        return self.recipe.train.batch_size * self.recipe.length

    @property
    def trained(self) -> list[range]:
        """The rows that this process trains on, of those that a step does: a range for each batch."""
        return self._shares(self.recipe.train.batch_size)

    @property
    def read(self) -> list[range]:
        """The rows that it reads; the same, unless rows are selected."""
        return self._shares(self.recipe.rows_read)

    def _shares(self, count: int) -> list[range]:
        """Share out the rows of a step: the processes take turns."""
        rows, _ = batch_split(self.recipe.train, world_size())
        return [range(first, min(first + rows, count)) for first in range(rank() * rows, count, world_size() * rows)]

    def flops(self, done: int) -> float:
        """Return the FLOPs of the first steps."""
        return spent(self.recipe, self.steps, done, self.stem)

    def tokens(self, done: int) -> int:
        """Return the tokens of text that the first steps train on."""
        return self.stem.tokens_at(done, self.recipe)

    def spent(self, done: int) -> dict[str, float]:
        """Return what is noted of the first steps: tokens trained on, FLOPs and, where more is read, tokens read."""
        tokens, read = self.tokens(done), self.stem.tokens_read_at(done, self.recipe)
        return {"tokens": tokens, "flops": self.flops(done), **({"tokens_read": read} if read != tokens else {})}

    def first_sample(self, step: int) -> int:
        """Return the sample that a step begins with."""
        return self.stem.first_sample(step, self.recipe.rows_read)

    def recipe_after(self, done: int) -> Recipe:
        """Return the recipe of the steps after the first `done`: at the end, [MASK]s may stand in the input."""
        return self.recipe.at(1) if done >= self.recipe.last_part(self.steps) else self.recipe

    def until(self, done: int) -> int:
        """Return the step at which what follows the first `done` steps ends: the run, or its part with late masks."""
        last_part = self.recipe.last_part(self.steps)
        return last_part if done < last_part else self.steps

    def train_samples(self, done: int, left_out: Sequence[int] = ()) -> SampleDataset:
        """Return the samples after the first `done` steps; some batches may be left out, the next then move up."""
        rows, weights = self.data.rows("train", self.recipe.length)
        return SampleDataset(
            rows,
            self.first_sample(self.steps),
            weights=weights,
            seed=self.recipe.seed,
            first=self.first_sample(done),
            gaps=[self.first_sample(number) for number in sorted(left_out)],
            gap=self.recipe.rows_read,
        )

    def collator(self, done: int) -> Collator:
        """Return what makes the batches after the first `done` steps."""
        schedule = MaskSchedule(self.recipe, self.steps, self.first_sample(0))
        return Collator.of(self.recipe_after(done), self.vocabulary, schedule)

    def batches(self, done: int, left_out: Sequence[int] = ()) -> Iterator[Any]:
        """Yield the batches of this process after the first `done` steps, `len(self.read)` for each.

        To the end of the run, or of its part with late masks. Where rows are selected, they are candidates.
        """
        starts = range(0, (self.until(done) - done) * self.recipe.rows_read, self.recipe.rows_read)
        each = (range(start + part.start, start + part.stop) for start in starts for part in self.read)
        collator: Any = self.collator(done)
        if self.reference is not None:
            collator = CandidateCollator(collator, self.reference.recipe)
        return iter(self._loader(self.train_samples(done, left_out), each, collator))

    def validation_samples(self) -> SampleDataset | None:
        """Return the samples to validate on, the same every time and in every run; None if there are none."""
        rows, weights = self.data.rows("validation", self.recipe.length)
        total = sum(weights)
        once = min((int(len(part) * total / weight) for part, weight in zip(rows, weights, strict=True)), default=0)
        count = min(max(once, 1), self.recipe.train.eval_rows) if rows else 0
        return SampleDataset(rows, count, weights=weights, shuffle=False) if count else None

    def validation_batches(self, samples: SampleDataset, done: int = 0) -> Iterator[tuple[Batch, int]]:
        """Yield the batches of this process for a model after `done` steps, and how many of their rows count.

        Every process has as many, as sharded models need: one that has none left takes the first again, for nothing.
        """
        rows, _ = batch_split(self.recipe.train, world_size())
        every = [range(first, min(first + rows, len(samples))) for first in range(0, len(samples), rows)]
        counts = [len(batch) for batch in every] + [0] * (-len(every) % world_size())
        padded = every + every[:1] * (-len(every) % world_size())
        mine = slice(rank(), None, world_size())
        loader = self._loader(samples, padded[mine], Collator.validating(self.recipe_after(done), self.data.vocabulary))
        return zip(loader, counts[mine], strict=True)

    def _loader(self, samples: SampleDataset, batches: Iterable[range], collator: Any) -> DataLoader:
        return DataLoader(
            samples,  # type: ignore[arg-type]
            batch_sampler=batches,  # type: ignore[arg-type]
            collate_fn=collator,
            num_workers=self.recipe.train.workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_ignore_signals,
        )


def _ignore_signals(worker: int) -> None:
    """Let the processes of a loader live through a signal to all of us: we need rows until the step is saved."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def plan_job(recipe: Recipe, data: Mixture, known: EncoderRecipe | None = None, stem: Stem = ROOT) -> Job:
    """Complete a recipe, which was checked, with what the data say, and refuse what cannot be trained here.

    `known` is the encoder as a run that goes on has written it down: where it began need not be there any more. `stem`
    is what a branch has behind it.
    """
    recipe = complete_recipe(recipe, data.vocabulary, known)
    check_recipe(recipe)
    batch_split(recipe.train, world_size())
    reference = _reference(recipe, data)
    recipe = with_reference(recipe, reference)
    mixed_precision(recipe.train.precision)
    init = recipe.encoder.init
    new_pieces = pieces_new_to(init, data.tokenizer, data.label) if init is not None and known is None else ()
    for part in data.parts:
        if not len(part.rows("train", recipe.length)):
            raise UserError(
                f"{part.folder} holds {part.tokens('train')} tokens to train on, less than one row of "
                f"{recipe.length}; give more text or lower --length"
            )
    steps = planned_steps(recipe, stem)
    if stem.step and steps <= stem.step:
        raise UserError(
            f"the budget pays for {steps:,} steps in all, and the branch begins at step {stem.step:,}: raise it"
        )
    if late := [step for step in recipe.train.keep_at if step > steps]:
        raise UserError(f"train.keep_at has step {late[0]:,}, and the run has {steps:,}")
    Phases.of(recipe.train, steps)
    job = Job(recipe, data, steps, stem, new_pieces, reference)
    job.vocabulary  # noqa: B018  (refused here, where the pattern needs more than there is)
    refuse_missing(recipe.train.report_to)
    if recipe.train.compile and own_device().type == "cpu" and not can_compile():
        raise UserError(
            "train.compile needs a C++ compiler and Python's headers on a CPU (g++, python3-dev); they are not here"
        )
    return job


def _reference(recipe: Recipe, data: Mixture) -> Reference | None:
    """Return what rows are selected against, and refuse what cannot be with these data and processes."""
    found = Reference.of(recipe)
    if found is not None:
        found.refuse_another_tokenizer(data.tokenizer.get_vocab(), data.label)
        at_once = world_size() * batch_split(recipe.train, world_size())[0]
        if recipe.train.sharded and recipe.rows_read % at_once:
            raise UserError(
                f"train.sharded: all processes score as many rows at a time, and the {recipe.rows_read} rows of a step "
                f"(select.keep) are no multiple of {at_once}; change select.keep or train.micro_batch_size"
            )
    return found


def can_compile() -> bool:
    """Whether torch.compile finds what it needs on a CPU."""
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return headers.is_file() and any(map(shutil.which, ("g++", "clang++", "c++")))
