"""`latemask probe`: what a frozen encoder knows, by linear probes on its states, against a random encoder."""

from __future__ import annotations

import itertools
import json as json_format
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latemask.evaluation.effective_rank import ranked
from latemask.evaluation.layers import pooled
from latemask.evaluation.probe_records import (
    LayerScores,
    ProbeRecord,
    ProbeResult,
    last_layer,
    layer_rows,
    layer_words,
    probe_rows,
    rank_rows,
    rank_words,
)
from latemask.evaluation.probe_tasks import FEWEST_EXAMPLES, ProbeTask, probe_tasks
from latemask.evaluation.probe_text import ProbeText, builtin_text, own_text
from latemask.evaluation.results import provenance
from latemask.ground.errors import UserError
from latemask.ground.files import refuse_or_pass
from latemask.ground.tables import show_table
from latemask.recipe import load_recipe
from latemask.run_folder import RunFolder
from latemask.text.progress import ProgressWatch

_TEST_SHARE = 0.25
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_KEPT_VARIANCE = 0.999
_FEWEST_DOCUMENTS = 8  # of which six are to learn from, in three parts
_PASSAGE = 4  # sentences


def probe(
    encoder: str,
    *,
    text: Sequence[Path] | None = None,
    text_field: str = "text",
    label: str | None = None,
    layers: bool = False,
    rank: bool = False,
    examples: int = 2000,
    splits: int = 3,
    tokenizer: str | None = None,
    out: Path | None = None,
    json: bool = False,
    overwrite: bool = False,
) -> ProbeRecord:
    """Probe a frozen encoder on small tasks made from text, against a random encoder.

    Args:
        encoder: Run folder, exported folder, any Hugging Face encoder folder or Hub id.
        text: Files or folders to make the tasks from, in any language; without it, text on this machine.
        text_field: Column of the text in JSONL, CSV, TSV, Parquet and Arrow files.
        label: Column of a class in such files: ask which class a sentence is from, not which file.
        layers: Probe every layer and the mean of the last four, to see which one to take.
        rank: Measure how many dimensions each layer uses, with and without [MASK]s in the input.
        examples: Examples of each task.
        splits: How often training and test documents are drawn anew.
        tokenizer: Tokenizer for a random: encoder.
        out: File to write the record to, as JSON.
        json: Print the record instead of tables.
        overwrite: Replace a file that --out names.
    """
    if examples < FEWEST_EXAMPLES:
        raise UserError(f"--examples {examples}: a probe needs {FEWEST_EXAMPLES} at least")
    if splits < 1:
        raise UserError(f"--splits {splits}: one at least")
    if text is None and label is not None:
        raise UserError("--label is a column of the files that --text gives, and there is no --text")
    if out is not None:
        refuse_or_pass(Path(out), [Path(file) for file in text or ()], overwrite)
    from latemask.evaluation.encoders import open_encoders  # not for --help: it loads torch

    (opened,), objective = open_encoders([encoder], tokenizer), _objective(encoder)
    read = builtin_text() if text is None else own_text(text, text_field, label)
    tasks = probe_tasks(read, examples)
    measured = ranked(opened, _passages(read, examples)) if rank else None
    results = probed(opened, tasks, splits, layers)
    record = ProbeRecord(opened.name, opened.checksum, objective, read.name, results, measured, [provenance()])
    if out is not None:
        record.write(Path(out))
    print(json_format.dumps(record.as_record(), indent=2)) if json else show(record)
    return record


def _passages(text: ProbeText, most: int) -> list[str]:
    """Draw a few sentences at a time: tokens in more context than that of one."""
    paragraphs = [paragraph for document in text.documents for paragraph in document.paragraphs]
    found = [
        " ".join(paragraph[start : start + _PASSAGE])
        for paragraph in paragraphs
        for start in range(0, len(paragraph), _PASSAGE)
    ]
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))[:most]]


def _objective(encoder: str) -> str | None:
    """Return what a run ended with, which may not be what it began with."""
    file = RunFolder(Path(encoder)).recipe_file
    return load_recipe(file).at(1).objective if file.is_file() else None


def probed(encoder: Any, tasks: list[ProbeTask], splits: int, every_layer: bool = False) -> list[ProbeResult]:
    """Probe an `encoders.Encoder` and an untrained one of the same shape."""
    pair = (encoder.plain(), encoder.untrained().plain())
    layers = encoder.config.num_hidden_layers + 2 if every_layer else 1
    results = []
    with ProgressWatch("probing", [1] * (len(tasks) * len(pair) * layers)) as watch:
        steps = itertools.count()
        for task in tasks:
            ours, theirs = (
                _scores(model, encoder, task, splits, every_layer, lambda: watch.finish(next(steps))) for model in pair
            )
            found = [LayerScores(name, ours[name], theirs[name]) for name in ours]
            last = last_layer(found)
            majority = float(np.bincount(task.labels).max() / len(task.labels))
            counted = (task.name, task.question, len(task.labels), majority, last.encoder, last.random)
            results.append(ProbeResult(*counted, found if every_layer else []))
    return results


def _scores(
    model: Any, encoder: Any, task: ProbeTask, splits: int, every_layer: bool, report: Callable[[], None]
) -> dict[str, list[float]]:
    texts = [side for side in (task.texts, task.pairs) if side is not None]
    sides = [pooled(model, encoder, side, every_layer) for side in texts]
    found = {}
    for layer in sides[0]:
        found[layer] = accuracies([side[layer] for side in sides], task, splits)
        report()
    return found


def accuracies(vectors: list[np.ndarray], task: ProbeTask, splits: int) -> list[float]:
    """Train a linear classifier on some documents and test it on others, several times.

    There is a vector for each text; of pairs, those of the first texts and those of the second. They are whitened
    first, so that directions count by what they say and not by their length; how much the classifier is held back is
    chosen by cross-validation inside the training documents.
    """
    from sklearn.model_selection import GroupShuffleSplit  # not for --help
    from threadpoolctl import threadpool_limits

    if (documents := len(np.unique(task.groups))) < _FEWEST_DOCUMENTS:
        needed = f"{_FEWEST_DOCUMENTS} documents or long stretches of them"
        raise UserError(f"the probe '{task.name}' needs {needed} to learn from and to test on, not {documents}")
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


def show(record: ProbeRecord) -> None:
    """Print the tables of a record, and below each what it says."""
    print("accuracy of linear probes, per cent")
    show_table(probe_rows(record.probes))
    if record.probes[0].layers:
        print("accuracy layer by layer, per cent")
        show_table(layer_rows(record.probes))
        print("\n".join(layer_words(record.probes)))
    if record.rank is not None:
        print(f"effective rank: dimensions that hold {record.rank.share:.0%} of the variance, % of the width")
        show_table(rank_rows(record.rank))
        print("\n".join(rank_words(record.rank, record.objective)))
