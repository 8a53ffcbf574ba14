"""A prepared data folder: what is in it, whether it is whole, and its rows.

DIR/manifest.json     counts, settings, versions, a checksum for every file and of itself; written last
DIR/tokenizer/        a Hugging Face tokenizer
DIR/train/*.ds        token shards with their .index
DIR/validation/*.ds
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latemask.ground.errors import UserError
from latemask.ground.files import json_digest, sha256_of
from latemask.text.progress import Watch
from latemask.text.rows import Shard, TokenRows
from latemask.text.shards import SPLITS
from latemask.text.tokenizer import Vocabulary, load_tokenizer

MANIFEST = "manifest.json"
FORMAT = 3


@dataclass(frozen=True)
class PreparedData:
    """What `latemask prepare` made."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> PreparedData:
        """Open a data folder; with `verify` every file is checked against its checksum."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            missing = "no such folder" if not folder.is_dir() else f"no {MANIFEST} in it: not prepared, or not finished"
            raise UserError(f"{folder}: {missing}; run: latemask prepare INPUT... --out {folder}")
        data = cls(folder, manifest)
        data.check(checksums=verify)
        return data

    def check(self, *, checksums: bool) -> None:
        """Notice and name a missing, truncated or changed file."""
        files = {self.folder / name: expected for name, expected in self.manifest["files"].items()}
        for path, expected in files.items():
            if not path.is_file():
                raise UserError(f"{path} is missing; prepare the data again (--overwrite)")
            if path.stat().st_size != expected["bytes"]:
                raise UserError(
                    f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}: cut short or changed; "
                    "prepare the data again (--overwrite)"
                )
        if checksums:
            _compare_checksums(files)

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of the tokenizer."""
        record = self.manifest["tokenizer"]
        return Vocabulary(**{**record, "special": tuple(record["special"])})

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer is."""
        return self.folder / "tokenizer"

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return load_tokenizer(self.tokenizer_folder)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Checksums that tell this data from any other."""
        return {name: record["sha256"] for name, record in self.manifest["files"].items()}

    @property
    def token_bytes(self) -> int:
        """2 or 4, as the vocabulary needs."""
        return int(self.manifest["token_bytes"])

    @property
    def sources(self) -> list[str]:
        """Names of what it was made from."""
        settings = self.manifest["settings"]
        if "inputs" in settings:
            return [Path(source["path"]).name for source in settings["inputs"]]
        return [settings["hf_dataset"]] if "hf_dataset" in settings else []

    def tokens(self, split: str) -> int:
        """Return how many tokens a split has."""
        return int(self.manifest["splits"][split]["tokens"])

    def shards(self, split: str) -> list[Shard]:
        """Return the shards of a split, in order."""
        assert split in SPLITS
        return [
            Shard(self.folder / record["file"], record["first"], record["tokens"])
            for record in self.manifest["splits"][split]["shards"]
        ]

    def rows(self, split: str, length: int) -> TokenRows:
        """Return the rows of a split, cut to `length`."""
        return TokenRows(self.shards(split), self.token_bytes, length, self.vocabulary.bos)


def _compare_checksums(files: dict[Path, dict[str, Any]]) -> None:
    """Read every file, with all cores: a run that begins or goes on waits for this, and corpora are large."""
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        with Watch("checking", [expected["bytes"] for expected in files.values()]) as watch:
            for number, (path, digest) in enumerate(zip(files, threads.map(sha256_of, files), strict=True)):
                if digest != files[path]["sha256"]:
                    raise UserError(
                        f"{path} does not match its checksum: damaged or changed; prepare the data again (--overwrite)"
                    )
                watch.finish(number)
    finally:
        threads.shutdown(cancel_futures=True)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished data folder, or None where there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text("utf-8"))
        found = manifest["format"]
        if found == FORMAT:
            if manifest.pop("sha256") != json_digest(manifest):
                raise ValueError
            _check_shape(manifest)
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        raise UserError(f"{path} is damaged; prepare the data again (--overwrite)") from None
    if found != FORMAT:
        raise UserError(
            f"{path} has format {found}, this latemask reads {FORMAT}; prepare the data again (--overwrite)"
        )
    return manifest


def _check_shape(manifest: dict[str, Any]) -> None:
    """Raise something where the manifest is not one that `prepare` writes: it may have been edited or torn."""
    record = manifest["tokenizer"]
    vocabulary = Vocabulary(**{**record, "special": tuple(record["special"])})
    ids = (vocabulary.bos, vocabulary.eos, vocabulary.pad, vocabulary.mask, *vocabulary.special)
    if not all(0 <= number < vocabulary.size for number in ids) or manifest["token_bytes"] not in (2, 4):
        raise ValueError
    manifest["settings"].items()
    for split in SPLITS:
        record = manifest["splits"][split]
        for shard in record["shards"]:
            end = (shard["first"] + shard["tokens"]) * manifest["token_bytes"]
            if shard["first"] < 0 or end > manifest["files"][shard["file"]]["bytes"]:  # every shard has a checksum
                raise ValueError
        if sum(shard["tokens"] for shard in record["shards"]) != record["tokens"]:
            raise ValueError
