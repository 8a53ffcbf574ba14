"""Three tasks made from the builtin text, so that an encoder can be probed with no file at all.

library: which library's documentation is a sentence from · order: are its words in order, or shuffled ·
follows: does the second sentence follow the first, or come from elsewhere in the same library
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from latemask.ground.errors import UserError
from latemask.text.builtin import PACKAGES, BuiltinReader

_WORDS = (6, 40)
_FEWEST_OF_A_LIBRARY = 150  # sentences; a library with fewer is left out
_END = re.compile(r"(?<=[a-z)][.!?])\s+(?=[A-Z])")
_PROSE = re.compile(r"[A-Z][\w ,;:'\"()./-]*[.!?]")


@dataclass(frozen=True)
class Document:
    """One source file's sentences, paragraph by paragraph."""

    library: str
    paragraphs: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """All of them."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]


@dataclass(frozen=True)
class ProbeTask:
    """Texts or pairs of texts, with a class each; `groups` says which come from one document."""

    name: str
    question: str
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    groups: np.ndarray


def builtin_documents(limit: int | None = None) -> list[Document]:
    """Read the prose of the builtin text."""
    read = BuiltinReader(limit).run()
    found = (Document(_library(document.id), list(_paragraphs(document.text))) for document in read)
    return [document for document in found if document.paragraphs]


def _library(identifier: str) -> str:
    inside = set(Path(identifier).parts) & set(PACKAGES)
    return min(inside) if inside and "site-packages" in identifier else "python"


def _paragraphs(text: str) -> Iterator[list[str]]:
    for paragraph in re.split(r"\n\s*\n", text):
        sentences = _END.split(" ".join(paragraph.split()))
        prose = [one for one in sentences if _WORDS[0] <= len(one.split()) <= _WORDS[1] and _PROSE.fullmatch(one)]
        if prose:
            yield prose


def probe_tasks(documents: list[Document], examples: int, seed: int = 0) -> list[ProbeTask]:
    """Make the three tasks, of about `examples` examples each and half of them, or as many, of every class."""
    makers: tuple[Callable[..., ProbeTask], ...] = (_library_task, _order_task, _follows_task)
    return [make(documents, examples, np.random.default_rng([seed, number])) for number, make in enumerate(makers)]


def _library_task(documents: list[Document], examples: int, random: np.random.Generator) -> ProbeTask:
    rows = [(text, number) for number, document in enumerate(documents) for text in document.sentences]
    by_library: dict[str, list[int]] = {}
    for row, (_, number) in enumerate(rows):
        by_library.setdefault(documents[number].library, []).append(row)
    usable = {name: places for name, places in sorted(by_library.items()) if len(places) >= _FEWEST_OF_A_LIBRARY}
    if len(usable) < 2:
        raise UserError(
            "the builtin text has too few libraries to probe with; is the standard library's source installed?"
        )
    each = min(examples // len(usable), min(map(len, usable.values())))
    chosen = [(row, label) for label, places in enumerate(usable.values()) for row in random.permutation(places)[:each]]
    texts = [rows[row][0] for row, _ in chosen]
    labels, groups = np.array([label for _, label in chosen]), np.array([rows[row][1] for row, _ in chosen])
    question = f"which library is a sentence from ({', '.join(usable)})"
    return ProbeTask("library", question, texts, None, labels, groups)


def _order_task(documents: list[Document], examples: int, random: np.random.Generator) -> ProbeTask:
    rows = [(text, number) for number, document in enumerate(documents) for text in document.sentences]
    chosen = random.permutation(len(rows))[:examples]
    labels: np.ndarray = np.arange(len(chosen)) % 2
    intact = [rows[row][0] for row in chosen]
    texts = [text if label else _shuffled(text, random) for text, label in zip(intact, labels, strict=True)]
    groups = np.array([rows[row][1] for row in chosen])
    return ProbeTask("order", "are the words in order or shuffled", texts, None, labels, groups)


def _shuffled(text: str, random: np.random.Generator) -> str:
    words = text.split()
    while (mixed := [words[place] for place in random.permutation(len(words))]) == words:
        pass
    return " ".join(mixed)


def _follows_task(documents: list[Document], examples: int, random: np.random.Generator) -> ProbeTask:
    rows = _neighbours(documents)
    chosen = random.permutation(len(rows))[:examples]
    labels: np.ndarray = np.arange(len(chosen)) % 2
    libraries = np.array([documents[rows[row][2]].library for row in chosen])
    seconds = [rows[row][1] for row in chosen]
    for library in sorted(set(libraries)):  # second sentences trade places within a library
        places = np.flatnonzero((labels == 0) & (libraries == library))
        moved = [seconds[place] for place in np.roll(places, 1)]
        for place, text in zip(places, moved, strict=True):
            seconds[place] = text
        if len(places) == 1:  # nobody to trade with: it keeps its neighbour
            labels[places] = 1
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
