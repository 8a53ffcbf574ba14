"""A model and features → predictions, in the order of the features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from latemask.evaluation.features import IGNORED, Feature
from latemask.evaluation.tasks import Kind

_BATCH_TOKENS = 8192
_LARGEST_BATCH = 256


def logits_of(
    model: Any, rows: list[Feature], collator: Any, report: Callable[[int], None] = lambda _: None
) -> list[np.ndarray]:
    """Return the model's output for every row: [classes], or [words, classes] at the first pieces of words.

    Rows of about the same length share a batch, so that little is padded.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    with evaluating(model):
        for batch in batches_by_length(rows):
            inputs = collator([rows[row] for row in batch])
            labels = inputs.pop("labels")
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            logits = model(**inputs).logits.float().cpu()
            for row, value, label in zip(batch, logits, labels, strict=True):
                found[row] = (value[label != IGNORED] if label.ndim else value).numpy()
            report(len(batch))
    return found


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout and gradients, for a while."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def batches_by_length(rows: list[Feature]) -> Iterator[list[int]]:
    """Yield row numbers in batches of about the same number of tokens, longest rows first."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"]), reverse=True)
    while order:
        size = min(_LARGEST_BATCH, max(1, _BATCH_TOKENS // len(rows[order[0]]["input_ids"])))
        yield order[:size]
        order = order[size:]


def decided(kind: Kind, logits: list[np.ndarray]) -> list[Any]:
    """Return ids of classes, numbers, or a list of ids of tags for each row."""
    if kind == "regression":
        return [float(row[0]) for row in logits]
    if kind == "classification":
        return [int(row.argmax()) for row in logits]
    return [row.argmax(-1).tolist() for row in logits]


UNSEEN = -1


def at_words(
    predictions: list[list[int]], seen: list[list[int]], labels: list[list[int]], names: tuple[str, ...]
) -> list[list[int]]:
    """Put tags to their words. One that the encoder did not see (too far back, or no piece) is O, or else wrong."""
    nothing = names.index("O") if "O" in names else UNSEEN
    rows = [[nothing] * len(wanted) for wanted in labels]
    for row, tags, words in zip(rows, predictions, seen, strict=True):
        for word, tag in zip(words, tags, strict=True):
            row[word] = tag
    return rows
