"""A prepared data folder: what is in it, whether it is whole, and its rows.

DIR/manifest.json     counts, settings, versions, a checksum for every file; written last
DIR/tokenizer/        a Hugging Face tokenizer
DIR/train/*.ds        token shards with their .index
DIR/validation/*.ds
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latemask.errors import UserError
from latemask.files import sha256_of
from latemask.text.shards import SPLITS, TokenRows
from latemask.text.tokenizer import Vocabulary, load_tokenizer

MANIFEST = "manifest.json"
FORMAT = 1


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
        for name, expected in self.manifest["files"].items():
            path = self.folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing; prepare the data again into a new folder")
            if path.stat().st_size != expected["bytes"]:
                raise UserError(
                    f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}: cut short or changed; "
                    "prepare the data again"
                )
            if checksums and sha256_of(path) != expected["sha256"]:
                raise UserError(f"{path} does not match its checksum: damaged or changed; prepare the data again")

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

    def rows(self, split: str, length: int) -> TokenRows:
        """Return the rows of a split, cut to `length`."""
        assert split in SPLITS
        files = [self.folder / shard for shard in self.manifest["splits"][split]["shards"]]
        return TokenRows(files, self.manifest["token_bytes"], length, self.vocabulary.bos)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished data folder, or None where there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text("utf-8"))
        found = manifest["format"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} cannot be read as a manifest ({error}); prepare the data again") from None
    if found != FORMAT:
        raise UserError(f"{path} has format {found}, this latemask reads {FORMAT}; prepare the data again")
    return manifest
