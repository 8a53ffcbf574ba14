"""Training on a CPU without page faults: memory that a step gives back is kept for the next one.

The C library hands blocks over 32 MB back to the system and gets fresh ones, which the system clears page by page: at
base size 15 % of a step (docs/results.md). A training step needs the same blocks again and again.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, for the rest of this process; elsewhere do nothing and return False."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, -1))
