"""When to stop: Ctrl-C and SIGTERM as a flag, and time limits as people write them (90m, 2h, 1h30m)."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, TypeVar

from latemask.ground.errors import UserError
from latemask.ground.processes import LargestOfAll, is_first, world_size

_ECHO_SECONDS = 5.0
Flag = TypeVar("Flag", bound="SignalFlag")


class SignalFlag:
    """Notes the first signal while it is entered. An exception raised by a handler could be lost in any frame."""

    def __init__(self, message: str):
        self.message = message
        self.received: int | None = None
        self.noted = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self: Flag) -> Flag:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if world_size() > 1 and time.monotonic() - self.noted < _ECHO_SECONDS:
                return  # sent to all processes, and passed on by the one that started them
            raise KeyboardInterrupt
        self.received, self.noted = number, time.monotonic()
        if is_first():
            _say_at_once(self.message)


class StopRequest(SignalFlag):
    """Ctrl-C, SIGTERM and a limit of time finish the step and save; a second signal ends at once. Used as a context."""

    def __init__(self, deadline: float):
        super().__init__("stopping after this step, with a checkpoint (once more ends at once)")
        self.deadline = deadline
        self.largest_of_all = LargestOfAll()

    def is_asked(self) -> bool:
        """Whether to stop, in all processes after the same step: what reached one is known to all a step later."""
        out_of_time = 0.5 if time.monotonic() > self.deadline else 0.0
        asked = self.largest_of_all(float(self.received or out_of_time))
        if asked >= 1:
            self.received = int(asked)  # the signal may have reached another process only
        return asked > 0


def _say_at_once(message: str) -> None:
    """Write past Python's streams: the handler may have interrupted a print, or an import that printing needs."""
    with contextlib.suppress(OSError):
        os.write(2, f"{message}\n".encode())


def seconds_of(text: str, option: str) -> float:
    """Read a duration: 45s, 90m, 2h, 1h30m, 1d, or seconds."""
    found = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s?)?", text.strip())
    if not text.strip() or found is None:
        raise UserError(f"{option} {text}: write a time as 90m, 2h, 1h30m or 45s")
    return float(sum(int(part or 0) * size for part, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True)))


def deadline(text: str | None, option: str) -> float:
    """Return when a time that begins now is up, by time.monotonic(); never, if none is given."""
    return math.inf if text is None else time.monotonic() + seconds_of(text, option)
