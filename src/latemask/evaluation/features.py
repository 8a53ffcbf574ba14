"""Examples → what a model takes. Texts longer than the encoder are cut, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

from latemask.evaluation.tasks import Examples, Kind
from latemask.ground.errors import UserError

IGNORED = -100  # torch's own number for a position that is no target
_CHUNK = 10_000
_WORDS = "words"
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
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{examples.source}: the tokenizer cannot take it ({reason})") from None


def _features(encoded: Any, labels: list[Any], kind: Kind, tokenizer: Any) -> list[Feature]:
    names = [name for name in ("input_ids", "token_type_ids") if name in encoded]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(encoded[name] for name in names), strict=True)]
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        row["labels"] = label
        if kind == "tagging":
            first = _first_pieces(encoded.word_ids(number))
            row["labels"] = [IGNORED if word is None else label[word] for word in first]
            row[_WORDS] = [word for word in first if word is not None]
        if not row["input_ids"]:  # an empty text, and a tokenizer that puts nothing around it
            row |= {name: [tokenizer.pad_token_id if name == "input_ids" else 0] for name in names}
            row["labels"] = [IGNORED] if kind == "tagging" else label
    return rows


def _first_pieces(words: list[int | None]) -> list[int | None]:
    """Keep the number of a word at its first piece; nothing is predicted at the others."""
    return [word if place == 0 or words[place - 1] != word else None for place, word in enumerate(words)]


def make_collator(kind: Kind, tokenizer: Any) -> Any:
    """Return the stock collator that pads a batch to its longest row."""
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no padding token, which batches of texts need")
    return (DataCollatorForTokenClassification if kind == "tagging" else DataCollatorWithPadding)(tokenizer)
