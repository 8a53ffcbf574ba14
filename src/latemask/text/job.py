"""A preparation: its settings, and the way from documents to a finished folder."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from latemask.ground.console import say
from latemask.ground.errors import HandedOver, Interrupted, UserError
from latemask.text.cleaning import Cleaning, check_language_model
from latemask.text.corpora import Corpus
from latemask.text.executors import Execution, Stage
from latemask.text.finishing import Finish, no_text
from latemask.text.prepared import MANIFEST, NOTE, PreparedData, versions
from latemask.text.progress import Meter, Watch
from latemask.text.reading import Problems
from latemask.text.sampling import sample, tasks_to_sample
from latemask.text.shards import SPLITS, ShardWriter, dropped_by
from latemask.text.tokenizer import Normalization, fill_vocabulary, load_tokenizer, save_tokenizer, vocabulary_of
from latemask.text.workplace import Workplace

RESULT = frozenset({MANIFEST, NOTE, "tokenizer", *SPLITS})
"""What a finished folder holds."""
_KEPT = "stopped. What is finished is kept: run the same command again to go on"


@dataclass(frozen=True)
class TokenizerPlan:
    """Which tokenizer: one that is there, or one to train."""

    vocab_size: int | None
    given: str | None
    sample_bytes: int
    normalize: Normalization

    @cached_property
    def reused(self) -> Any:
        """The tokenizer that is there already, or None."""
        if self.given is None:
            return None
        tokenizer = load_tokenizer(self.given)
        vocabulary_of(tokenizer)
        return tokenizer

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the tokenizer."""
        if self.given is None:
            return {
                "tokenizer": None,
                "vocab_size": self.vocab_size,
                "tokenizer_sample": self.sample_bytes,
                "normalize": self.normalize,
            }
        content = self.reused.backend_tokenizer.to_str().encode("utf-8")
        return {"tokenizer": {"path": self.given, "sha256": hashlib.sha256(content).hexdigest()}}


@dataclass(frozen=True)
class Job:
    """A preparation that can be run."""

    out: Path
    corpus: Corpus
    cleaning: Cleaning
    encoder: TokenizerPlan
    validation: float
    strict: bool

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides the result, and is compared to tell whether it is there already."""
        return {
            **self.corpus.identity,
            **asdict(self.cleaning),
            **self.encoder.settings,
            "validation": self.validation,
            "strict": self.strict,
        }

    @property
    def place(self) -> Workplace:
        """Where what is not finished lies."""
        return Workplace(self.out)

    def run(self, execution: Execution) -> PreparedData:
        """Do it, or what is left of it."""
        if self.cleaning.language:
            check_language_model(self.cleaning.language)
        lock = self.place.lock()
        try:
            with _interruptible(), execution.threads():
                return self._run(execution)
        except MemoryError:
            raise UserError("out of memory; lower --workers or --tokenizer-sample") from None
        finally:
            self.place.remove_if_useless()
            lock.release()

    def _run(self, execution: Execution) -> PreparedData:
        settings = {**self.settings, "versions": versions()}
        if self.place.goes_on(settings):
            say(f"{self.out}: going on where an earlier run stopped")
            self.place.clear_unfinished()
        else:
            self.place.start(settings, RESULT)
        self._make_tokenizer()
        stages, finish = self._stages()
        if execution.kind == "slurm":
            execution.run([*stages, Stage("finishing", [finish], 1)], self.place.folder, self.corpus.sizes)
            raise HandedOver(
                f"handed over to Slurm: when its jobs are through, {self.out / MANIFEST} is there.\n"
                "Should some fail, run the same command again: only what is missing is done"
            )
        execution.run(stages, self.place.folder, self.corpus.sizes)
        return finish.run()

    def _make_tokenizer(self) -> None:
        folder = self.out / "tokenizer"
        if folder.is_dir():  # whole, because it was moved there
            return
        encoder = self.encoder.reused or fill_vocabulary(
            self._sample(), self.encoder.vocab_size, self.encoder.normalize
        )
        aside = self.place.folder / "tokenizer"
        save_tokenizer(encoder, aside)
        aside.rename(folder)

    def _sample(self) -> list[str]:
        meter = Meter(self.place.folder / "progress" / "sampling")
        problems = Problems(self.strict)
        reader = self.corpus.reader(problems, meter)
        ranks = tasks_to_sample(self.corpus.text_sizes, self.encoder.sample_bytes)
        filters = self.cleaning.filters()
        chosen = set(ranks)
        sizes = [size if rank in chosen else 0 for rank, size in enumerate(self.corpus.sizes)]
        with Watch("sampling", sizes, meter.folder) as watch:
            texts = sample(self._texts(reader, filters, ranks, watch), self.encoder.sample_bytes)
        if not texts:
            raise no_text(problems, dropped_by(filters))
        say(f"training a tokenizer on {sum(map(len, texts)) / 1e6:,.1f} M characters")
        return texts

    def _texts(self, reader: Any, filters: list[PipelineStep], ranks: list[int], watch: Watch) -> Iterator[str]:
        for rank in ranks:
            documents = reader.run(None, rank, len(self.corpus.sizes))
            for step in filters:
                documents = step(documents, rank, len(self.corpus.sizes))
            yield from (document.text for document in documents)
            watch.finish(rank)

    def _stages(self) -> tuple[list[Stage], Finish]:
        work, tasks = self.place.folder, len(self.corpus.sizes)
        encoder = load_tokenizer(self.out / "tokenizer")
        problems = Problems(self.strict)

        def documents(stage: str) -> list[PipelineStep]:
            return [self.corpus.reader(problems, Meter(work.absolute() / "progress" / stage)), *self.cleaning.filters()]

        before = self.cleaning.stages(lambda: documents("hashing"), tasks, work)
        reader, *cleaning = [*documents("tokenizing"), *self.cleaning.duplicate_filter(work)]
        writer = ShardWriter(
            self.out,
            work,
            (self.out / "tokenizer" / "tokenizer.json").absolute(),
            encoder.convert_ids_to_tokens(vocabulary_of(encoder).eos),
            validation_limit=int(self.validation * 2**64),
            problems=problems,
            cleaning=cleaning,
        )
        pipeline = [reader, *cleaning, writer]
        return [*before, Stage("tokenizing", pipeline, tasks)], Finish(self.out, self.settings, pipeline, tasks)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the work like Ctrl-C does, and say how to go on."""

    def stop(number: int, frame: Any) -> None:
        raise Interrupted(_KEPT, number)

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(_KEPT, signal.SIGINT) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
