"""The folder of a preparation in progress, inside the folder that it makes: what is finished survives, and is kept.

OUT/.preparing/settings.json   what is being prepared; anything else starts afresh
OUT/.preparing/records/        sealed parts and finished tasks
OUT/.preparing/logs/           datatrove's: which tasks of which stage are complete, and their logs
OUT/.preparing/lock            held by the process at work
It goes away when the manifest is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from latemask.ground.files import exclusive_lock, write_json_atomically

FOLDER = ".preparing"
_ENDINGS = (".ds", ".ds.index", ".json", ".jinja", ".txt", ".model")  # of shards, and of what a tokenizer consists of


def _is_ours(file: Path) -> bool:
    return file.is_file() and file.name.endswith(_ENDINGS if file.parent.name == "tokenizer" else _ENDINGS[:2])


@dataclass(frozen=True)
class Workplace:
    """Paths and state of a preparation."""

    out: Path

    @property
    def folder(self) -> Path:
        """Where everything is that the result will not need."""
        return self.out / FOLDER

    @property
    def _settings_file(self) -> Path:
        return self.folder / "settings.json"

    def lock(self) -> FileLock:
        """Take the folder for this process; the system frees it however the process ends."""
        return exclusive_lock(self.folder / "lock", f"{self.out} is being prepared by another process")

    def is_begun(self) -> bool:
        """Whether a preparation was begun here, and not finished."""
        return self._settings_file.is_file()

    def foreign_files(self, names: frozenset[str]) -> Iterator[str]:
        """Yield what a preparation whose result is `names` would not have put here."""
        for path in sorted(self.out.iterdir()):
            if path.name.startswith(tuple(f".{name}." for name in names)):  # of one that was killed while it wrote it
                continue
            if path.name not in names | {FOLDER}:
                yield path.name
            elif path.is_dir() and path.name != FOLDER:
                yield from (str(file.relative_to(self.out)) for file in path.rglob("*") if not _is_ours(file))

    def goes_on(self, settings: dict[str, Any]) -> bool:
        """Whether an interrupted preparation with the same settings is here."""
        try:
            return json.loads(self._settings_file.read_text("utf-8")) == json.loads(json.dumps(settings))
        except (OSError, ValueError):
            return False

    def start(self, settings: dict[str, Any], names: frozenset[str]) -> None:
        """Begin afresh: remove what an earlier preparation left of `names`, then say what is being prepared."""
        self._settings_file.unlink(missing_ok=True)  # first: what is half removed must not be gone on with
        for name in names:
            path = self.out / name
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        write_json_atomically(self._settings_file, settings)

    def clear_unfinished(self) -> None:
        """Remove parts that an interrupted process was writing, and how far it was."""
        for name in ("writing", "progress"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def remove_if_useless(self) -> None:
        """Leave nothing where nothing was finished that a next run could use."""
        if self.folder.is_dir() and not (self.folder / "records").is_dir() and not (self.out / "tokenizer").is_dir():
            self.remove()
            if not any(self.out.iterdir()):
                self.out.rmdir()

    def remove(self) -> None:
        """Leave nothing but the result."""
        shutil.rmtree(self.folder, ignore_errors=True)
