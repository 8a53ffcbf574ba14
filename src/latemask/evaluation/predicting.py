"""`latemask predict`: a fine-tuned model + a file → labels."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Any

import numpy as np

from latemask.evaluation.features import UNSEEN, at_words, decided, featurize, logits_of, make_collator
from latemask.evaluation.results import MODEL, TASK_FILE
from latemask.evaluation.tables import open_source, read_table, read_words, whole_lines
from latemask.evaluation.tasks import Examples, Kind
from latemask.ground.console import json_line, printable, progress_bar, say
from latemask.ground.errors import UserError
from latemask.ground.files import write_text_atomically
from latemask.text.tokenizer import load_tokenizer


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
    predictor = Predictor(Path(model))
    found = predictor.label(predictor.read(Path(file), text, text_pair))
    lines = "".join((json_line(row) if json else _line(row)) + "\n" for row in found)
    if out is None:
        sys.stdout.write(lines)
    else:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(Path(out), lines)
    return found


def _refuse_or_pass(out: Path, file: Path, overwrite: bool) -> None:
    if out.resolve() == file.resolve():
        raise UserError(f"--out {printable(str(out))} is the file to label; choose another")
    if out.is_dir():
        raise UserError(f"--out {printable(str(out))} is a folder; name a file")
    if out.exists() and not overwrite:
        raise UserError(f"{printable(str(out))} is there already; choose another --out or pass --overwrite")


def _line(row: dict[str, Any]) -> str:
    if "tags" in row:
        pairs = zip(row["words"], row["tags"], strict=True)
        return "\n".join(f"{printable(word)}\t{printable(tag or '_')}" for word, tag in pairs) + "\n"
    first = f"{row['value']:.6g}" if "value" in row else f"{printable(row['label'])}\t{row['probability']:.4f}"
    return "\t".join([first, *(printable(row[name]) for name in ("text", "text_pair") if name in row)])


def _trained_with(path: Path) -> tuple[dict[str, str | None], int | None]:
    """Return the columns and the longest input that fine-tuning noted beside the model, if it did."""
    if not path.is_file():
        return {}, None
    try:
        record = json_format.loads(path.read_text("utf-8"))
        return dict(record["columns"]), int(record["max_length"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{printable(str(path))} is damaged; without it, --text says which column to read") from None


class Predictor:
    """A fine-tuned model and its tokenizer, loaded once."""

    def __init__(self, given: Path):
        self.folder = given / MODEL if (given / MODEL / "config.json").is_file() else given
        if not self.folder.is_dir():
            raise UserError(f"{printable(str(given))}: no such folder")
        import torch  # not for --help
        from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

        from latemask.evaluation.encoders import load_whole, longest_input
        from latemask.model.stock import stock_config

        config = stock_config(str(self.folder))
        head = (config.architectures or [""])[0]
        if not head.endswith(("ForSequenceClassification", "ForTokenClassification")):
            raise UserError(
                f"{printable(str(self.folder))} holds {head or 'a model without a head'}, not a fine-tuned model: "
                "run latemask finetune on it first"
            )
        self.kind: Kind = "tagging" if head.endswith("ForTokenClassification") else "classification"
        if config.problem_type == "multi_label_classification":
            raise UserError(f"{printable(str(self.folder))} gives several labels at once, which predict does not do")
        if config.problem_type == "regression" or (self.kind == "classification" and config.num_labels == 1):
            self.kind = "regression"
        self.labels = tuple(str(config.id2label.get(number, number)) for number in range(config.num_labels))
        self.tokenizer = load_tokenizer(self.folder)
        self.columns, max_length = _trained_with(self.folder / TASK_FILE)
        self.max_length = max_length or min(longest_input(config, self.tokenizer), 512)
        auto_class = AutoModelForTokenClassification if self.kind == "tagging" else AutoModelForSequenceClassification
        self.model = load_whole(auto_class, self.folder, str(self.folder), with_head=True)
        if torch.accelerator.is_available():
            self.model.to(torch.accelerator.current_accelerator())

    def read(self, file: Path, text: str | None, text_pair: str | None) -> Examples:
        """Read the texts of a file; columns that are not named are those of the training."""
        text = text or self.columns.get("text")
        text_pair = text_pair or self.columns.get("text_pair")
        if self.kind == "tagging":
            if file.suffix in (".csv", ".jsonl", ".parquet"):
                raise UserError(f"{printable(str(file))}: a tagger takes a word in each line, as in CoNLL files")
            sentences = read_words(file, text)
            return Examples(printable(str(file)), sentences, None, [[0] * len(words) for words in sentences])
        source = open_source(file)
        if source.format == "txt":
            if text_pair:
                raise UserError(f"{source.label}: the model takes two texts; give a table and name its columns")
            texts = [line.text.rstrip("\r\n") for line in whole_lines(source)]
            return Examples(source.label, texts, None, [0] * len(texts))
        if text is None:
            raise UserError("say which column holds the text: --text")
        table = read_table(file)
        texts = table.texts(text, "--text")
        pairs = table.texts(text_pair, "--text-pair") if text_pair else None
        return Examples(source.label, texts, pairs, [0] * len(texts))

    def label(self, examples: Examples) -> list[dict[str, Any]]:
        """Return one record for each row."""
        if not len(examples):
            raise UserError(f"{examples.source}: holds no rows")
        features = featurize(examples, self.kind, self.tokenizer, self.max_length)
        if features.cut:
            say(f"{examples.source}: {features.cut:,} texts are longer than {self.max_length} tokens and were cut")
        with progress_bar() as bar:
            shown = bar.add_task("labelling", total=len(features))
            collator = make_collator(self.kind, self.tokenizer)
            logits = logits_of(self.model, features.rows, collator, lambda done: bar.advance(shown, done))
        if not all(np.isfinite(row).all() for row in logits):
            raise UserError(f"the model in {printable(str(self.folder))} gives no numbers (NaN): its training diverged")
        if self.kind == "tagging":
            tags = at_words(decided("tagging", logits), features.words, examples.labels, self.labels)
            return [
                {"words": words, "tags": [None if tag == UNSEEN else self.labels[tag] for tag in sentence]}
                for words, sentence in zip(examples.texts, tags, strict=True)
            ]
        records: list[dict[str, Any]] = [
            {"value": float(row[0])} if self.kind == "regression" else self._class(row) for row in logits
        ]
        for number, record in enumerate(records):
            record["text"] = examples.texts[number]
            if examples.pairs is not None:
                record["text_pair"] = examples.pairs[number]
        return records

    def _class(self, logits: np.ndarray) -> dict[str, Any]:
        import torch

        shares = torch.from_numpy(logits).softmax(-1).tolist()
        best = int(logits.argmax())
        scores = {label: round(share, 6) for label, share in zip(self.labels, shares, strict=True)}
        return {"label": self.labels[best], "probability": round(shares[best], 6), "scores": scores}
