"""Documents → token shards in datatrove's format, in parts that are whole or not there.

A shard is a flat file of little-endian uint16 or uint32 ids (`.ds`) and an index of document ends. Every document
ends with </s>. A task writes its shards part by part; a part that is sealed is not made again, whatever happens to
the process. Where a part ends depends on the documents alone, so that it always ends there.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.tokenization import PipelineStepWithTokenizer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from latemask.ground.files import sync, write_json_atomically
from latemask.text.ngram_table import NgramWriter
from latemask.text.prepared import file_record, stamp
from latemask.text.reading import Problems, document_hash
from latemask.text.rows import SPLITS as SPLITS

PART_TOKENS = 1 << 25
BATCH_CHARACTERS = 1 << 21  # enough to keep all cores at work; the tokenizer's own objects take 100 bytes a token


@dataclass
class PartRecord:
    """What a sealed part holds; a document that was cut counts once for every section, as it does in the index."""

    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    smallest_hash: int = 2**64
    largest_hash: int = 0
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    stamps: dict[str, str] = field(default_factory=dict)
    ngrams: int = 0
    """How many hashes of n-grams lie beside the records."""

    @property
    def size(self) -> int:
        """All documents of the part."""
        return sum(self.documents.values())


@dataclass
class TaskRecord:
    """What a finished task did."""

    parts: int
    skipped: int
    examples: list[str]
    dropped: dict[str, int]
    """How many documents each cleaning step took out."""


@dataclass(frozen=True)
class Ledger:
    """The records of parts and tasks, in a folder of their own."""

    folder: Path

    def parts(self, rank: int) -> list[PartRecord]:
        """Return the sealed parts of a task, in order."""
        found: list[PartRecord] = []
        while (path := self.folder / f"{shard_name(rank, len(found))}.json").is_file():
            found.append(PartRecord(**json.loads(path.read_text("utf-8"))))
        return found

    def task(self, rank: int) -> TaskRecord:
        """Return the record of a finished task."""
        return TaskRecord(**json.loads((self.folder / f"{rank:05d}.json").read_text("utf-8")))

    def seal(self, name: str, record: PartRecord | TaskRecord) -> None:
        """Say that a part is whole, by the name of its shards, or that a task is done, by its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.folder / f"{name}.json", asdict(record))

    def ngrams(self, name: str) -> Path:
        """Return where the hashes of a part's n-grams are."""
        return self.folder / f"{name}.ngrams"

    def forget(self, rank: int) -> None:
        """Let a task be done again."""
        for path in self.folder.glob(f"{rank:05d}*"):
            path.unlink()


def shard_name(rank: int, part: int) -> str:
    """Return the name of a shard, without its ending; sorted by name they are in order."""
    return f"{rank:05d}_{part:04d}"


class ShardWriter(PipelineStepWithTokenizer):
    """The last step of a datatrove pipeline: tokenize, and write train and validation shards in one pass.

    datatrove's DocumentTokenizer writes one split a pass, loses a whole task when it is interrupted, and would take
    a `<mask>` that stands in the text for the special token: here the text of a corpus can never become one.
    """

    name = "✍️ latemask shards"

    def __init__(
        self,
        out: Path,
        work: Path,
        tokenizer_file: Path,
        eos_token: str,
        *,
        validation_limit: int,
        problems: Problems,
        cleaning: Sequence[PipelineStep] = (),
    ):
        super().__init__(str(tokenizer_file), eos_token)
        self.out = out.absolute()  # fsspec remembers what a relative path meant, also after a chdir
        self.work = work.absolute()
        self.validation_limit = validation_limit
        self.problems = problems
        self.cleaning = cleaning
        self.part_tokens = PART_TOKENS
        self.ngrams_one_in: int | None = None  # of how many n-grams one is kept; None: none
        self.batch_characters = BATCH_CHARACTERS

    @property
    def ledger(self) -> Ledger:
        """Where the records of this writer's tasks are."""
        return Ledger(self.work / "records")

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, with special tokens in the text spelled out as ordinary characters."""
        file = Path(str(self.tokenizer_name_or_path))
        return _load_tokenizer(file, file.stat().st_mtime_ns, str(self.eos_token))

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> None:
        """Write all documents of a task, after those that an earlier attempt has sealed."""
        sealed = self.ledger.parts(rank)
        rest = islice(data, sum(record.size for record in sealed), None)  # read again, not tokenized again
        number, part = len(sealed), None
        for documents in _batches(rest, self.batch_characters):
            part = part or _Part(self)
            part.add(documents)
            if part.tokens >= self.part_tokens:
                part.seal(rank, number)
                number, part = number + 1, None
        if part:
            part.seal(rank, number)
            number += 1
        record = TaskRecord(number, self.problems.count, self.problems.examples, dropped_by(self.cleaning))
        self.ledger.seal(f"{rank:05d}", record)


def dropped_by(steps: Sequence[PipelineStep]) -> dict[str, int]:
    """Return how many documents each step has taken out."""
    return {step.name: int(step.stats["dropped"].total) for step in steps}


@lru_cache(maxsize=1)  # one for all tasks of a process: the memory of one that is dropped does not all come back
def _load_tokenizer(file: Path, modified_ns: int, eos_token: str) -> Any:
    end = ("<end>", Tokenizer.from_file(str(file)).token_to_id(eos_token))
    tokenizer = Tokenizer.from_str(_with_special_pieces_hidden(file.read_text("utf-8")))
    tokenizer.post_processor = TemplateProcessing(single="$A <end>", special_tokens=[end])
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _with_special_pieces_hidden(content: str) -> str:
    """Put a space before the special pieces of models that look for every piece in the text, where none has one.

    To Unigram and WordLevel a <mask> is a piece like any other, even with `encode_special_tokens`.
    """
    tokenizer = json.loads(content)
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    hidden = {token["content"]: f" {token['content']}" for token in added if token["special"]}
    if model["type"] == "Unigram":
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    elif model["type"] == "WordLevel":
        model["vocab"] = {hidden.get(piece, piece): number for piece, number in model["vocab"].items()}
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    else:
        return content
    for token in added:
        token["content"] = hidden.get(token["content"], token["content"])
    return json.dumps(tokenizer)


def _batches(documents: Iterator[Document], characters: int) -> Iterator[list[Document]]:
    """Yield as much at a time as is worth a call of the tokenizer."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Part:
    """A part in the making, in a folder of its own: two processes at the same task cannot harm each other."""

    def __init__(self, writer: ShardWriter):
        self.writer = writer
        self.record = PartRecord()
        writing = writer.work / "writing"
        writing.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(dir=writing))
        self.dtype = np.dtype(f"<u{writer.token_size}")
        size = writer.token_size
        self.files = {split: TokenizedFile(str(self.folder), f"{split}.ds", token_size=size) for split in SPLITS}
        one_in = writer.ngrams_one_in
        self.ngrams = NgramWriter(self.folder / "ngrams", one_in) if one_in else None

    @property
    def tokens(self) -> int:
        return sum(self.record.tokens.values())

    def add(self, documents: list[Document]) -> None:
        record, limit = self.record, self.writer.validation_limit
        encodings = self.writer.tokenizer.encode_batch_fast([document.text for document in documents])
        to_train_on = []
        for document, encoding in zip(documents, encodings, strict=True):
            content = document.text.encode("utf-8")
            drawn = document_hash(document, content)
            split = SPLITS[drawn < limit]
            if split == "train":
                to_train_on.append(document.text)
            ids = np.asarray(encoding.ids, self.dtype)
            self.files[split].write_bytes(ids.tobytes())
            record.documents[split] += 1
            record.tokens[split] += len(ids)
            record.text_bytes[split] += len(content)
            record.smallest_hash = min(record.smallest_hash, drawn)
            record.largest_hash = max(record.largest_hash, drawn)
        if self.ngrams and to_train_on:
            self.ngrams.add(to_train_on)

    def seal(self, rank: int, number: int) -> None:
        """Put the files in their place, synced, note their checksums and what they look like there, then say so."""
        for split, file in self.files.items():
            file.close()
            for ending in (".ds", ".ds.index") if self.record.documents[split] else ():
                name = f"{split}/{shard_name(rank, number)}{ending}"
                source, target = self.folder / f"{split}{ending}", self.writer.out / name
                sync(source)
                self.record.files[name] = file_record(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
                self.record.stamps[name] = stamp(target)
        name = shard_name(rank, number)
        if self.ngrams:
            self.ngrams.seal(self.writer.ledger.ngrams(name))
            self.record.ngrams = self.ngrams.count
        self.writer.ledger.seal(name, self.record)
        shutil.rmtree(self.folder)
