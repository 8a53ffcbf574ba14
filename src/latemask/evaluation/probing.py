"""`latemask probe`: what a frozen encoder knows, by linear probes on the builtin text, against a random encoder."""

from __future__ import annotations

import json as json_format
import statistics
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latemask.evaluation.builtin_tasks import ProbeTask, builtin_documents, probe_tasks
from latemask.evaluation.features import batches_by_length, evaluating, featurize, make_collator
from latemask.evaluation.results import FORMAT, provenance
from latemask.evaluation.tasks import Examples
from latemask.ground.console import printable, progress_bar
from latemask.ground.errors import UserError
from latemask.ground.files import write_json_atomically
from latemask.ground.tables import show_table

_TEST_SHARE = 0.25
_MOST_TOKENS = 128
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_KEPT_VARIANCE = 0.999


@dataclass(frozen=True)
class ProbeResult:
    """One linear probe: accuracies of this encoder and of an untrained one, for each split."""

    task: str
    question: str
    examples: int
    majority: float
    encoder: list[float]
    random: list[float]


def probe(
    encoder: str,
    *,
    examples: int = 2000,
    splits: int = 3,
    tokenizer: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> list[ProbeResult]:
    """Probe a frozen encoder on three small tasks made from text on this machine, against a random encoder.

    Args:
        encoder: Run folder, exported folder, any Hugging Face encoder folder or Hub id.
        examples: Examples of each task.
        splits: How often training and test documents are drawn anew.
        tokenizer: Tokenizer for a random: encoder.
        out: File to write the record to, as JSON.
        json: Print the record instead of a table.
    """
    if examples < 200:
        raise UserError(f"--examples {examples}: a probe needs 200 at least")
    if splits < 1:
        raise UserError(f"--splits {splits}: one at least")
    from latemask.evaluation.encoders import open_encoders  # not for --help: it loads torch

    (opened,) = open_encoders([encoder], tokenizer)
    tasks = probe_tasks(builtin_documents(), examples)
    results = probed(opened, tasks, splits)
    record = {
        "format": FORMAT,
        "made_by": [provenance()],
        "encoder": {"name": opened.name, "identity": opened.checksum},
        "probes": [asdict(result) for result in results],
    }
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(Path(out), record)
    print(json_format.dumps(record, indent=2)) if json else _show(results)
    return results


def probed(encoder: Any, tasks: list[ProbeTask], splits: int) -> list[ProbeResult]:
    """Probe an `encoders.Encoder` and an untrained one of the same shape."""
    pair = (encoder.plain(), encoder.untrained().plain())
    results = []
    with progress_bar("{task.fields[state]}") as bar:
        shown = bar.add_task("probing", total=len(tasks) * len(pair), state="")
        for task in tasks:
            scores = []
            for model in pair:
                bar.update(shown, state=task.name)
                sides = [texts for texts in (task.texts, task.pairs) if texts is not None]
                scores.append(accuracies([pooled(model, encoder, texts) for texts in sides], task, splits))
                bar.advance(shown)
            majority = float(np.bincount(task.labels).max() / len(task.labels))
            results.append(ProbeResult(task.name, task.question, len(task.labels), majority, *scores))
    return results


def pooled(model: Any, encoder: Any, texts: list[str]) -> np.ndarray:
    """Return, for each text, the mean of the last hidden states over its tokens and the state of its first token."""
    import torch  # not for --help

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

    There is a vector for each text; of pairs, those of the first texts and those of the second. They are whitened
    first, so that directions count by what they say and not by their length; how much the classifier is held back is
    chosen by cross-validation inside the training documents.
    """
    from sklearn.model_selection import GroupShuffleSplit  # not for --help
    from threadpoolctl import threadpool_limits

    drawn = GroupShuffleSplit(splits, test_size=_TEST_SHARE, random_state=0).split(vectors[0], task.labels, task.groups)
    with threadpool_limits(1):  # matrices this small lose by a second thread, and much: 12 seconds against 1
        return [_accuracy(vectors, task, train, test) for train, test in drawn]


def _accuracy(vectors: list[np.ndarray], task: ProbeTask, train: np.ndarray, test: np.ndarray) -> float:
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

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


def _show(results: list[ProbeResult]) -> None:
    rows = [["probe: accuracy, per cent", "this encoder", "random encoder", "majority"]]
    for result in results:
        scores = (_spread(result.encoder), _spread(result.random), f"{100 * result.majority:.1f}")
        rows.append([printable(result.question), *scores])
    show_table(rows)


def _spread(scores: list[float]) -> str:
    return f"{100 * statistics.median(scores):.1f} ({100 * min(scores):.1f}–{100 * max(scores):.1f})"
