"""What may be taken out of a corpus, with datatrove's blocks: short documents, other languages, duplicates."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import LambdaFilter, LanguageFilter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from latemask.ground.console import one_line
from latemask.ground.errors import UserError
from latemask.text.executors import Stage

Dedup = Literal["exact", "minhash"]
_HASHES = HashConfig(hash_fc="sha1")  # in Python itself
_MINHASH = MinhashConfig(hash_config=_HASHES)
_MOST_FINDERS = 64


def _text_of(document: Document) -> str:  # datatrove reads the annotation: no lambda, no attrgetter
    return document.text


_EXACT = ExactDedupConfig(content_getter=_text_of, hash_config=_HASHES)


@dataclass(frozen=True)
class Cleaning:
    """Which documents to leave out."""

    min_chars: int = 0
    language: str | None = None
    dedup: Dedup | None = None

    def filters(self) -> list[PipelineStep]:
        """Return the steps that judge a document by itself."""
        steps: list[PipelineStep] = []
        if self.min_chars:
            steps.append(_named(LambdaFilter(partial(_is_long, self.min_chars)), f"shorter than {self.min_chars}"))
        if self.language:
            steps.append(_language_filter(self.language))
        return steps

    def duplicate_filter(self, work: Path) -> list[PipelineStep]:
        """Return the step that leaves out what `stages` found."""
        if self.dedup == "exact":
            return [_named(ExactDedupFilter(_sub(work, "duplicates"), _EXACT), "duplicates")]
        if self.dedup == "minhash":
            return [_named(MinhashDedupFilter(_sub(work, "remove")), "near-duplicates")]
        return []

    def stages(self, documents: Callable[[], list[PipelineStep]], tasks: int, work: Path) -> list[Stage]:
        """Return what has to run over all documents before duplicates are known."""
        signatures, pairs = _sub(work, "signatures"), _sub(work, "pairs")
        duplicates, remove = _sub(work, "duplicates"), _sub(work, "remove")
        if self.dedup == "exact":
            finders = min(tasks, _MOST_FINDERS)
            return [
                Stage("hashing", [*documents(), ExactDedupSignature(signatures, _EXACT, finders)], tasks),
                Stage("comparing", [ExactFindDedups(signatures, duplicates, _EXACT)], finders),
            ]
        if self.dedup == "minhash":
            return [
                Stage("hashing", [*documents(), MinhashDedupSignature(signatures, _MINHASH, _Words())], tasks),
                Stage("comparing", [MinhashDedupBuckets(signatures, pairs, config=_MINHASH)], _MINHASH.num_buckets),
                Stage("clustering", [MinhashDedupCluster(pairs, remove, config=_MINHASH)], 1),
            ]
        return []


def _is_long(min_chars: int, document: Document) -> bool:
    return len(document.text) >= min_chars


def _named(step: Any, name: str) -> PipelineStep:
    step.name = name
    return step


def _language_filter(languages: str) -> PipelineStep:
    try:
        step = LanguageFilter([code.strip() for code in languages.split(",")])
    except ImportError:
        raise UserError("--language needs one more package: pip install 'latemask[language]'") from None
    return _named(step, f"not {languages}")


def check_language_model(language: str) -> None:
    """Load the model that tells languages apart, or say why not: better now than in every task."""
    step: Any = _language_filter(language)
    try:
        step.model.model.predict("a few words")
    except Exception as error:  # of whatever stands between us and the file
        raise UserError(
            f"--language: the model that tells languages apart cannot be downloaded from {step.model.MODEL_URL} "
            f"({one_line(error, 150)}); once it is on this machine, no connection is needed"
        ) from None
    step.model._model = None


class _Words(WordTokenizer):
    """Words of any language, without a language's package: runs of letters and digits, CJK character by character."""

    _WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")

    def word_tokenize(self, text: str) -> list[str]:
        return self._WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError  # shingles are made of words

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError


def _sub(work: Path, name: str) -> str:
    return str(work.absolute() / "dedup" / name)
