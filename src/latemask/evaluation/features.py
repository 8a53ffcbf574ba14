"""Examples → what a model takes → what it says of them. Texts longer than the encoder are cut, and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from latemask.evaluation.tasks import Examples, Kind
from latemask.ground.console import one_line
from latemask.ground.errors import UserError

IGNORED = -100  # torch's own number for a position that is no target
_CHUNK = 10_000
_WORDS = "words"
_BATCH_TOKENS = 8192
_LARGEST_BATCH = 256
UNSEEN = -1  # in place of a tag: the encoder did not see the word
Feature = dict[str, Any]


@dataclass(frozen=True)
class Features:
    """Tokenized examples, in their order."""

    rows: list[Feature]
    cut: int
    """How many were longer than the limit."""
    longest: int
    """Tokens of the longest, before it was cut."""
    words: list[list[int]]
    """For taggers: which words of each row the encoder sees, by their numbers."""

    def __len__(self) -> int:
        return len(self.rows)


def featurize(examples: Examples, kind: Kind, tokenizer: Any, max_length: int) -> Features:
    """Tokenize examples, at most `max_length` tokens each."""
    rows: list[Feature] = []
    words: list[list[int]] = []
    cut = longest = 0
    for start in range(0, len(examples), _CHUNK):
        part = examples.taken(range(start, min(start + _CHUNK, len(examples))))
        whole = _tokenized(part, kind, tokenizer, None)
        lengths = [len(ids) for ids in whole.input_ids]
        long = [row for row, length in enumerate(lengths) if length > max_length]
        features = _features(whole, part.labels, kind, tokenizer)
        if long:
            shortened = _tokenized(part.taken(long), kind, tokenizer, max_length)
            labels = [part.labels[row] for row in long]
            for row, feature in zip(long, _features(shortened, labels, kind, tokenizer), strict=True):
                features[row] = feature
        words += [feature.pop(_WORDS) for feature in features] if kind == "tagging" else []
        rows += features
        cut += len(long)
        longest = max(longest, *lengths)
    return Features(rows, cut, longest, words)


def _tokenized(examples: Examples, kind: Kind, tokenizer: Any, max_length: int | None) -> Any:
    limit = {} if max_length is None else {"max_length": max_length, "truncation": "longest_first"}
    settings = {"return_attention_mask": False, "verbose": False, "truncation": False, "padding": False, **limit}
    try:
        return tokenizer(examples.texts, examples.pairs, is_split_into_words=kind == "tagging", **settings)
    except Exception as error:  # the Rust library raises bare Exceptions
        raise UserError(f"{examples.source}: the tokenizer cannot take it ({one_line(error)})") from None


def _features(encoded: Any, labels: list[Any], kind: Kind, tokenizer: Any) -> list[Feature]:
    names = [name for name in ("input_ids", "token_type_ids") if name in encoded]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(encoded[name] for name in names), strict=True)]
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        row["labels"] = label
        if kind == "tagging":
            words = encoded.word_ids(number)
            # A tag stands on the first piece of its word; nothing is predicted at the others.
            first = [word if not place or words[place - 1] != word else None for place, word in enumerate(words)]
            row["labels"] = [IGNORED if word is None else label[word] for word in first]
            row[_WORDS] = [word for word in first if word is not None]
        if not row["input_ids"]:  # an empty text, and a tokenizer that puts nothing around it
            row |= {name: [tokenizer.pad_token_id if name == "input_ids" else 0] for name in names}
            row["labels"] = [IGNORED] if kind == "tagging" else label
    return rows


def make_collator(kind: Kind, tokenizer: Any) -> Any:
    """Return the stock collator that pads a batch to its longest row."""
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no padding token, which batches of texts need")
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding  # not for --help

    return (DataCollatorForTokenClassification if kind == "tagging" else DataCollatorWithPadding)(tokenizer)


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
    import torch  # not for --help

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
