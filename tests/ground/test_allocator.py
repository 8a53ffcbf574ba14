"""The allocator keeps what a step gives back: the system is not asked for the same pages again and again.

Asked of the C library itself, not counted in page faults: where a block lands, and so how many pages are new, differs
from process to process.
"""

import json
import platform
import subprocess
import sys

import pytest

from latemask.ground import allocator

_BLOCK = 64_000_000  # bytes: more than the C library ever keeps by itself
# In a process of its own, for the setting is for good; the file by itself, for its package imports all of transformers.
_TAKE_AND_GIVE_BACK = """
import ctypes, json, runpy, sys

fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # struct mallinfo2
MallInfo = type("MallInfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields.split()]})
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = MallInfo
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def taken_from_the_system():
    now = libc.mallinfo2()
    return now.arena + now.hblkhd

if sys.argv[1] == "keep":
    assert runpy.run_path(sys.argv[3])["keep_freed_memory"]()
before = taken_from_the_system()
block = libc.malloc(int(sys.argv[2]))
with_block = taken_from_the_system()
libc.free(block)
print(json.dumps([size - before for size in (with_block, taken_from_the_system())]))
"""


def held_with_and_after_a_block(how: str) -> tuple[int, int]:
    """Bytes the process has from the system, beyond those at its start: while it uses a block, and once it is freed."""
    words = [sys.executable, "-c", _TAKE_AND_GIVE_BACK, how, str(_BLOCK), allocator.__file__]
    with_block, after = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return with_block, after


def glibc_tells() -> bool:
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split("."))) >= (2, 33)  # mallinfo2


@pytest.mark.skipif(not glibc_tells(), reason="only glibc from 2.33 tells what it holds")
def test_memory_that_is_given_back_is_kept_for_the_next_step():
    with_block, after = held_with_and_after_a_block("keep")
    assert with_block >= _BLOCK
    assert after == with_block


@pytest.mark.skipif(not glibc_tells(), reason="only glibc from 2.33 tells what it holds")
def test_by_itself_the_c_library_would_give_it_to_the_system():
    with_block, after = held_with_and_after_a_block("leave")
    assert with_block >= _BLOCK
    assert after < _BLOCK
