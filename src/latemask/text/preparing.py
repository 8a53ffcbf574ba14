"""`latemask prepare`: text → tokenizer + token shards + manifest.

Two passes over the text. The first surveys it (what is broken, how many documents, the smallest hash among them, so
that validation gets at least one) and trains the tokenizer on the way; the second tokenizes. The manifest is written
last: a folder without one is not finished.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.utils.logging import logger as datatrove_logger

from latemask import __version__
from latemask.console import progress_bar, say
from latemask.errors import UserError
from latemask.files import sha256_of, write_json_atomically
from latemask.text.builtin import BuiltinReader, builtin_files
from latemask.text.corpus import CorpusReader, Problems, Source, find_sources
from latemask.text.prepared import FORMAT, MANIFEST, PreparedData, read_manifest
from latemask.text.shards import SPLITS, ShardWriter, document_hash
from latemask.text.tokenizer import (
    LARGEST_VOCABULARY,
    SMALLEST_VOCABULARY,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
    vocabulary_of,
)

_SECONDS_BETWEEN_LINES = 10.0
_OURS = frozenset({MANIFEST, "tokenizer", *SPLITS})


def prepare(
    inputs: str | Path | Sequence[str | Path] = (),
    *,
    out: Path,
    builtin: bool = False,
    vocab_size: int = 32768,
    tokenizer: str | None = None,
    validation: float = 0.01,
    strict: bool = False,
    overwrite: bool = False,
) -> PreparedData:
    """Turn text into a tokenizer and token shards.

    Args:
        inputs: Files, folders and glob patterns of .txt (documents parted by an empty line) and .jsonl (a `text`
            field), plain or .gz.
        out: Folder to write; a finished one with the same settings is left as it is.
        builtin: Use the documentation of Python and of installed packages instead of files.
        vocab_size: Pieces of the byte-level BPE tokenizer to train.
        tokenizer: Folder or Hub id of a tokenizer to use instead of training one.
        validation: Share of the documents held out for validation (at least one; 0 holds out none).
        strict: Stop at a line that cannot be used instead of skipping it.
        overwrite: Replace a folder that was prepared with other settings.
    """
    out = Path(out)
    inputs = [inputs] if isinstance(inputs, (str, Path)) else inputs
    _check_arguments(inputs, builtin, vocab_size, tokenizer, validation)
    text = _Text(find_sources(inputs), Problems(strict), builtin)
    settings = _settings(text, vocab_size, tokenizer, validation)
    if done := _already_done(out, settings, overwrite):
        return done
    datatrove_logger.disable("datatrove")
    reused = _reused_tokenizer(tokenizer)

    survey = _Survey()
    with text.progress("reading") as advance:
        texts = survey.of(text.documents(advance))
        encoder = reused or train_tokenizer(texts, vocab_size)
        deque(texts, maxlen=0)  # training has read them all; without it the survey still has to see them
    survey.check(text.problems, validation)

    _clear(out)
    save_tokenizer(encoder, out / "tokenizer")
    text.problems = Problems(strict)
    limit = survey.validation_limit(validation)
    writer = ShardWriter(out, out / "tokenizer" / "tokenizer.json", _eos_token(encoder), lambda h: h < limit)
    with text.progress("tokenizing") as advance:
        for _ in writer.run(text.documents(advance)):
            pass
    data = _finish(out, encoder, writer.token_size, settings, text.problems)
    _report(data, text.problems, vocab_size if tokenizer is None else None)
    return data


def _check_arguments(
    inputs: Sequence[Any], builtin: bool, vocab_size: int, tokenizer: str | None, validation: float
) -> None:
    if bool(inputs) == builtin:
        raise UserError("give either INPUT files, folders or patterns, or --builtin")
    if tokenizer is None and vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"--vocab-size {vocab_size} is too small: byte-level BPE needs {SMALLEST_VOCABULARY} pieces at least "
            "(256 bytes and the special tokens)"
        )
    if tokenizer is None and vocab_size > LARGEST_VOCABULARY:
        raise UserError(f"--vocab-size {vocab_size} is too large: {LARGEST_VOCABULARY:,} pieces at most")
    if not 0 <= validation < 1:
        raise UserError(f"--validation {validation} is not a share in [0, 1)")


@dataclass
class _Text:
    """The text to prepare, readable as often as needed."""

    sources: list[Source]
    problems: Problems
    builtin: bool
    collected: list[Document] = field(default_factory=list)

    def documents(self, advance: Callable[[int], None]) -> Iterator[Document]:
        if self.builtin:  # a few MB, and slow to collect: kept for the second pass
            self.collected = self.collected or list(BuiltinReader(on_file=advance).run())
            return iter(self.collected)
        return CorpusReader(self.sources, self.problems, on_bytes=advance).run()

    def progress(self, what: str) -> AbstractContextManager[Callable[[int], None]]:
        total = len(builtin_files()) if self.builtin else sum(s.path.stat().st_size for s in self.sources)
        return _Advancing(what, total)


class _Advancing(AbstractContextManager[Callable[[int], None]]):
    """Progress as a function that takes steps: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.done = what, total, 0
        self.bar = progress_bar()
        self.task = self.bar.add_task(f"{what:<10}", total=total)
        self.last_said = time.monotonic()

    def __enter__(self) -> Callable[[int], None]:
        self.bar.start()
        return self._advance

    def _advance(self, steps: int) -> None:
        self.done += steps
        self.bar.advance(self.task, steps)
        if self.bar.disable and time.monotonic() - self.last_said > _SECONDS_BETWEEN_LINES:
            say(f"{self.what}: {self.done / self.total:.0%}")
            self.last_said = time.monotonic()

    def __exit__(self, *failure: Any) -> None:
        self.bar.stop()


class _Survey:
    """What the first pass learns: how many documents there are, and the smallest hash among them."""

    def __init__(self) -> None:
        self.documents = 0
        self.smallest_hash = 2**64

    def of(self, documents: Iterator[Document]) -> Iterator[str]:
        for document in documents:
            self.documents += 1
            self.smallest_hash = min(self.smallest_hash, document_hash(document.text))
            yield document.text

    def check(self, problems: Problems, validation: float) -> None:
        if not self.documents:
            first = f"; first problem: {problems.examples[0]}" if problems.examples else ""
            raise UserError(f"no text found in the input{first}")
        if self.documents < 2 and validation > 0:
            raise UserError(
                "found only 1 document, and validation needs one of its own: part documents by an empty line, "
                "or pass --validation 0"
            )

    def validation_limit(self, share: float) -> int:
        """Documents whose hash is below this go to validation: `share` of them, at least one unless it is 0."""
        return max(int(share * 2**64), self.smallest_hash + 1) if share > 0 else 0


def _reused_tokenizer(folder_or_id: str | None) -> Any:
    if folder_or_id is None:
        return None
    tokenizer = load_tokenizer(folder_or_id)
    vocabulary_of(tokenizer)
    return tokenizer


def _eos_token(tokenizer: Any) -> str:
    return tokenizer.convert_ids_to_tokens(vocabulary_of(tokenizer).eos)


def _settings(text: _Text, vocab_size: int, tokenizer: str | None, validation: float) -> dict[str, Any]:
    """What decides the result, and is compared to tell whether it is there already."""
    inputs = [
        {"path": str(s.path), "bytes": s.path.stat().st_size, "modified_ns": s.path.stat().st_mtime_ns}
        for s in text.sources
    ]
    return {
        "inputs": inputs,
        "builtin": text.builtin,
        "vocab_size": None if tokenizer else vocab_size,
        "tokenizer": tokenizer,
        "validation": validation,
        "strict": text.problems.strict,
    }


def _already_done(out: Path, settings: dict[str, Any], overwrite: bool) -> PreparedData | None:
    """Return the data if it is there; refuse a folder that holds something else."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder")
    try:
        manifest = read_manifest(out)
    except UserError:
        if overwrite:
            return None
        raise
    if manifest is None:
        foreign = sorted({path.name for path in out.iterdir()} - _OURS) if out.is_dir() else []
        if foreign:
            raise UserError(f"{out} is not empty and was not made by latemask prepare (it holds '{foreign[0]}')")
        return None
    changed = [key for key, value in settings.items() if manifest["settings"].get(key) != value]
    if not changed and (data := _intact(out, overwrite)):
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


def _clear(out: Path) -> None:
    """Remove what an earlier, unfinished or overwritten, preparation left; the manifest first."""
    (out / MANIFEST).unlink(missing_ok=True)
    for name in _OURS - {MANIFEST}:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)


def _finish(out: Path, tokenizer: Any, token_bytes: int, settings: dict[str, Any], problems: Problems) -> PreparedData:
    splits = {split: _split_record(out, split, token_bytes) for split in SPLITS}
    if not splits["train"]["documents"]:
        raise UserError("every document went to validation; lower --validation or give more text")
    files = sorted(path for folder in _OURS - {MANIFEST} for path in (out / folder).rglob("*") if path.is_file())
    packages = ("datatrove", "tokenizers", "transformers")
    manifest = {
        "format": FORMAT,
        "settings": settings,
        "skipped": problems.count,
        "token_bytes": token_bytes,
        "tokenizer": asdict(vocabulary_of(tokenizer)),
        "splits": splits,
        "files": {
            path.relative_to(out).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in files
        },
        "versions": {
            "latemask": __version__,
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }
    write_json_atomically(out / MANIFEST, manifest)
    return PreparedData.open(out, verify=False)


def _split_record(out: Path, split: str, token_bytes: int) -> dict[str, Any]:
    shards = sorted((out / split).glob("*.ds"))
    return {
        "documents": sum(len(np.fromfile(f"{shard}.index", "<u8")) for shard in shards),
        "tokens": sum(shard.stat().st_size for shard in shards) // token_bytes,
        "shards": [shard.relative_to(out).as_posix() for shard in shards],
    }


def _report(data: PreparedData, problems: Problems, asked_vocabulary: int | None) -> None:
    for example in problems.examples:
        say(f"skipped {example}")
    if problems.count:
        say(f"skipped {problems.count:,} in all; --strict stops at the first")
    size = data.vocabulary.size
    if asked_vocabulary is not None and size < asked_vocabulary:
        say(f"vocabulary: {size:,} pieces; the text does not hold the {asked_vocabulary:,} asked for")
    for split in SPLITS:
        record = data.manifest["splits"][split]
        say(f"{split}: {record['tokens']:,} tokens in {record['documents']:,} documents")
    say(f"prepared: {data.folder}")
