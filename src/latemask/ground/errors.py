"""What a user may do wrong, said in one or two lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. The command line shows the message alone and exits with `exit_code`."""

    exit_code = 2


class Interrupted(UserError):
    """A run that was asked to stop, and did, with a checkpoint. Exits like a process ended by that signal."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class TimeIsUp(UserError):
    """A run that stopped at its wall-time limit, with a checkpoint. The code of sysexits.h for: try again."""

    exit_code = 75


class SaidByTheFirst(UserError):
    """In every process but the first of a run: it ends because the first does, which says why."""

    def __init__(self, exit_code: int):
        super().__init__("")
        self.exit_code = exit_code


class HandedOver(UserError):
    """Not a mistake: the work goes on elsewhere, and there is no result yet."""

    exit_code = 0


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the valid name nearest to `name`, or what is valid, ready to append."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else f" (valid: {', '.join(valid)})"
