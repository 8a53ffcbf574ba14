"""Text → documents that probes are made of: the builtin text, or anybody's own, in any language.

The sentence splitters that people use (NLTK's, spaCy's, datatrove's on top of them) need a model for each language. A
probe needs no exact ones: it needs stretches of text in their order, so punctuation and lines will do.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from latemask.evaluation.tables import read_table
from latemask.ground.console import say
from latemask.text.builtin import PACKAGES, BuiltinReader
from latemask.text.reading import FilesReader, Problems
from latemask.text.sources import Piece, Source, find_sources

_WORDS = (6, 40)
_CHARACTERS = (10, 120)  # the same for scripts without spaces
_MOST_CHARACTERS = 10_000_000  # of all files together: far more than the usual number of examples takes
_SHORTEST_STRETCH = 20  # sentences
_STRETCHES = 20

_BUILTIN_END = re.compile(r"(?<=[a-z)][.!?])\s+(?=[A-Z])")
_BUILTIN_PROSE = re.compile(r"[A-Z][\w ,;:'\"()./-]*[.!?]")

_CLOSING = r"[\"'”’»)\]】」』）]*"
# Latin, Arabic, Armenian, Ethiopic, Indic, Tibetan, Burmese and Khmer stops have a space behind them, CJK ones none.
_END = re.compile(rf"[.!?…؟۔։።।॥།။។]+{_CLOSING}\s+|[。！？｡]+{_CLOSING}\s*")
# Thai, Lao, Tibetan, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Document:
    """Sentences of one document, or of a stretch of a long one; a paragraph's follow one another."""

    origin: str
    """What it is one of many of: a library, a file, a label."""
    paragraphs: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """All of them."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]


@dataclass(frozen=True)
class ProbeText:
    """What probes are made of, and what its documents' origins are called: library, file or label."""

    documents: list[Document]
    origin: str
    name: str
    """Where it is from, for records and messages."""


def builtin_text() -> ProbeText:
    """Read the prose of the builtin text."""
    read = BuiltinReader().run()
    found = (Document(_library(document.id), list(_prose(document.text))) for document in read)
    return ProbeText([document for document in found if document.paragraphs], "library", "the builtin text")


def _library(identifier: str) -> str:
    inside = set(Path(identifier).parts) & set(PACKAGES)
    return min(inside) if inside and "site-packages" in identifier else "python"


def _prose(text: str) -> Iterator[list[str]]:
    """Yield the prose of docstrings: full English sentences, no code."""
    for paragraph in re.split(r"\n\s*\n", text):
        sentences = _BUILTIN_END.split(" ".join(paragraph.split()))
        prose = [s for s in sentences if _WORDS[0] <= len(s.split()) <= _WORDS[1] and _BUILTIN_PROSE.fullmatch(s)]
        if prose:
            yield prose


def own_text(inputs: Sequence[str | Path], text_field: str = "text", label: str | None = None) -> ProbeText:
    """Read files that `prepare` reads; with `label`, tables that have such a column."""
    sources = find_sources(inputs)
    name = ", ".join(source.path for source in sources[:3]) + (f" and {len(sources) - 3} more" * (len(sources) > 3))
    if label is not None:
        most = _MOST_CHARACTERS // len(sources)
        labelled = [document for source in sources for document in _labelled(source, text_field, label, most)]
        return ProbeText(list(_stretches(labelled)), "label", name)
    names = [Path(source.path).name for source in sources]
    origins = names if len(set(names)) == len(names) else [source.path for source in sources]
    most = _MOST_CHARACTERS // len(sources)
    documents = [
        document
        for source, origin in zip(sources, origins, strict=True)
        for document in _stretches(_read(source, origin, text_field, most))
    ]
    return ProbeText(documents, "file", name)


def _labelled(source: Source, text_field: str, label: str, most: int) -> Iterator[Document]:
    table, left = read_table(source.location), most
    for text, origin in zip(table.texts(text_field, "--text-field"), table.texts(label, "--label"), strict=True):
        if left <= 0:
            say(f"{source.label}: the probes are made of its first {most:,} characters")
            return
        left -= len(text)
        if origin and (found := list(paragraphs(text))):
            yield Document(origin, found)


def _read(source: Source, origin: str, text_field: str, most: int) -> list[Document]:
    """Return the documents of a file, up to `most` characters."""
    problems, documents, left = Problems(), [], most
    for document in FilesReader([[Piece(source)]], problems, text_field=text_field).run():
        if left <= 0:
            say(f"{source.label}: the probes are made of its first {most:,} characters")
            break
        left -= len(document.text)
        documents.append(Document(origin, list(paragraphs(document.text))))
    if problems.count:
        say(f"{source.label}: {problems.count:,} rows skipped{problems.first()}")
    return [document for document in documents if document.paragraphs]


def _stretches(documents: list[Document]) -> Iterator[Document]:
    """Cut a document that is much of its file: a probe learns from some documents and is tested on others."""
    most = max(_SHORTEST_STRETCH, sum(len(document.sentences) for document in documents) // _STRETCHES)
    for document in documents:
        stretch: list[list[str]] = []
        room = most
        for paragraph in document.paragraphs:
            while len(paragraph) >= room:
                yield Document(document.origin, [*stretch, paragraph[:room]])
                stretch, paragraph, room = [], paragraph[room:], most
            if paragraph:
                stretch.append(paragraph)
                room -= len(paragraph)
        if stretch:
            yield Document(document.origin, stretch)


def paragraphs(text: str) -> Iterator[list[str]]:
    """Yield usable sentences that follow one another; one that cannot be used ends a row of them."""
    for paragraph in re.split(r"\n\s*\n", text):
        row: list[str] = []
        for sentence in [*sentences(paragraph), ""]:
            if _is_usable(sentence):
                row.append(sentence)
            elif row:
                yield row
                row = []


def sentences(text: str) -> Iterator[str]:
    """Split at punctuation and at lines; a small letter behind either says that the sentence goes on."""
    lines: list[str] = []
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        if lines and line[0].islower():
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    for line in lines:
        start = 0
        for end in (found.end() for found in _END.finditer(line)):
            if not line[end : end + 1].islower():
                yield from _phrases(line[start:end].strip())
                start = end
        yield from _phrases(line[start:].strip())


def _phrases(sentence: str) -> list[str]:
    """Where words have no spaces between them, a space is punctuation; in Thai it is the only one."""
    return sentence.split() if is_unspaced(sentence) else [sentence] if sentence else []


def is_unspaced(sentence: str) -> bool:
    """Whether most of its letters are of scripts that put no spaces between words."""
    if not _UNSPACED.search(sentence):  # quick, and true of most texts
        return False
    return 2 * len(_UNSPACED.findall(sentence)) > sum(map(str.isalpha, sentence))


def units(sentence: str) -> list[str]:
    """Return the words of a sentence, or its characters where nothing shows the words; a letter keeps its marks."""
    if not is_unspaced(sentence):
        return sentence.split()
    found: list[str] = []
    for character in sentence:
        if found and unicodedata.category(character).startswith("M"):
            found[-1] += character
        else:
            found.append(character)
    return found


def _is_usable(sentence: str) -> bool:
    """Whether it is neither too short nor too long, mostly words, and would differ if it were shuffled."""
    shortest, longest = _CHARACTERS if is_unspaced(sentence) else _WORDS
    found = units(sentence)
    with_letters = sum(any(map(str.isalpha, unit)) for unit in found)
    return shortest <= len(found) <= longest and 2 * with_letters > len(found) and len(set(found)) > 1
