"""A prepared data folder: what is in it, whether it is whole, and its rows.

DIR/manifest.json     counts, settings, versions, a checksum for every file and of itself; written last
DIR/.verified.json    what the files looked like when they were last compared with their checksums; may be missing
DIR/tokenizer/        a Hugging Face tokenizer
DIR/ngrams.bin        hashes of what stands in the training text; may be missing
DIR/units.safetensors collocations of the training text, for masks with their shape; may be missing
DIR/neighbours/       counts of neighbouring tokens, for a start from the corpus; may be missing
DIR/train/*.ds        token shards with their .index
DIR/validation/*.ds
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from latemask import __version__
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest, sha256_of, write_json_atomically
from latemask.text.new_pieces import read_extension
from latemask.text.progress import ProgressWatch
from latemask.text.rows import SPLITS, Shard, TokenRows
from latemask.text.tokenizer import Vocabulary, load_tokenizer, vocabulary_of
from latemask.text.words import words_of

MANIFEST = "manifest.json"
NOTE = ".verified.json"
NGRAMS = "ngrams.bin"
UNITS = "units.safetensors"
NEIGHBOURS = "neighbours"
FORMAT = 3


@dataclass(frozen=True)
class PreparedData:
    """What `latemask prepare` made."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True, everything: bool = False) -> PreparedData:
        """Open a data folder; `verify` reads what changed since it was last verified, or all of it (`everything`)."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            missing = "no such folder" if not folder.is_dir() else f"no {MANIFEST} in it: not prepared, or not finished"
            raise UserError(f"{folder}: {missing}; run: latemask prepare INPUT... --out {folder}")
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing; prepare the data again (--overwrite)")
            if (size := path.stat().st_size) != expected["bytes"]:
                raise UserError(
                    f"{path} has {size} bytes instead of {expected['bytes']}: cut short or changed; "
                    "prepare the data again (--overwrite)"
                )
        if verify:
            stamps = {name: stamp(folder / name) for name in manifest["files"]}
            matched = {} if everything else _read_note(folder, manifest)
            if unknown := [name for name in stamps if stamps[name] != matched.get(name)]:
                compare_checksums({folder / name: manifest["files"][name] for name in unknown})
                _write_note(folder, manifest, stamps)
        return cls(folder, manifest)

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of the tokenizer."""
        record = self.manifest["tokenizer"]
        return Vocabulary(**{**record, "special": tuple(record["special"])})

    @cached_property
    def words(self) -> bytes | None:
        """What the tokenizer's pieces say of words; None where they tell nothing."""
        path = self.tokenizer_folder / "tokenizer.json"
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read; prepare the data again (--overwrite)") from None
        return words_of(content, self.vocabulary.size, self.vocabulary.special)

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
        """Checksums that tell this data from any other; what was found in it, and is kept beside it, makes no other."""
        files = self.manifest["files"].items()
        return {name: record["sha256"] for name, record in files if name not in (NGRAMS, UNITS)}

    @property
    def units_checksum(self) -> str | None:
        """The checksum of the units that are kept, if there are some: what a run with their masks depends on."""
        return self.manifest["files"][UNITS]["sha256"] if self.manifest.get("units") else None

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


def compare_checksums(files: dict[Path, dict[str, Any]]) -> None:
    """Read the files, with all cores: a run that begins or goes on waits for this, and corpora are large."""
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        with ProgressWatch("checking", [expected["bytes"] for expected in files.values()]) as watch:
            for number, (path, digest) in enumerate(zip(files, threads.map(sha256_of, files), strict=True)):
                if digest != files[path]["sha256"]:
                    raise UserError(
                        f"{path} does not match its checksum: damaged or changed; prepare the data again (--overwrite)"
                    )
                watch.finish(number)
    finally:
        threads.shutdown(cancel_futures=True)


def stamp(path: Path) -> str:
    """Return what changes when somebody changes a file: also its ctime, which no tool sets back."""
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _read_note(folder: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """Return the stamps of the files that matched this very manifest; none if nobody knows."""
    try:
        note = json.loads((folder / NOTE).read_text("utf-8"))
        return dict(note["files"]) if note["manifest"] == json_digest(manifest) else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _write_note(folder: Path, manifest: dict[str, Any], stamps: dict[str, str]) -> None:
    """Remember what matched, for the next to come; where that cannot be written, everything is read again."""
    with suppress(OSError):
        write_json_atomically(folder / NOTE, {"manifest": json_digest(manifest), "files": stamps})


def file_record(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def versions() -> dict[str, str]:
    """Return the versions of what decides the bytes of a preparation."""
    packages = ("datatrove", "tokenizers", "transformers")
    return {"latemask": __version__, **{name: importlib.metadata.version(name) for name in packages}}


def write_manifest(out: Path, *, files: dict[str, Any], stamps: dict[str, str], **entries: Any) -> PreparedData:
    """Write the manifest of a data folder whose files are in place.

    `files` are the shards, and `stamps` is how these looked when they were written.
    """
    found = sorted(path for path in (out / "tokenizer").rglob("*") if path.is_file())
    found += [out / NGRAMS] if "ngrams" in entries else []
    paths = {path.relative_to(out).as_posix(): path for path in found}
    stamps = {**stamps, **{name: stamp(path) for name, path in paths.items()}}  # before they are read
    manifest = {
        "format": FORMAT,
        **entries,
        **({"extension": asdict(extension)} if (extension := read_extension(out / "tokenizer")) else {}),
        "tokenizer": vocabulary_of(load_tokenizer(out / "tokenizer")).record,
        "files": {**files, **{name: file_record(path) for name, path in paths.items()}},
        "versions": versions(),
    }
    return _written(out, manifest, stamps)


def with_file(data: PreparedData, name: str, record: dict[str, Any] | None, **entries: Any) -> PreparedData:
    """Note in the manifest of a finished folder that a file is there, or with no record that it is not; and entries."""
    files = {other: known for other, known in data.manifest["files"].items() if other != name}
    stamps = {**_read_note(data.folder, data.manifest)}
    if record:
        files[name], stamps[name] = record, stamp(data.folder / name)
    manifest = {**data.manifest, **entries, "files": files}
    return _written(data.folder, {key: value for key, value in manifest.items() if value is not None}, stamps)


def _written(out: Path, manifest: dict[str, Any], stamps: dict[str, str]) -> PreparedData:
    write_json_atomically(out / MANIFEST, {**manifest, "sha256": json_digest(manifest)})
    data = PreparedData.open(out, verify=False)
    _write_note(out, data.manifest, stamps)
    return data


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a finished data folder, or None where there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text("utf-8"))
        if (found := manifest["format"]) != FORMAT:
            other = f"has format {found}, this latemask reads {FORMAT}"
            raise UserError(f"{path} {other}; prepare the data again (--overwrite)")
        if manifest.pop("sha256") != json_digest(manifest):
            raise ValueError
        _check_shape(manifest)
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        raise UserError(f"{path} is damaged; prepare the data again (--overwrite)") from None
    return manifest


def _check_shape(manifest: dict[str, Any]) -> None:
    """Raise something where the manifest is not one that `prepare` writes: it may have been edited or torn."""
    vocabulary = PreparedData(Path(), manifest).vocabulary
    ids = (vocabulary.bos, vocabulary.eos, vocabulary.pad, vocabulary.mask, *vocabulary.special)
    if not all(0 <= number < vocabulary.size for number in ids) or manifest["token_bytes"] not in (2, 4):
        raise ValueError
    manifest["settings"].items()
    table = manifest.get("ngrams")
    if table and 2 * (table["entries"] + table["buckets"]) != manifest["files"][NGRAMS]["bytes"]:
        raise ValueError
    if units := manifest.get("units"):
        int(units["wanted"]), manifest["files"][UNITS]
    for split in SPLITS:
        record = manifest["splits"][split]
        for shard in record["shards"]:
            end = (shard["first"] + shard["tokens"]) * manifest["token_bytes"]
            if shard["first"] < 0 or end > manifest["files"][shard["file"]]["bytes"]:  # every shard has a checksum
                raise ValueError
        if sum(shard["tokens"] for shard in record["shards"]) != record["tokens"]:
            raise ValueError
