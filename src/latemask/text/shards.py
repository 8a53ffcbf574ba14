"""Documents → token shards in datatrove's format, and rows of any length read back from them.

A shard is a flat file of little-endian uint16 or uint32 ids (`.ds`) and an index of document ends. Every document
ends with </s>; rows are cut from the running text of all shards, so no token is lost between files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.tokenization import PipelineStepWithTokenizer

SPLITS = ("train", "validation")
_BATCH_DOCUMENTS = 1000


def document_hash(text: str) -> int:
    """Return 64 bits of a document's content: which split it goes to does not depend on order or on the file."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


class ShardWriter(PipelineStepWithTokenizer):
    """The last step of a datatrove pipeline: tokenize, and write a train and a validation shard in one pass.

    datatrove's DocumentTokenizer writes one split a pass, and would take a `<mask>` that stands in the text for the
    special token: here the text of a corpus can never become one.
    """

    name = "✍️ latemask shards"

    def __init__(self, folder: Path, tokenizer_file: Path, eos_token: str, is_validation: Callable[[int], bool]):
        super().__init__(str(tokenizer_file), eos_token)
        self.folder = folder
        self.is_validation = is_validation

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, with special tokens in the text spelled out as ordinary characters."""
        tokenizer = super().tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def run(self, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Write all documents and yield them on."""
        shards = [self._open(split, rank) for split in SPLITS]
        dtype = np.dtype(f"<u{self.token_size}")
        documents = iter(data)
        while batch := list(islice(documents, _BATCH_DOCUMENTS)):
            texts = [document.text for document in batch]
            for text, encoding in zip(texts, self.tokenizer.encode_batch_fast(texts), strict=True):
                shard = shards[self.is_validation(document_hash(text))]
                shard.write_bytes(np.asarray(encoding.ids, dtype=dtype).tobytes())
            yield from batch
        for shard in shards:
            shard.close()

    def _open(self, split: str, rank: int) -> TokenizedFile:
        folder = (self.folder / split).resolve()  # fsspec remembers what a relative path meant, also after a chdir
        folder.mkdir(parents=True, exist_ok=True)
        return TokenizedFile(str(folder), f"{rank:05d}.ds", token_size=self.token_size)


class TokenRows:
    """Rows `<s>` + running text, cut to a length, memory-mapped: any length from the same shards.

    Shards are opened on first use, so a reader can be sent to a worker process.
    """

    def __init__(self, files: Sequence[Path], token_bytes: int, length: int, bos: int):
        self.files = list(files)
        self.dtype = np.dtype(f"<u{token_bytes}")
        self.length = length
        self.bos = bos
        sizes = [file.stat().st_size // token_bytes for file in self.files]
        self.ends = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.ends[-1]) // (self.length - 1)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "shards"}

    @cached_property
    def shards(self) -> list[np.ndarray]:
        """The memory-mapped files."""
        return [np.memmap(f, self.dtype, "r") if f.stat().st_size else np.empty(0, self.dtype) for f in self.files]

    def take(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the given rows as int64 [rows, length]."""
        out: np.ndarray = np.empty((len(rows), self.length), np.int64)
        out[:, 0] = self.bos
        for target, row in zip(out, rows, strict=True):
            self._read(int(row) * (self.length - 1), target[1:])
        return out

    def _read(self, start: int, out: np.ndarray) -> None:
        """Fill `out` with the running text from token `start`, across as many shards as it takes."""
        shard = int(np.searchsorted(self.ends, start, side="right")) - 1
        done = 0
        while done < len(out):
            offset = start + done - int(self.ends[shard])
            piece = self.shards[shard][offset : offset + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            shard += 1
