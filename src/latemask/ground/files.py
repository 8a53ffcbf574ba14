"""Files that are whole or not there, the checksum that tells, the lock that keeps others away, and strict YAML."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from latemask.ground.errors import UserError


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def write_text_atomically(path: Path, text: str) -> None:
    """Write aside, sync, rename: a reader sees the old file or the new one, never half of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def write_json_atomically(path: Path, value: Any) -> None:
    """Write JSON the way `write_text_atomically` writes text."""
    write_text_atomically(path, json.dumps(value, indent=2) + "\n")


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, however it is laid out in a file."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_folder(new: Path, target: Path) -> None:
    """Put a finished folder in the place of another, or of none; nobody finds half of either."""
    remove_folder(target)
    new.rename(target)
    sync(target.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder: first its name, then what is in it."""
    doomed = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)  # of one that was interrupted here
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        folder.rename(doomed)
        shutil.rmtree(doomed)


def refuse_or_pass(out: Path, inputs: Iterable[Path], overwrite: bool) -> None:
    """Refuse to write a file over what is read, over a folder or, unasked, over anything."""
    if any(out.resolve() == file.resolve() for file in inputs):
        raise UserError(f"--out {out} is a file to read; choose another")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already; choose another --out or pass --overwrite")


def exclusive_lock(file: Path, busy: str) -> FileLock:
    """Take a folder for this process by a file in it, or say `busy`; the system frees it however the process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{busy}; wait for it or choose another --out") from None
    return lock


def read_yaml(path: Path, what: str) -> Any:
    """Return what a file holds, or say that it is no YAML `what`."""
    try:
        return yaml.load(path.read_text("utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a YAML {what}: {' '.join(str(error).split())[:300]}") from None


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's own, which reads plain values alone; but it would take the last of two equal keys without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if doubled := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"'{doubled[0]}' is given twice", node.start_mark)
        return super().construct_mapping(node, deep)
