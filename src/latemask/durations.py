"""How long, as people write it: 90m, 2h, 1h30m."""

from __future__ import annotations

import math
import re
import time

from latemask.errors import UserError


def seconds_of(text: str, option: str) -> float:
    """Read a duration: 45s, 90m, 2h, 1h30m, 1d, or seconds."""
    found = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s?)?", text.strip())
    if not text.strip() or found is None:
        raise UserError(f"{option} {text}: write a time as 90m, 2h, 1h30m or 45s")
    return float(sum(int(part or 0) * size for part, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True)))


def deadline(text: str | None, option: str) -> float:
    """Return when a time that begins now is up, by time.monotonic(); never, if none is given."""
    return math.inf if text is None else time.monotonic() + seconds_of(text, option)
