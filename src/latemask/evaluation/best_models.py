"""The best model of each task: where it is kept, and what its folder says of itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from latemask import __version__
from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import MODEL, MODELS, TASK_FILE, Results, Trial
from latemask.evaluation.trials import Prepared
from latemask.ground.console import printable
from latemask.ground.files import replace_folder, write_json_atomically, write_text_atomically
from latemask.ground.tables import escaped
from latemask.text.tokenizer import save_tokenizer

_TEMPLATE = """\
---
library_name: {library}
tags: [latemask, {method}]
---

# {task}, by {encoder}

{encoder}, fine-tuned on {task} with latemask {version} by `{method}`{options}: {score:.1f} on dev ({metrics}),
learning rate {rate:g}, seed {seed}, epoch {epoch}.
Of the encoder {trained:,} weights were trained; what is new in it takes {stored:,} bytes.
{beside}
## Use

```python
{code}
```

`latemask predict path/to/this/folder FILE` labels a file.
"""
WEIGHTS = "model.safetensors"  # of a stock folder
_STOCK = """from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = {auto_class}.from_pretrained("path/to/this/folder")"""
_OWN = """from latemask.evaluation.predictor import Predictor

predictor = Predictor("path/to/this/folder")
predictor.label(predictor.texts("mine", ["Some text."]))"""


def may_be_kept(encoder: str, results: Results) -> bool:
    """Whether its model is one to keep: a never-trained one is so only where nothing else is."""
    return not results.is_control(encoder) or all(map(results.is_control, results.encoders))


def keep_if_best(trial: Trial, model: Any, prepared: Prepared, results: Results) -> None:
    """Save a model that is better on dev than all before it."""
    rivals = (other for other in results.trials if other.task == trial.task and may_be_kept(other.encoder, results))
    if not any(other.score >= trial.score for other in rivals):
        save_model(model_folders(results)[trial.task], model, prepared, trial)


def save_model(folder: Path, model: Any, prepared: Prepared, trial: Trial) -> bool:
    """Write a model with a note and a card; one that is there is replaced. Say whether the method keeps one at all."""
    task, protocol = prepared.task, prepared.protocol
    method = METHODS[protocol.method]
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    beside = method.card(model)  # before the method makes a stock model of it
    if not method.save(model, aside, protocol):
        shutil.rmtree(aside)
        return False
    save_tokenizer(prepared.encoder.tokenizer_for(task.kind), aside)
    note = {"task": task.name, "kind": task.kind, "columns": task.columns, "max_length": prepared.max_length}
    made = {"encoder": prepared.encoder.name, "method": protocol.method, "options": asdict(protocol.of_method)}
    write_json_atomically(aside / TASK_FILE, {**note, **made})
    is_stock = (aside / WEIGHTS).is_file()
    write_text_atomically(aside / "README.md", _card(trial, protocol, beside, task.kind, is_stock))
    replace_folder(aside, folder)
    return True


def _card(trial: Trial, protocol: Protocol, beside: str, kind: str, is_stock: bool) -> str:
    """Return the folder's README."""
    head = "Token" if kind == "tagging" else "Sequence"
    given = protocol.options_in_words
    return _TEMPLATE.format(
        library="transformers" if is_stock else "latemask",
        version=__version__,
        method=protocol.method,
        options=f" ({escaped(given)})" if given else "",
        task=escaped(printable(trial.task)),
        encoder=escaped(printable(trial.encoder)),
        score=100 * trial.score,
        metrics=", ".join(f"{name} {100 * value:.1f}" for name, value in trial.metrics.items() if value is not None),
        rate=trial.learning_rate,
        seed=trial.seed,
        epoch=trial.epoch,
        trained=trial.trained_weights,
        stored=trial.stored_bytes,
        beside=f"\n{beside}\n" if beside else "",
        code=_STOCK.format(auto_class=f"AutoModelFor{head}Classification") if is_stock else _OWN,
    )


def model_folders(results: Results) -> dict[str, Path]:
    """Return where the best model of each task is kept, if it is: OUT/model, or of several tasks OUT/models/TASK."""
    out, tasks = results.path.parent, list(results.tasks)
    return {task: out / MODELS / folder_name(task) for task in tasks} if len(tasks) > 1 else {tasks[0]: out / MODEL}


def folder_name(task: str) -> str:
    """Return a name for a folder: another one for every task, and none that leads out of the folder it is in."""
    name = "".join(c if c.isalnum() or c in "-_. " else quote(c, safe="") for c in task)
    return f"%2E{name[1:]}" if name.startswith(".") else name


def part_models(results: Results) -> None:
    """Put the one model of a folder to those of the other tasks, as soon as there are others."""
    alone, folders = results.path.parent / MODEL, model_folders(results)
    if len(folders) == 1 or not (alone / TASK_FILE).is_file():
        return
    try:
        folder = folders.get(json.loads((alone / TASK_FILE).read_text("utf-8"))["task"])
    except (ValueError, LookupError, TypeError, RecursionError):
        folder = None  # damaged: it stays where it is, and predict says so
    if folder is not None:
        folder.parent.mkdir(exist_ok=True)
        replace_folder(alone, folder)
