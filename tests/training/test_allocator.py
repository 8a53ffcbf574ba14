"""The allocator keeps what a step gives back: no page is faulted in twice."""

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, torch
from latemask.training.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    torch.ones(16_000_000)  # 64 MB, more than the C library keeps by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_that_is_given_back_is_there_without_page_faults():
    assert faults("keep") < 100 < 10_000 < faults("leave")
