"""Samples worth their compute, SRHO-style: of the rows that a step reads, it trains on those with the most to learn.

That is the mean loss of a row less a reference's, on the same masks. Which rows these are is a function of weights and
samples, and no checkpoint holds anything of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from latemask.ground.processes import sum_over_all
from latemask.masking.batches import Batch, Candidates
from latemask.model import load_model

if TYPE_CHECKING:
    from latemask.training.job import Job
    from latemask.training.loop import Loop


class Selection:
    """Chooses the rows of a step, over all processes: the best of all, whoever scored them."""

    def __init__(self, job: Job, done: int, device: torch.device, reference: Any = None):
        assert job.reference is not None
        self.job, self.done = job, done
        model = load_model(job.reference.model) if reference is None else reference
        self.reference = model.to(device).eval().requires_grad_(False)
        self.samples = job.train_samples(0)
        self.collator = job.collator(done)

    def chosen(self, loop: Loop, parts: Sequence[Candidates]) -> list[Batch]:
        """Return the batches that this process trains on, of parts that it has read.

        Equal rows are taken in the order of their samples, and so are those that were chosen. A loss that is no number
        comes first: the step will say so.
        """
        spared = sum_over_all(self.spared(loop, parts))
        best = spared.sort(descending=True, stable=True).indices[: self.job.recipe.train.batch_size]
        first = parts[0].indices[0] - self._places(parts[0])[0]
        return self._batches(first + np.sort(best.cpu().numpy()))

    def spared(self, loop: Loop, parts: Sequence[Candidates]) -> Tensor:
        """Return the loss that each row would be spared if the model were the reference; 0 for what is in no part."""
        spared = torch.zeros(self.job.recipe.rows_read, device=loop.device)
        with loop.looking():
            for part in parts:
                with loop.computing():
                    own = loop.model.row_losses(**part.own.to(loop.device))
                    theirs = self.reference.row_losses(**part.theirs.to(loop.device))
                spared[torch.from_numpy(self._places(part)).to(loop.device)] = own - theirs
        return spared

    def _places(self, part: Candidates) -> np.ndarray:
        """Return where samples stand among those of their step."""
        return (part.indices - self.job.first_sample(0)) % self.job.recipe.rows_read

    def _batches(self, indices: np.ndarray) -> list[Batch]:
        """Read samples that others may have scored once more: a sample is a function of its number."""
        mine = (indices[part.start : part.stop] for part in self.job.trained)
        return [self.collator(self.samples.__getitems__((part - self.samples.first).tolist())) for part in mine]
