"""`latemask prepare --adopt`: token shards that plain datatrove wrote → a data folder. No shard is changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.text.prepared import MANIFEST, PreparedData, file_record, stamp, write_manifest
from latemask.text.reading import Problems
from latemask.text.rows import Shard, count_tokens
from latemask.text.shards import SPLITS
from latemask.text.tokenizer import Vocabulary, load_tokenizer, save_tokenizer, vocabulary_of
from latemask.text.workplace import report


@dataclass(frozen=True)
class _Found:
    """A shard as datatrove writes it: ids, an index of document ends, and perhaps a note of the tokenizer."""

    file: Path
    name: str
    """Its path in the folder."""

    @property
    def label(self) -> str:
        return printable(self.name)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each document ends, in tokens."""
        index = Path(f"{self.file}.index")
        if not index.is_file():
            raise UserError(f"{self.label} has no .index beside it; write shards with save_index=True")
        return np.fromfile(index, "<u8").astype(np.int64)

    @property
    def note(self) -> tuple[str, int] | None:
        """The tokenizer and the bytes of a token, as the .metadata file says them."""
        path = Path(f"{self.file}.metadata")
        if not path.is_file():
            return None
        name, _, size = path.read_text("utf-8", errors="replace").partition("\n")[0].rpartition("|")
        return (name, int(size)) if size in ("2", "4") else None

    def check(self, vocabulary: Vocabulary, token_bytes: int) -> None:
        """Refuse what is damaged or was made with another tokenizer."""
        size = self.file.stat().st_size
        tokens = int(self.ends[-1]) if len(self.ends) else 0
        if size != tokens * token_bytes or (np.diff(self.ends, prepend=0) <= 0).any():
            raise UserError(f"{self.label} has {size} bytes, its index means {tokens * token_bytes}: damaged")
        shard = Shard(self.file, 0, tokens)
        counts = count_tokens([shard], token_bytes, vocabulary.size)
        if len(counts) > vocabulary.size:
            raise UserError(f"{self.label} holds the id {len(counts) - 1}, the tokenizer has {vocabulary.size} pieces")
        array = shard.map(np.dtype(f"<u{token_bytes}"))
        if tokens and (array[self.ends - 1] == vocabulary.eos).mean() < 0.5:
            raise UserError(
                f"{self.label}: documents do not end with the tokenizer's end token; write them with eos_token"
            )
        if tokens and (array[np.append(0, self.ends[:-1])] == vocabulary.bos).mean() > 0.5:
            say(f"{self.label}: its documents begin with a start token, which every row has anyway")
        if counts[vocabulary.mask]:
            say(f"{self.label}: {counts[vocabulary.mask]:,} mask tokens stand in its text")


def adopt_shards(folder: Path, tokenizer: str | None, validation: float, overwrite: bool) -> PreparedData:
    """Check the shards of `folder`, and write the manifest and the tokenizer beside them."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if (folder / MANIFEST).is_file() and not overwrite:
        data = PreparedData.open(folder)
        say(f"{folder} is a prepared folder already: nothing to do")
        return data
    found = [_Found(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.ds"))]
    if not found:
        raise UserError(f"{folder} holds no .ds shard of datatrove")
    given = _tokenizer(folder, found, tokenizer)
    vocabulary = vocabulary_of(given)
    token_bytes = found[0].note[1] if found[0].note else (2 if vocabulary.size <= 2**16 else 4)
    for shard in found:
        shard.check(vocabulary, token_bytes)
    splits = _splits(found, validation)
    _put_tokenizer(given, folder / "tokenizer", overwrite)
    names = [name for shard in found for name in (shard.name, f"{shard.name}.index")]
    data = write_manifest(
        folder,
        settings={"adopted": True, "validation": validation},
        token_bytes=token_bytes,
        splits=splits,
        stamps={name: stamp(folder / name) for name in names},
        files={name: file_record(folder / name) for name in names},
        skipped=0,
        dropped={},
    )
    report(data, Problems())
    return data


def _tokenizer(folder: Path, found: list[_Found], given: str | None) -> Any:
    if given is None and (folder / "tokenizer").is_dir():
        given = str(folder / "tokenizer")
    notes = [shard.note[0] for shard in found if shard.note]
    if given is None and not notes:
        raise UserError(f"{folder} does not say which tokenizer made it; name it with --tokenizer")
    return load_tokenizer((given or notes[0]).removesuffix("tokenizer.json"))


def _put_tokenizer(tokenizer: Any, folder: Path, overwrite: bool) -> None:
    """Keep the tokenizer with the shards; another one that lies there is not replaced unasked."""
    if folder.is_dir():
        if load_tokenizer(folder).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str():
            return
        if not overwrite:
            raise UserError(f"{folder} is another tokenizer than --tokenizer; pass --overwrite to replace it")
    save_tokenizer(tokenizer, folder)


def _splits(found: list[_Found], validation: float) -> dict[str, dict[str, Any]]:
    splits: dict[str, list[tuple[_Found, int, int]]] = {split: [] for split in SPLITS}
    for shard in found:
        split = "validation" if "validation" in Path(shard.name).parts[:-1] else "train"
        splits[split].append((shard, 0, len(shard.ends)))
    if not splits["validation"] and validation:
        splits["train"], splits["validation"] = _cut_off_end(splits["train"], validation)
    return {split: _split_record(parts) for split, parts in splits.items()}


def _cut_off_end(parts: list[tuple[_Found, int, int]], share: float) -> tuple[list[Any], list[Any]]:
    """Give the last documents, `share` of the tokens and one at least, to validation."""
    wanted = math.ceil(share * sum(int(shard.ends[-1]) for shard, _, count in parts if count))
    train, held_out = list(parts), list[Any]()
    while train and wanted > 0:
        shard, first, last = train.pop()
        if first == last:
            continue
        tokens = int(shard.ends[-1])
        cut = int(np.searchsorted(shard.ends, tokens - wanted, side="right")) if wanted < tokens else 0
        cut = min(cut, last - 1)
        held_out.insert(0, (shard, cut, last))
        wanted -= tokens - (int(shard.ends[cut - 1]) if cut else 0)
        if cut:
            train.append((shard, 0, cut))
    if not train:
        raise UserError(f"--validation {share} would hold out every document; lower it, or pass --validation 0")
    return train, held_out


def _split_record(parts: list[tuple[_Found, int, int]]) -> dict[str, Any]:
    records = []
    for found, first, last in parts:
        start = int(found.ends[first - 1]) if first else 0
        tokens = (int(found.ends[last - 1]) if last else 0) - start
        records.append({"file": found.name, "first": start, "tokens": tokens})
    return {
        "documents": sum(last - first for _, first, last in parts),
        "tokens": sum(record["tokens"] for record in records),
        "text_bytes": None,
        "shards": records,
    }
