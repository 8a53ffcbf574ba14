"""A folder that knows what is in it: a manifest with the size and SHA-256 of every file, written last.

What was torn, cut, zeroed or changed by a single bit is noticed and named; the manifest itself included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latemask.ground.files import json_digest, sha256_of, sync, write_text_atomically

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """Bring every file of a folder to the disk, and write down what they are."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    for path in paths:
        sync(path)
    files = {str(path.relative_to(folder)): [path.stat().st_size, sha256_of(path)] for path in paths}
    write_text_atomically(folder / MANIFEST, _written(files))
    for inner in {path.parent for path in paths} | {folder}:
        sync(inner)


def damage(folder: Path) -> str | None:
    """Say what is wrong with a sealed folder, naming the file; None if nothing is."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return f"{manifest} is missing"
    files = _read(manifest)
    if files is None:
        return f"{manifest} is damaged"
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size or sha256_of(path) != digest:
            return f"{path} is damaged"
    return None


def _written(files: dict[str, Any]) -> str:
    return json.dumps({"files": files, "sha256": json_digest(files)}, indent=2) + "\n"


def _read(manifest: Path) -> dict[str, Any] | None:
    """Return what a manifest says; None unless it is, byte for byte, one that we wrote."""
    try:
        text = manifest.read_text("utf-8")
        files = json.loads(text)["files"]
        return files if text == _written(files) else None
    except (ValueError, LookupError, TypeError):
        return None
