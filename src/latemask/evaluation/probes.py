"""What a frozen encoder knows: a linear classifier on its vectors, beside one on an untrained encoder's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, GroupShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from latemask.evaluation.builtin_tasks import ProbeTask
from latemask.evaluation.encoders import Encoder
from latemask.evaluation.features import featurize, make_collator
from latemask.evaluation.predictions import batches_by_length, evaluating
from latemask.evaluation.results import ProbeResult
from latemask.evaluation.tasks import Examples
from latemask.ground.console import printable, progress_bar
from latemask.ground.errors import UserError

_TEST_SHARE = 0.25
_MOST_TOKENS = 128
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_KEPT_VARIANCE = 0.999


def probed(encoder: Encoder, tasks: list[ProbeTask], splits: int) -> list[ProbeResult]:
    """Probe an encoder and an untrained one of the same shape."""
    pair = (encoder.plain(), encoder.untrained().plain())
    results = []
    with progress_bar("{task.fields[state]}") as bar:
        shown = bar.add_task("probing", total=len(tasks) * len(pair), state="")
        for task in tasks:
            scores = []
            for model in pair:
                bar.update(shown, state=task.name)
                scores.append(accuracies(_vectors(model, encoder, task), task, splits))
                bar.advance(shown)
            results.append(_result(task, *scores))
    return results


def _result(task: ProbeTask, encoder: list[float], random: list[float]) -> ProbeResult:
    majority = float(np.bincount(task.labels).max() / len(task.labels))
    return ProbeResult(task.name, task.question, len(task.labels), majority, encoder, random)


def _vectors(model: Any, encoder: Encoder, task: ProbeTask) -> list[np.ndarray]:
    """Return a vector for each text; for pairs, those of the first and those of the second texts."""
    return [pooled(model, encoder, texts) for texts in (task.texts, task.pairs) if texts is not None]


def pooled(model: Any, encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Return, for each text, the mean of the last hidden states over its tokens and the state of its first token."""
    length = min(encoder.longest, _MOST_TOKENS)
    examples = Examples("the builtin text", texts, None, [0] * len(texts))
    rows = featurize(examples, "classification", encoder.tokenizer, length).rows
    collator = make_collator("classification", encoder.tokenizer)
    found: np.ndarray = np.empty((len(rows), 2 * encoder.width), np.float32)
    with evaluating(model):
        for batch in batches_by_length(rows):
            inputs = collator([rows[row] for row in batch])
            inputs.pop("labels")
            states = model(**{name: value.to(model.device) for name, value in inputs.items()}).last_hidden_state
            mask = inputs["attention_mask"].to(states.device, states.dtype)[..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            found[batch] = torch.cat([mean, states[:, 0]], 1).float().cpu().numpy()
    if not np.isfinite(found).all():
        raise UserError(f"the encoder '{printable(encoder.name)}' gives no numbers (NaN): its training diverged")
    return found


def accuracies(vectors: list[np.ndarray], task: ProbeTask, splits: int) -> list[float]:
    """Train a linear classifier on some documents and test it on others, several times.

    Vectors are whitened first, so that directions count by what they say and not by their length; how much the
    classifier is held back is chosen by cross-validation inside the training documents.
    """
    drawn = GroupShuffleSplit(splits, test_size=_TEST_SHARE, random_state=0).split(vectors[0], task.labels, task.groups)
    with threadpool_limits(1):  # matrices this small lose by a second thread, and much: 12 seconds against 1
        return [_accuracy(vectors, task, train, test) for train, test in drawn]


def _accuracy(vectors: list[np.ndarray], task: ProbeTask, train: np.ndarray, test: np.ndarray) -> float:
    # Directions that hardly vary are left out: whitening would blow up their rounding errors.
    whitening = make_pipeline(StandardScaler(), PCA(_KEPT_VARIANCE, whiten=True, svd_solver="full"))
    whitening.fit(np.concatenate([side[train] for side in vectors]).astype(np.float64))
    sides = [whitening.transform(side.astype(np.float64)) for side in vectors]
    # Of a pair: how the two differ and how they agree, which is what a line can separate.
    inputs = sides[0] if len(sides) == 1 else np.concatenate([np.abs(sides[0] - sides[1]), sides[0] * sides[1]], 1)
    search = GridSearchCV(LogisticRegression(max_iter=200), {"C": _STRENGTHS}, cv=GroupKFold(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(inputs[train], task.labels[train], groups=task.groups[train])
    return float(search.score(inputs[test], task.labels[test]))
