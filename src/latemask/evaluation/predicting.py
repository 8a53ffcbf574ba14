"""`latemask predict`: a fine-tuned model + a file → labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from latemask.ground.console import json_line, printable
from latemask.ground.errors import UserError


def predict(
    model: Path,
    file: Path,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    out: Path | None = None,
    json: bool = False,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Label a file with a fine-tuned model: one line for each of its rows, in their order.

    Args:
        model: Folder that `latemask finetune` wrote, or any fine-tuned Hugging Face classifier or tagger.
        file: CSV, TSV, JSONL or Parquet; .txt with a text in each line; for a tagger a word in each line.
        text: Column with the text; by default the one it was trained with.
        text_pair: Column with a second text; by default the one it was trained with.
        out: File to write; by default standard output.
        json: Write JSON lines with every class's probability instead of tab-separated text.
        overwrite: Replace a file that --out names.
    """
    if out is not None:
        _refuse_or_pass(Path(out), Path(file), overwrite)
    from latemask.evaluation.predictor import Predictor  # not for --help: it loads torch

    predictor = Predictor(Path(model))
    examples = predictor.read(Path(file), text, text_pair)
    found = predictor.label(examples)
    with _opened(out) as target:
        for row in found:
            target.write((json_line(row) if json else _line(row)) + "\n")
    return found


def _refuse_or_pass(out: Path, file: Path, overwrite: bool) -> None:
    if out.resolve() == file.resolve():
        raise UserError(f"--out {printable(str(out))} is the file to label; choose another")
    if out.is_dir():
        raise UserError(f"--out {printable(str(out))} is a folder; name a file")
    if out.exists() and not overwrite:
        raise UserError(f"{printable(str(out))} is there already; choose another --out or pass --overwrite")


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    aside = Path(out).with_name(f".{Path(out).name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        yield file
    aside.replace(out)


def _line(row: dict[str, Any]) -> str:
    if "tags" in row:
        pairs = zip(row["words"], row["tags"], strict=True)
        return "\n".join(f"{printable(word)}\t{printable(tag or '_')}" for word, tag in pairs) + "\n"
    first = f"{row['value']:.6g}" if "value" in row else f"{printable(row['label'])}\t{row['probability']:.4f}"
    return "\t".join([first, *(printable(row[name]) for name in ("text", "text_pair") if name in row)])
