"""Samples worth their compute: what a recipe says of them, and what it cannot."""

from __future__ import annotations

from dataclasses import dataclass

_NEAR = 1e-6  # of a whole number of rows: keep is written with a few digits


@dataclass(frozen=True)
class SelectRecipe:
    """Which rows are trained on (all of them without a reference)."""

    reference: str | None = None
    """A finished run, or the folder of a pre-training model, with the same tokenizer: of the rows of a step, those are
    trained on whose loss is highest above its loss. By default all are."""
    keep: float = 0.1
    """Share of the rows that is trained on: train.batch_size / select.keep are read and scored for every step."""
    reference_flops: float | None = None
    """FLOPs of the reference's forward pass over a row: found when the run begins."""
    reference_weights: int | None = None
    """Weights of the reference: found when the run begins."""

    def rows(self, batch_size: int) -> int:
        """Return how many rows a step reads to train on so many."""
        return batch_size if self.reference is None else round(batch_size / self.keep)

    def problem(self, batch_size: int) -> str | None:
        """Say what cannot be."""
        if self.reference is None:
            keeps = self.keep != SelectRecipe.keep
            return f"select.keep {self.keep:g} says nothing without select.reference" if keeps else None
        if self.keep == 1:
            return "select.keep 1 trains on every row, scored for nothing: leave out select.reference, or keep less"
        rows = self.rows(batch_size)
        if abs(batch_size / self.keep - rows) <= _NEAR * rows:
            return None
        rows = max(rows, batch_size + 1)
        return (
            f"select.keep {self.keep:g} of {batch_size / self.keep:.2f} rows are train.batch_size {batch_size}, and "
            f"rows are whole: the nearest that works is {batch_size / rows:.7g}, of {rows:,}"
        )
