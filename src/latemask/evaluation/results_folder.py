"""The folder that finetune and glue write: taken by one process, gone on with, never overwritten unasked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latemask.evaluation.display import as_csv, as_markdown
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import exclusive_lock, write_text_atomically

RESULTS, TABLE, CSV = "results.json", "results.md", "results.csv"
MODEL = "model"
_LOCK = ".lock"


@contextmanager
def begin(out: Path, protocol: Protocol, overwrite: bool) -> Iterator[Results]:
    """Take a folder for results, this process alone; go on with those that are there, unless told to start again."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{printable(str(out))} is a file, not a folder")
    is_ours = (out / RESULTS).exists()
    if out.is_dir() and not is_ours and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"{printable(str(out))} is not empty and holds no results; choose another --out")
    lock = exclusive_lock(out / _LOCK, f"{printable(str(out))} is in use by another process")
    try:
        if overwrite and is_ours:
            Results.read(out / RESULTS)  # what is not ours, or cannot be told, is not for us to remove
            shutil.rmtree(out / MODEL, ignore_errors=True)
            for name in (TABLE, CSV, RESULTS):  # the one that says that the folder is ours goes last
                (out / name).unlink(missing_ok=True)
        yield Results.begin(out / RESULTS, protocol)
    finally:
        lock.release()


def write_tables(results: Results) -> None:
    """Write the table beside the results, as Markdown and CSV."""
    results.write()
    write_text_atomically(results.path.with_name(TABLE), as_markdown(results))
    write_text_atomically(results.path.with_name(CSV), as_csv(results))
