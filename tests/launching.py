"""Processes of their own for tests, without paying nine seconds of imports for each.

They are forked from one that has imported everything. They are as real as any: killed by real signals, with an exit
code of their own. Like the tests themselves, they measure no machine and draw no page (tests/conftest.py).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MODULES = ["tests.launching_preloaded"]


def forked(target: Callable[..., None], *args: Any) -> Any:
    """Return a process, not started yet, that will call `target`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    return context.Process(target=_lightly, args=(target, *args))


def _lightly(target: Callable[..., None], *args: Any) -> None:
    from latemask.training import running

    running.measured_peak = lambda device, dtype: 1e11
    running.write_page = lambda run: run
    target(*args)


@dataclass
class Launched:
    """`latemask WORDS` in a process of its own."""

    process: Any
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """As a shell sees it; None while it runs."""
        return self.process.exitcode

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text("utf-8")

    @property
    def stderr(self) -> str:
        """All that it has said so far."""
        return (self.folder / "stderr").read_text("utf-8")

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_for(self, line: str, seconds: float = 120) -> None:
        """Wait until it says a line that begins so, or ends."""
        until = time.monotonic() + seconds
        while self.process.is_alive() and f"\n{line}" not in f"\n{self.stderr}":
            assert time.monotonic() < until, self.stderr
            time.sleep(0.02)

    def wait(self, seconds: float = 120) -> int:
        """Wait for its end, and return its exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, self.stderr
        return self.process.exitcode


def launch(
    folder: Path,
    *words: object,
    session: bool = False,
    change: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Launched:
    """Start `latemask WORDS`; what it says goes into files in `folder`. `change` sets names in its modules."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("stdout", "stderr"):
        (folder / name).write_text("")
    how = (Path.cwd(), {**os.environ, **(env or {})}, session, dict(change or {}))
    process = forked(_latemask, list(map(str, words)), folder, *how)
    process.start()
    return Launched(process, folder)


def run(folder: Path, *words: object, **how: Any) -> Launched:
    """Run `latemask WORDS` to its end."""
    launched = launch(folder, *words, **how)
    launched.wait()
    return launched


def _latemask(
    words: list[str], folder: Path, where: Path, environment: dict[str, str], session: bool, change: dict[str, Any]
) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    if session:
        os.setsid()
    os.chdir(where)
    os.environ.clear()
    os.environ.update(environment)
    for name, value in change.items():
        owner, _, attribute = name.rpartition(".")
        setattr(pkgutil.resolve_name(owner), attribute, value)
    from latemask.cli import main

    sys.argv = ["latemask", *words]
    sys.exit(main())
