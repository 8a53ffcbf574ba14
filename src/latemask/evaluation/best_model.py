"""The model that finetune leaves behind: the best of its runs on dev."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from latemask.evaluation.cells import Prepared
from latemask.evaluation.grid import Saver
from latemask.evaluation.results import Cell, Results
from latemask.ground.files import write_json_atomically
from latemask.text.tokenizer import save_tokenizer

TASK_FILE = "latemask-task.json"


def keep_best(folder: Path, results: Results) -> Saver:
    """Return what saves a model that is better on dev than all before it."""

    def save(cell: Cell, model: Any, prepared: Prepared) -> None:
        if model is None or any(other.score >= cell.score for other in results.cells):
            return
        aside = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        model.save_pretrained(str(aside))
        save_tokenizer(prepared.encoder.tokenizer_for(prepared.task.kind), aside)
        task = prepared.task
        write_json_atomically(
            aside / TASK_FILE,
            {"task": task.name, "kind": task.kind, "columns": task.columns, "max_length": prepared.max_length},
        )
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)

    return save
