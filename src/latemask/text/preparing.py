"""`latemask prepare`: text → tokenizer + token shards + manifest.

A tokenizer is trained on a sample. Then the corpus is tokenized in tasks that depend on it alone: whatever the number
of workers, wherever they run and however often they are interrupted, the same bytes come out. The manifest is written
last: a folder without one is not finished.
"""

from __future__ import annotations

import hashlib
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger as datatrove_logger

from latemask.console import say
from latemask.errors import HandedOver, Interrupted, UserError
from latemask.text.adopting import adopt_shards
from latemask.text.cleaning import Cleaning, Dedup, check_language_model
from latemask.text.corpora import Builtin, Corpus, Files, HubDataset
from latemask.text.executors import Execution, Kind, Stage, executor_options
from latemask.text.finishing import Finish, versions
from latemask.text.prepared import MANIFEST, PreparedData, read_manifest
from latemask.text.progress import Meter, Watch
from latemask.text.reading import Problems
from latemask.text.sampling import sample, tasks_to_sample
from latemask.text.shards import SPLITS, ShardWriter
from latemask.text.tokenizer import (
    LARGEST_VOCABULARY,
    SMALLEST_VOCABULARY,
    Normalization,
    fill_vocabulary,
    load_tokenizer,
    save_tokenizer,
    vocabulary_of,
)
from latemask.text.workplace import FOLDER, Workplace

_OURS = frozenset({MANIFEST, "tokenizer", *SPLITS})
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def prepare(
    inputs: str | Path | Sequence[str | Path] = (),
    *,
    out: Path | None = None,
    builtin: bool = False,
    hf_dataset: str | None = None,
    hf_config: str | None = None,
    hf_split: str = "train",
    streaming: bool = False,
    format: Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"] | None = None,
    text_field: str = "text",
    vocab_size: int | None = None,
    tokenizer: str | None = None,
    tokenizer_sample: str = "200MB",
    normalize: Normalization = "nfc",
    validation: float = 0.01,
    min_chars: int = 0,
    language: str | None = None,
    dedup: Dedup | None = None,
    workers: int | None = None,
    executor: Kind = "local",
    executor_option: Sequence[str] = (),
    adopt: Path | None = None,
    strict: bool = False,
    overwrite: bool = False,
) -> PreparedData:
    """Turn text into a tokenizer and token shards.

    Args:
        inputs: Files, folders, glob patterns and URLs (s3://, hf://, …) of .txt (documents parted by an empty line),
            .jsonl, .csv, .tsv, .parquet and .arrow, plain or .gz, .zst, .bz2, .xz.
        out: Folder to write; a finished one with the same settings is left as it is, an interrupted one goes on.
        builtin: Use the documentation of Python and of installed packages instead of files.
        hf_dataset: Use a dataset of the Hugging Face Hub instead of files: its id, or a local folder.
        hf_config: Which configuration of the dataset, if it has several.
        hf_split: Which split of the dataset.
        streaming: Read the dataset over the network instead of downloading it first.
        format: What the files are, whatever their names say.
        text_field: Field or column that holds the text.
        vocab_size: Pieces of the byte-level BPE tokenizer to train, rounded up to a multiple of 64; by default 32768,
            or as many as the text fills.
        tokenizer: Folder or Hub id of a tokenizer to use instead of training one.
        tokenizer_sample: How much text, evenly spread, the tokenizer is trained on.
        normalize: Bring characters into Unicode's composed form (nfc), or leave them as they are (none).
        validation: Share of the documents held out for validation (at least one; 0 holds out none).
        min_chars: Drop documents with fewer characters.
        language: Drop documents in other languages than this code, or these: en or en,de.
        dedup: Drop documents that are the same as another (exact) or nearly so (minhash).
        workers: Processes and threads to use; by default all cores. The result does not depend on it.
        executor: Where to run: on this machine, or on a cluster by datatrove's Slurm or Ray executor.
        executor_option: NAME=VALUE for datatrove's Slurm or Ray executor, like partition=cpu.
        adopt: Instead of all this: check token shards that datatrove wrote into this folder, and make them usable.
        strict: Stop at a line that cannot be used instead of skipping it.
        overwrite: Replace a folder that was prepared with other settings.
    """
    inputs = [inputs] if isinstance(inputs, (str, Path)) else inputs
    _check_numbers(vocab_size if tokenizer is None else None, validation, min_chars, workers)
    given = {"INPUT": bool(inputs), "--builtin": builtin, "--hf-dataset": bool(hf_dataset), "--adopt": bool(adopt)}
    if sum(given.values()) != 1:
        raise UserError(
            "say what to prepare: INPUT files, folders or patterns, or one of --builtin, --hf-dataset, --adopt"
        )
    if adopt:
        return adopt_shards(Path(adopt), tokenizer, validation, overwrite)
    if out is None:
        raise UserError("say where the data goes: --out")
    out = Path(out)
    _refuse_foreign(out)
    datatrove_logger.disable("datatrove")  # what our user needs to know, we say
    execution = Execution(executor, workers, executor_options(executor, executor_option))
    corpus: Corpus
    if hf_dataset:
        corpus = HubDataset(hf_dataset, hf_config, hf_split, streaming, text_field)
    else:
        corpus = Builtin(out / FOLDER) if builtin else Files.find(inputs, format, text_field)
    job = _Job(
        out=out,
        corpus=corpus,
        cleaning=Cleaning(min_chars, language, dedup),
        encoder=_TokenizerPlan(vocab_size, tokenizer, _bytes(tokenizer_sample), normalize),
        validation=validation,
        strict=strict,
    )
    return _already_done(out, job.settings, overwrite) or job.run(execution)


def _check_numbers(vocab_size: int | None, validation: float, min_chars: int, workers: int | None) -> None:
    if vocab_size is not None and vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"--vocab-size {vocab_size} is too small: byte-level BPE needs {SMALLEST_VOCABULARY} pieces at least "
            "(256 bytes and the special tokens)"
        )
    if vocab_size is not None and vocab_size > LARGEST_VOCABULARY:
        raise UserError(f"--vocab-size {vocab_size} is too large: {LARGEST_VOCABULARY:,} pieces at most")
    if not 0 <= validation < 1:
        raise UserError(f"--validation {validation} is not a share in [0, 1)")
    if min_chars < 0:
        raise UserError(f"--min-chars {min_chars} is less than nothing")
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: one at least")


def _bytes(text: str) -> int:
    """Return the number of bytes that `200MB` or `1.5 GB` means."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([KMG]?)B?", str(text).strip().upper())
    if not found or float(found[1]) <= 0:
        raise UserError(f"--tokenizer-sample {text} is not a size like 200MB or 1.5GB")
    return int(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True)
class _TokenizerPlan:
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
class _Job:
    """A preparation that can be run."""

    out: Path
    corpus: Corpus
    cleaning: Cleaning
    encoder: _TokenizerPlan
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
        return Workplace(self.out)

    def run(self, execution: Execution) -> PreparedData:
        if self.cleaning.language:
            check_language_model(self.cleaning.language)
        lock = self.place.lock()
        try:
            with _interruptible(), execution.threads():
                return self._run(execution)
        finally:
            lock.release()
            self.place.remove_if_useless()

    def _run(self, execution: Execution) -> PreparedData:
        settings = {**self.settings, "versions": versions()}
        if self.place.goes_on(settings):
            say(f"{self.out}: going on where an earlier run stopped")
            self.place.clear_unsealed()
        else:
            self.place.start(settings, _OURS)
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
        with Watch("sampling", [self.corpus.sizes[rank] for rank in ranks], meter.folder) as watch:
            texts = sample(self._texts(reader, filters, ranks, watch), self.encoder.sample_bytes)
        if not texts:
            raise UserError(f"no text found in the input{problems.first()}")
        say(f"training a tokenizer on {sum(map(len, texts)) / 1e6:,.1f} M characters")
        return texts

    def _texts(self, reader: Any, filters: list[PipelineStep], ranks: list[int], watch: Watch) -> Iterator[str]:
        for number, rank in enumerate(ranks):
            documents = reader.run(None, rank, len(self.corpus.sizes))
            for step in filters:
                documents = step(documents, rank, len(self.corpus.sizes))
            yield from (document.text for document in documents)
            watch.finish(number)

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


_KEPT = "stopped. What is finished is kept: run the same command again to go on"


def _refuse_foreign(out: Path) -> None:
    """Leave a folder alone that holds anything but a preparation."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder")
    if not out.is_dir() or (out / MANIFEST).is_file():
        return
    if foreign := sorted({path.name for path in out.iterdir()} - _OURS - {FOLDER}):
        raise UserError(f"{out} is not empty and was not made by latemask prepare (it holds '{foreign[0]}')")


def _already_done(out: Path, settings: dict[str, Any], overwrite: bool) -> PreparedData | None:
    """Return the data if it is there; refuse a folder that holds something else."""
    try:
        manifest = read_manifest(out)
    except UserError:
        if overwrite:
            return None
        raise
    if manifest is None:
        return None
    before = manifest["settings"]
    changed = sorted(key for key in {**settings, **before} if before.get(key) != settings.get(key))
    if not changed and (data := _intact(out, overwrite)):
        Workplace(out).remove()
        say(f"{out} is already prepared with these settings: nothing to do")
        return data
    if overwrite:
        return None
    raise UserError(
        f"{out} was prepared with other settings ({', '.join(changed)}); choose another --out or pass --overwrite"
    )


def _intact(out: Path, overwrite: bool) -> PreparedData | None:
    """Open what is there; a damaged file is an error, or a reason to begin again."""
    try:
        return PreparedData.open(out)
    except UserError:
        if overwrite:
            return None
        raise
