"""The allocator keeps what a step gives back: pages are not faulted in again and again."""

import platform
import subprocess
import sys

import pytest

from latemask.training import allocator

_ROUNDS = 20
# The file by itself: its package imports all of transformers.
_FAULTS = """
import resource, runpy, sys, torch

if sys.argv[1] == "keep":
    assert runpy.run_path(sys.argv[3])["keep_freed_memory"]()
for _ in range(3):
    torch.ones(16_000_000)  # 64 MB, more than the C library keeps by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(int(sys.argv[2])):
    torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    words = [sys.executable, "-c", _FAULTS, how, str(_ROUNDS), allocator.__file__]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_that_is_given_back_is_not_faulted_in_again_and_again():
    # Something small may land in a block that was kept and cost one new block, once in a while: not every round.
    assert faults("keep") < faults("leave") / 4
