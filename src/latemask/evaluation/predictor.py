"""A fine-tuned model → what it says of texts: labels, probabilities, numbers, tags."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latemask.evaluation.features import UNSEEN, Features, Fit, at_words, featurize, logits_of, make_collator
from latemask.evaluation.methods import METHODS
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import MODEL, TASK_FILE
from latemask.evaluation.tasks import Examples, Kind
from latemask.ground.console import printable, progress_bar
from latemask.ground.errors import UserError
from latemask.text.tokenizer import load_tokenizer


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
            self.kind = "multilabel"
        elif config.problem_type == "regression" or (self.kind == "classification" and config.num_labels == 1):
            self.kind = "regression"
        self.labels = tuple(str(config.id2label.get(number, number)) for number in range(config.num_labels))
        self.tokenizer = load_tokenizer(self.folder)
        made = _Made.read(self.folder / TASK_FILE)
        self.columns = made.columns
        self.max_length = made.max_length or min(longest_input(config, self.tokenizer), 512)
        auto_class = AutoModelForTokenClassification if self.kind == "tagging" else AutoModelForSequenceClassification
        opened = METHODS[made.method].opened(self.folder, auto_class, made.options)
        self.model = opened or load_whole(auto_class, self.folder, str(self.folder), with_head=True)
        self.fit = Fit()
        if torch.accelerator.is_available():
            self.model.to(torch.accelerator.current_accelerator())

    def texts(self, source: str, texts: list[str], pairs: list[str] | None = None) -> Examples:
        """Return texts, or pairs of them, as examples without labels."""
        nothing: Any = [0] * len(self.labels) if self.kind == "multilabel" else 0
        return Examples(source, texts, pairs, [nothing] * len(texts))

    def sentences(self, source: str, sentences: list[list[str]]) -> Examples:
        """Return the words of sentences as examples without tags."""
        return Examples(source, sentences, None, [[0] * len(words) for words in sentences])

    def label(self, examples: Examples, with_scores: bool = False) -> list[dict[str, Any]]:
        """Return one record for each row; long texts are read in windows, and their answers averaged."""
        if not len(examples):
            return []
        features = featurize(examples, self.kind, self.tokenizer, self.max_length, to_the_end=True)
        self.fit += features.fit
        with progress_bar() as bar:
            shown = bar.add_task("labelling", total=len(features))
            collator = make_collator(self.kind, self.tokenizer)
            logits = logits_of(self.model, features.rows, collator, lambda done: bar.advance(shown, done))
        if not all(np.isfinite(row).all() for row in logits):
            raise UserError(f"the model in {printable(str(self.folder))} gives no numbers (NaN): its training diverged")
        answers = [self._answer(row) for row in logits]
        if self.kind == "tagging":
            return self._tagged(examples, features, answers, with_scores)
        records = [self._record(answer) for answer in averaged(answers, features)]
        for number, record in enumerate(records):
            record["text"] = examples.texts[number]
            if examples.pairs is not None:
                record["text_pair"] = examples.pairs[number]
        return records

    def _answer(self, logits: np.ndarray) -> np.ndarray:
        """Return probabilities, or the number of a regression."""
        import torch

        if self.kind == "regression":
            return logits[:1]
        given = torch.from_numpy(logits)
        return (given.sigmoid() if self.kind == "multilabel" else given.softmax(-1)).numpy()

    def _record(self, answer: np.ndarray) -> dict[str, Any]:
        if self.kind == "regression":
            return {"value": float(answer[0])}
        scores = self._scores(answer)
        if self.kind == "multilabel":
            return {"labels": [label for label, share in scores.items() if share >= 0.5], "scores": scores}
        best = int(answer.argmax())
        return {"label": self.labels[best], "probability": round(float(answer[best]), 6), "scores": scores}

    def _scores(self, shares: np.ndarray) -> dict[str, float]:
        return {label: round(float(share), 6) for label, share in zip(self.labels, shares, strict=True)}

    def _tagged(
        self, examples: Examples, features: Features, answers: list[np.ndarray], with_scores: bool
    ) -> list[dict[str, Any]]:
        best = [answer.argmax(-1).tolist() for answer in answers]
        tags = at_words(best, features, examples.labels, self.labels)
        records: list[dict[str, Any]] = [
            {"words": words, "tags": [None if tag == UNSEEN else self.labels[tag] for tag in sentence]}
            for words, sentence in zip(examples.texts, tags, strict=True)
        ]
        if with_scores:
            for record in records:
                record["scores"] = [None] * len(record["words"])
            for example, words, answer in zip(features.examples, features.words, answers, strict=True):
                for word, shares in zip(words, answer, strict=True):
                    records[example]["scores"][word] = self._scores(shares)
        return records


def averaged(answers: list[np.ndarray], features: Features) -> list[np.ndarray]:
    """Return the mean answer of each example's rows."""
    rows: dict[int, list[np.ndarray]] = {}
    for example, answer in zip(features.examples, answers, strict=True):
        rows.setdefault(example, []).append(answer)
    return [np.mean(rows[example], axis=0) if len(rows[example]) > 1 else rows[example][0] for example in sorted(rows)]


@dataclass(frozen=True)
class _Made:
    """What fine-tuning noted beside a model, if it did."""

    columns: dict[str, str | None] = field(default_factory=dict)
    max_length: int | None = None
    method: str = Protocol.method
    options: Any = None
    """The method's, as its dataclass."""

    @classmethod
    def read(cls, path: Path) -> _Made:
        """Read the note; older ones say nothing of the method."""
        if not path.is_file():
            return cls()
        try:
            record = json.loads(path.read_text("utf-8"))
            protocol = Protocol(method=str(record.get("method", cls.method)), options=dict(record.get("options", {})))
            columns, max_length = dict(record["columns"]), int(record["max_length"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UserError(
                f"{printable(str(path))} is damaged; without it, --text says which column to read"
            ) from None
        return cls(columns, max_length, protocol.method, protocol.of_method)
