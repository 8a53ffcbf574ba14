"""Documents → three tasks that probes answer.

origin: which library, file or label is a sentence from · order: are its words in order, or shuffled ·
follows: does the second sentence follow the first, or come from elsewhere of the same origin
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latemask.evaluation.probe_text import Document, ProbeText, is_unspaced, units
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError

FEWEST_EXAMPLES = 200
_FEWEST_OF_AN_ORIGIN = 150  # sentences; one with fewer is left out
_MOST_ORIGINS = 20  # the largest
_NAMED_ORIGINS = 10


@dataclass(frozen=True)
class ProbeTask:
    """Texts or pairs of texts, with a class each; `groups` says which come from one document."""

    name: str
    question: str
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    groups: np.ndarray


def probe_tasks(text: ProbeText, examples: int, seed: int = 0) -> list[ProbeTask]:
    """Make the tasks, of at most `examples` examples each and as many of every class; say which cannot be made."""
    rows = _rows(text.documents)
    if len(rows) < FEWEST_EXAMPLES:
        raise UserError(
            f"{printable(text.name)}: {len(rows)} different sentences of a usable length; "
            f"probes need {FEWEST_EXAMPLES} at least, give more text"
        )
    randoms = [np.random.default_rng([seed, number]) for number in range(3)]
    found = [
        _origin_task(text, rows, examples, randoms[0]),
        _order_task(rows, examples, randoms[1]),
        _follows_task(text.documents, examples, randoms[2]),
    ]
    return [task for task in found if task is not None]


def _rows(documents: list[Document]) -> list[tuple[str, int]]:
    """Return (sentence, document), each sentence once: a probe could learn by heart what stands there again."""
    first: dict[str, int] = {}
    for number, document in enumerate(documents):
        for sentence in document.sentences:
            first.setdefault(sentence, number)
    return list(first.items())


def _origin_task(
    text: ProbeText, rows: list[tuple[str, int]], examples: int, random: np.random.Generator
) -> ProbeTask | None:
    by_origin: dict[str, list[int]] = {}
    for row, (_, number) in enumerate(rows):
        by_origin.setdefault(text.documents[number].origin, []).append(row)
    enough = [name for name, places in by_origin.items() if len(places) >= _FEWEST_OF_AN_ORIGIN]
    usable = sorted(sorted(enough, key=lambda name: -len(by_origin[name]))[:_MOST_ORIGINS])
    if len(usable) < 2:
        say(
            f"not probed: which {text.origin} a sentence is from; that needs two with {_FEWEST_OF_AN_ORIGIN} different "
            f"sentences each, and there {'is one' if usable else 'is none'}"
        )
        return None
    each = min(examples // len(usable), min(len(by_origin[name]) for name in usable))
    chosen = [(row, label) for label, name in enumerate(usable) for row in random.permutation(by_origin[name])[:each]]
    texts = [rows[row][0] for row, _ in chosen]
    labels, groups = np.array([label for _, label in chosen]), np.array([rows[row][1] for row, _ in chosen])
    more = f" and {len(usable) - _NAMED_ORIGINS} more" if len(usable) > _NAMED_ORIGINS else ""
    question = f"which {text.origin} is a sentence from ({', '.join(usable[:_NAMED_ORIGINS])}{more})"
    return ProbeTask(text.origin, question, texts, None, labels, groups)


def _order_task(rows: list[tuple[str, int]], examples: int, random: np.random.Generator) -> ProbeTask:
    chosen = random.permutation(len(rows))[:examples]
    labels: np.ndarray = np.arange(len(chosen)) % 2
    intact = [rows[row][0] for row in chosen]
    texts = [text if label else _shuffled(text, random) for text, label in zip(intact, labels, strict=True)]
    groups = np.array([rows[row][1] for row in chosen])
    return ProbeTask("order", "are the words in order or shuffled", texts, None, labels, groups)


def _shuffled(text: str, random: np.random.Generator) -> str:
    words = units(text)
    while (mixed := [words[place] for place in random.permutation(len(words))]) == words:
        pass
    return ("" if is_unspaced(text) else " ").join(mixed)


def _follows_task(documents: list[Document], examples: int, random: np.random.Generator) -> ProbeTask | None:
    rows = _neighbours(documents)
    if len(rows) < FEWEST_EXAMPLES:
        say(
            f"not probed: does one sentence follow the other; that needs {FEWEST_EXAMPLES} neighbours in a paragraph, "
            f"and there are {len(rows)}"
        )
        return None
    chosen = random.permutation(len(rows))[:examples]
    labels: np.ndarray = np.arange(len(chosen)) % 2
    origins = np.array([documents[rows[row][2]].origin for row in chosen])
    seconds = [rows[row][1] for row in chosen]
    wrong = np.flatnonzero(labels == 0)
    by_origin = [wrong[origins[wrong] == origin] for origin in sorted(set(origins))]
    alone = np.array([places[0] for places in by_origin if len(places) == 1], int)  # they trade with one another
    for places in (*(places for places in by_origin if len(places) > 1), alone):
        moved = [seconds[place] for place in np.roll(places, 1)]
        for place, text in zip(places, moved, strict=True):
            seconds[place] = text
    if len(alone) == 1:  # nobody to trade with: it keeps its neighbour
        labels[alone] = 1
    firsts, groups = [rows[row][0] for row in chosen], np.array([rows[row][2] for row in chosen])
    return ProbeTask("follows", "does one sentence follow the other", firsts, seconds, labels, groups)


def _neighbours(documents: list[Document]) -> list[tuple[str, str, int]]:
    """Return (sentence, the one that follows, document), each sentence once: what is moved then follows nowhere."""
    rows = [
        (first, second, number)
        for number, document in enumerate(documents)
        for paragraph in document.paragraphs
        for first, second in pairwise(paragraph)
    ]
    counts = [Counter(row[side] for row in rows) for side in (0, 1)]
    return [row for row in rows if counts[0][row[0]] == counts[1][row[1]] == 1]
