"""English text that is on every machine where latemask is installed: the documentation of Python and of what we use.

Read from source files, never imported: collecting text must not run anybody's code.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.readers.base import BaseReader

# Dependencies (of ours or of torch) whose documentation is prose. torch and transformers themselves would add
# 11 MB of which most repeats the same argument lists, and 40 seconds of parsing.
PACKAGES = ("accelerate", "datatrove", "fsspec", "huggingface_hub", "jinja2", "networkx", "numpy")
_SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages"})
_SHORTEST = 80  # characters; shorter docstrings say little beyond the function's name


def builtin_files() -> list[Path]:
    """Source files whose docstrings make the builtin text, in a stable order."""
    paths = sysconfig.get_paths()
    found: list[Path] = []
    for root in (Path(paths["stdlib"]), *(Path(paths["purelib"]) / name for name in PACKAGES)):
        inside = sorted((path.relative_to(root) for path in root.rglob("*.py")), key=Path.as_posix)
        found += (root / path for path in inside if not _SKIPPED_FOLDERS & set(path.parts[:-1]))
    return found


class BuiltinReader(BaseReader):
    """The first step of a datatrove pipeline: one document for each source file and each of Python's help topics."""

    name = "🏠 latemask builtin text"

    def __init__(self, limit: int | None = None):
        super().__init__()
        self.characters_left = limit

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents, each docstring once; stop after `limit` characters if there is one."""
        from pydoc_data.topics import topics

        left = self.characters_left
        seen: set[str] = set()
        help_topics = ((f"topics/{name}", [text.strip()]) for name, text in sorted(topics.items()))
        for name, parts in chain(help_topics, ((str(path), docstrings(path)) for path in builtin_files())):
            text = "\n\n".join(part for part in parts if part not in seen)
            seen.update(parts)
            if text:
                yield Document(text=text, id=name)
            if left is not None and (left := left - len(text)) <= 0:
                return


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of a Python file, in source order; none if it is not readable Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escape sequences are not our user's business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, owners))
    return [text for text in found if text and len(text) >= _SHORTEST and text.isascii()]
