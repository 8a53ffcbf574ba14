"""Examples → what a model takes → what it says of them. Texts longer than the encoder are counted and said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
UNSEEN = -1  # in place of a tag: the tokenizer has no piece for the word
Feature = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """How some texts fit into an encoder."""

    texts: int = 0
    cut: int = 0
    """How many were longer than the limit, and lost their end."""
    windowed: int = 0
    """How many were longer than the limit, and are read in several windows."""
    unseen: int = 0
    """Words that the tokenizer has no piece for, such as a zero-width space: nothing can be said of them."""
    longest: int = 0
    """Tokens of the longest, before it was cut."""

    def __add__(self, other: Fit) -> Fit:
        counts = {name: getattr(self, name) + getattr(other, name) for name in ("texts", "cut", "windowed", "unseen")}
        return Fit(**counts, longest=max(self.longest, other.longest))

    def lines(self, source: str, limit: int) -> Iterator[str]:
        """Say what a user should know of it."""
        for count, done in ((self.cut, "were cut"), (self.windowed, "are read in overlapping windows")):
            if count:
                yield (
                    f"{source}: {count:,} of {self.texts:,} texts are longer than {limit} tokens and {done} "
                    f"(the longest has {self.longest:,})"
                )
        if self.unseen:
            yield f"{source}: the tokenizer has no piece for {self.unseen:,} words, and the model gives them no tag"


@dataclass(frozen=True)
class Features:
    """Tokenized examples, in their order; one that is read in windows is several rows."""

    rows: list[Feature]
    examples: list[int]
    """Which example each row is of."""
    words: list[list[int]]
    """For taggers: the words of its example that each row answers for, by their numbers."""
    fit: Fit

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cut(self) -> int:
        """How many examples lost their end."""
        return self.fit.cut


def featurize(examples: Examples, kind: Kind, tokenizer: Any, max_length: int, to_the_end: bool = False) -> Features:
    """Tokenize examples, at most `max_length` tokens a row.

    Longer sentences of taggers are read in windows. Longer texts are cut, or in windows if they are read `to_the_end`.
    """
    found = Features([], [], [], Fit())
    for start in range(0, len(examples), _CHUNK):
        part = examples.taken(range(start, min(start + _CHUNK, len(examples))))
        whole = _tokenized(part, kind, tokenizer)
        lengths = [len(ids) for ids in whole.input_ids]
        rows = [[row] for row in _features(whole, part.labels, kind, tokenizer)]
        long = [number for number, length in enumerate(lengths) if length > max_length]
        if long and not (kind == "tagging" or to_the_end):
            short = _tokenized(part.taken(long), kind, tokenizer, max_length=max_length, truncation="longest_first")
            labels = [part.labels[number] for number in long]
            for number, row in zip(long, _features(short, labels, kind, tokenizer), strict=True):
                rows[number] = [row]
        elif long:
            make = _sentence_windows if kind == "tagging" else _text_windows
            for number in long:
                rows[number] = make(part.taken([number]), kind, tokenizer, max_length, whole[number])
        for number, several in enumerate(rows):
            found.examples.extend([start + number] * len(several))
            found.words.extend(row.pop(_WORDS) for row in several if kind == "tagging")
            found.rows.extend(several)
        cut = sum(len(rows[number]) == 1 for number in long) if kind != "tagging" else 0
        found = replace(found, fit=found.fit + Fit(len(part), cut, len(long) - cut, longest=max(lengths)))
    if kind == "tagging":
        words = sum(map(len, examples.texts)) - sum(map(len, found.words))
        found = replace(found, fit=found.fit + Fit(unseen=words))
    return found


def _tokenized(examples: Examples, kind: Kind, tokenizer: Any, **limit: Any) -> Any:
    settings = {"return_attention_mask": False, "verbose": False, "truncation": False, "padding": False, **limit}
    try:
        return tokenizer(examples.texts, examples.pairs, is_split_into_words=kind == "tagging", **settings)
    except Exception as error:  # the Rust library raises bare Exceptions
        raise UserError(f"{examples.source}: the tokenizer cannot take it ({one_line(error)})") from None


def _features(encoded: Any, labels: list[Any], kind: Kind, tokenizer: Any) -> list[Feature]:
    names = [name for name in ("input_ids", "token_type_ids") if name in encoded]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(encoded[name] for name in names), strict=True)]
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        row["labels"] = [float(one) for one in label] if kind == "multilabel" else label
        if kind == "tagging":
            words = encoded.word_ids(number)
            # A tag stands on the first piece of its word; nothing is predicted at the others.
            first = [word if not place or words[place - 1] != word else None for place, word in enumerate(words)]
            asked = [None if word is None or label[word] is None else word for word in first]
            row["labels"] = [IGNORED if word is None else label[word] for word in asked]
            row[_WORDS] = [word for word in asked if word is not None]
        if not row["input_ids"]:  # an empty text, and a tokenizer that puts nothing around it
            row |= {name: [tokenizer.pad_token_id if name == "input_ids" else 0] for name in names}
            row["labels"] = [IGNORED] if kind == "tagging" else row["labels"]
    return rows


def _text_windows(example: Examples, kind: Kind, tokenizer: Any, max_length: int, whole: Any) -> list[Feature]:
    """Return rows for windows of a text, or of the longer of two; two long ones are cut."""
    first, second = (sum(one == side for one in whole.sequence_ids) for side in (0, 1))
    room = max_length - sum(whole.special_tokens_mask) - min(first, second)
    limit: dict[str, Any] = {"max_length": max_length, "truncation": "longest_first"}
    if room >= max_length // 4:
        which = "longest_first" if not second else "only_second" if second > first else "only_first"
        limit |= {"truncation": which, "stride": room // 4, "return_overflowing_tokens": True}
    encoded = _tokenized(example, kind, tokenizer, **limit)
    return _features(encoded, example.labels * len(encoded.input_ids), kind, tokenizer)


def _sentence_windows(example: Examples, kind: Kind, tokenizer: Any, max_length: int, whole: Any) -> list[Feature]:
    """Return rows for windows of a sentence. A tag is asked of the window in which its word has most context."""
    (words,), (tags,) = example.texts, example.labels
    pieces = Counter(word for word in whole.word_ids if word is not None)
    room = max_length - sum(whole.special_tokens_mask)
    windows = word_windows([pieces[word] for word in range(len(words))], room)
    asked = [0] * len(words)
    for number, window in enumerate(windows):
        for word in window:
            if _context(word, window, len(words)) > _context(word, windows[asked[word]], len(words)):
                asked[word] = number
    labels = [[tags[word] if asked[word] == at else None for word in window] for at, window in enumerate(windows)]
    parts = replace(example, texts=[words[window.start : window.stop] for window in windows], labels=labels)
    encoded = _tokenized(parts, kind, tokenizer, max_length=max_length, truncation="longest_first")
    rows = _features(encoded, labels, kind, tokenizer)
    for row, window in zip(rows, windows, strict=True):
        row[_WORDS] = [window.start + word for word in row[_WORDS]]
    return [row for row in rows if row[_WORDS]]  # one that is asked nothing has no loss


def word_windows(pieces: list[int], room: int) -> list[range]:
    """Return ranges of words with at most `room` pieces each; neighbours share about half of them."""
    windows = [range(0)]
    while windows[-1].stop < len(pieces):
        start = stop = windows[-1].stop
        while (
            start - 1 > windows[-1].start
            and sum(pieces[start - 1 : stop]) <= room // 2
            and sum(pieces[start - 1 : stop + 1]) <= room  # the next word must fit, too
        ):
            start -= 1
        while stop < len(pieces) and (stop == start or sum(pieces[start : stop + 1]) <= room):
            stop += 1
        windows.append(range(start, stop))
    return windows[1:]


def _context(word: int, window: range, words: int) -> float:
    """Return how far a word is from where a window cuts its sentence; the sentence's own ends cut nothing."""
    before = math.inf if window.start == 0 else word - window.start
    after = math.inf if window.stop == words else window.stop - 1 - word
    return min(before, after)


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
                found[row] = (value[label != IGNORED] if value.ndim > 1 else value).numpy()
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
    """Return ids of classes, numbers, lists of ids of tags, or a 0 or 1 for each of several labels."""
    if kind == "regression":
        return [float(row[0]) for row in logits]
    if kind == "classification":
        return [int(row.argmax()) for row in logits]
    if kind == "multilabel":
        return [(row > 0).astype(int).tolist() for row in logits]  # a probability above one half
    return [row.argmax(-1).tolist() for row in logits]


def at_words(
    predictions: list[list[int]], features: Features, labels: list[list[int]], names: tuple[str, ...]
) -> list[list[int]]:
    """Put tags to their words. One that the tokenizer has no piece for is O, or else wrong."""
    nothing = names.index("O") if "O" in names else UNSEEN
    found = [[nothing] * len(wanted) for wanted in labels]
    for example, words, tags in zip(features.examples, features.words, predictions, strict=True):
        for word, tag in zip(words, tags, strict=True):
            found[example][word] = tag
    return found
