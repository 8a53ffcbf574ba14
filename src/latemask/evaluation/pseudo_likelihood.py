"""Sentences → their pseudo-log-likelihoods: each token is hidden in turn while all the others are visible.

Sentences of one length share a batch, so that nothing is padded, and the head works at the hidden token alone. What
shares a batch is a function of all sentences: whoever goes on after a kill gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from latemask.evaluation.language_models import LanguageModel

Metric = Literal["token", "word"]
_BATCH_TOKENS = 2048
_NO_WORD = -1


@dataclass(frozen=True)
class Sentences:
    """Tokenized sentences."""

    ids: list[np.ndarray]
    words: list[np.ndarray]
    """The word that each token is a piece of; -1 for what the tokenizer put around the text."""

    def __len__(self) -> int:
        return len(self.ids)

    def chunks(self, numbers: Iterable[int], most: int) -> list[list[int]]:
        """Divide sentences into those that share a batch, by length, shortest first; none is longer than `most`.

        Hiding every token of a chunk makes a batch of the wanted size, or a few where one sentence is more than that.
        """
        by_length: dict[int, list[int]] = {}
        for number in numbers:
            by_length.setdefault(len(self.ids[number]), []).append(number)
        found = []
        for length, same in sorted(by_length.items()):
            size = max(1, _BATCH_TOKENS // length**2)
            found += [same[start : start + size] for start in range(0, len(same), size)] if length <= most else []
        return found


def tokenized(sentences: Sequence[str], tokenizer: Any) -> Sentences:
    """Tokenize sentences, with what the tokenizer puts around them."""
    encoded = tokenizer(list(sentences), truncation=False, padding=False, verbose=False)
    words = []
    for number in range(len(sentences)):
        inside = encoded.word_ids(number)
        words.append(np.array([_NO_WORD if word is None else word for word in inside], dtype=np.int64))
    return Sentences([np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]], words)


def scored(
    model: LanguageModel, sentences: Sentences, chunks: Sequence[list[int]], metric: Metric
) -> Iterator[list[float]]:
    """Yield the scores of chunks, in their order.

    On a CPU every thread has chunks of its own: matrices this small lose a tenth of the time by being shared.
    """
    threads = torch.get_num_threads() if model.hidden.model.device.type == "cpu" else 1

    @torch.inference_mode()
    def score(chunk: list[int]) -> list[float]:
        return score_chunk(model, sentences, chunk, metric)

    pool = ThreadPoolExecutor(threads)
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield from pool.map(score, chunks)
    finally:
        pool.shutdown(cancel_futures=True)
        if threads > 1:
            torch.set_num_threads(threads)


def score_chunk(model: LanguageModel, sentences: Sentences, chunk: list[int], metric: Metric) -> list[float]:
    """Return the pseudo-log-likelihoods, in nats, of sentences of one length."""
    ids, words = (np.stack([of[number] for number in chunk]) for of in (sentences.ids, sentences.words))
    rows, places = np.nonzero(words != _NO_WORD)
    found = np.empty(len(rows))
    for batch, is_hidden in _batches(words, rows, places, metric):
        found[batch] = _log_probabilities(model, ids[rows[batch]], is_hidden)
    # Exact sums: what is said of the same tokens is the same, in whatever order they stand.
    return [math.fsum(found[rows == number]) for number in range(len(chunk))]


def _batches(
    words: np.ndarray, rows: np.ndarray, places: np.ndarray, metric: Metric
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (which tokens, what is hidden [B, S]); as many positions are hidden in every row of a batch.

    By word, the rest of the word is hidden with a token: else its end would give its beginning away.
    """
    place = np.arange(words.shape[1])
    is_hidden = place == places[:, None]
    if metric == "word":
        is_hidden = (words[rows] == words[rows, places][:, None]) & (place >= places[:, None])
    counts = is_hidden.sum(1)
    size = max(1, _BATCH_TOKENS // words.shape[1])
    for count in np.unique(counts):
        same = np.flatnonzero(counts == count)
        for start in range(0, len(same), size):
            batch = same[start : start + size]
            yield batch, is_hidden[batch]


def _log_probabilities(model: LanguageModel, ids: np.ndarray, is_hidden: np.ndarray) -> np.ndarray:
    """Return the logarithm of the probability of the first hidden token of each row."""
    device = model.hidden.model.device
    wanted = torch.from_numpy(ids[np.arange(len(ids)), is_hidden.argmax(1)]).to(device)
    hidden = torch.from_numpy(is_hidden).to(device)
    seen = torch.from_numpy(ids).to(device).masked_fill(hidden, model.tokenizer.mask_token_id)
    logits = model.hidden.logits(seen, hidden).float()
    # Not cross_entropy: it would keep a whole table of log-probabilities.
    chosen = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)
    return np.asarray(chosen.double().cpu().numpy())
