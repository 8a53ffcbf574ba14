"""A preparation: its settings, and the way from documents to a finished folder."""

from __future__ import annotations

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
from latemask.text.new_pieces import extended, refuse_other_kinds, save_extended
from latemask.text.ngram_table import one_in
from latemask.text.prepared import MANIFEST, PreparedData, versions
from latemask.text.progress import Meter, ProgressWatch
from latemask.text.reading import Problems
from latemask.text.shards import ShardWriter, dropped_by
from latemask.text.tokenizer import (
    READ_PER_SAMPLED,
    TokenizerPlan,
    evenly_spread,
    fill_vocabulary,
    load_tokenizer,
    sample,
    save_tokenizer,
    vocabulary_of,
)
from latemask.text.workplace import Finish, Workplace, no_text

_KEPT = "stopped. What is finished is kept: run the same command again to go on"


@dataclass(frozen=True)
class Preparation:
    """A preparation that can be run."""

    out: Path
    corpus: Corpus
    cleaning: Cleaning
    tokenizer: TokenizerPlan
    validation: float
    strict: bool
    keeps_ngrams: bool = True
    """Not among the settings: data without n-grams are no other data."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides the result, and is compared to tell whether it is there already."""
        known = {**self.corpus.identity, **asdict(self.cleaning), **self.tokenizer.settings}
        return {**known, "validation": self.validation, "strict": self.strict}

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
            with interruptible(), execution.threads():
                return self._run(execution)
        except MemoryError:
            raise UserError("out of memory; lower --workers or --tokenizer-sample") from None
        finally:
            self.place.remove_if_useless()
            lock.release()

    def _run(self, execution: Execution) -> PreparedData:
        settings = {**self.settings, "versions": versions(), "ngrams": self.keeps_ngrams}
        if self.place.goes_on(settings):
            say(f"{self.out}: going on where an earlier run stopped")
            self.place.clear_unfinished()
        else:
            self.place.start(settings)
        if not (self.out / "tokenizer").is_dir():  # whole where it is, because it was moved there
            aside = self.place.folder / "tokenizer"
            self._make_tokenizer(aside)
            aside.rename(self.out / "tokenizer")
        stages, finish = self._stages()
        if execution.where == "slurm":
            execution.run([*stages, Stage("finishing", [finish], 1)], self.place.folder, self.corpus.sizes)
            raise HandedOver(
                f"handed over to Slurm: when its jobs are through, {self.out / MANIFEST} is there.\n"
                "Should some fail, run the same command again: only what is missing is done"
            )
        execution.run(stages, self.place.folder, self.corpus.sizes)
        return finish.run()

    def _make_tokenizer(self, folder: Path) -> None:
        """Write the one that is there, as it is or with new pieces, or a trained one."""
        plan = self.tokenizer
        if plan.new_pieces is not None:
            refuse_other_kinds(plan.reused)
            texts = self._sample()
            say(f"looking for new pieces in {sum(map(len, texts)) / 1e6:,.1f} M characters")
            tokenizer, extension = extended(plan.reused, plan.given or "", texts, plan.new_pieces)
            save_extended(tokenizer, extension, folder)
            extension.say()
            return
        if plan.reused is not None:
            save_tokenizer(plan.reused, folder)
            return
        texts = self._sample()
        say(f"training a tokenizer on {sum(map(len, texts)) / 1e6:,.1f} M characters")
        save_tokenizer(fill_vocabulary(texts, plan.vocab_size, plan.normalize), folder)

    def _sample(self) -> list[str]:
        """Return the part of the text that decides the tokenizer."""
        plan, problems = self.tokenizer, Problems(self.strict)
        meter = Meter(self.place.folder / "progress" / "sampling")
        reader = self.corpus.reader(problems, meter)
        ranks = evenly_spread(self.corpus.text_sizes, READ_PER_SAMPLED * plan.sample_bytes)
        filters = self.cleaning.filters()
        chosen = set(ranks)
        sizes = [size if rank in chosen else 0 for rank, size in enumerate(self.corpus.sizes)]
        with ProgressWatch("sampling", sizes, meter.folder) as watch:
            texts = sample(self._texts(reader, filters, ranks, watch), plan.sample_bytes)
        if not texts:
            raise no_text(problems, dropped_by(filters))
        return texts

    def _texts(self, reader: Any, filters: list[PipelineStep], ranks: list[int], watch: ProgressWatch) -> Iterator[str]:
        for rank in ranks:
            documents = reader.run(None, rank, len(self.corpus.sizes))
            for step in filters:
                documents = step(documents, rank, len(self.corpus.sizes))
            yield from (document.text for document in documents)
            watch.finish(rank)

    def _stages(self) -> tuple[list[Stage], Finish]:
        work, tasks = self.place.folder, len(self.corpus.sizes)
        tokenizer = load_tokenizer(self.out / "tokenizer")
        problems = Problems(self.strict)

        def documents(stage: str) -> list[PipelineStep]:
            return [self.corpus.reader(problems, Meter(work.absolute() / "progress" / stage)), *self.cleaning.filters()]

        before = self.cleaning.stages(lambda: documents("hashing"), tasks, work)
        reader, *cleaning = [*documents("tokenizing"), *self.cleaning.duplicate_filter(work)]
        file = (self.out / "tokenizer" / "tokenizer.json").absolute()
        eos = tokenizer.convert_ids_to_tokens(vocabulary_of(tokenizer).eos)
        limit = int(self.validation * 2**64)
        writer = ShardWriter(self.out, work, file, eos, validation_limit=limit, problems=problems, cleaning=cleaning)
        writer.ngrams_one_in = one_in(sum(self.corpus.text_sizes)) if self.keeps_ngrams else None
        pipeline = [reader, *cleaning, writer]
        return [*before, Stage("tokenizing", pipeline, tasks)], Finish(self.out, self.settings, pipeline, tasks)


@contextmanager
def interruptible() -> Iterator[None]:
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
