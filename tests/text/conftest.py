"""What several tests of this room need."""

import os
import resource

import pytest


@pytest.fixture
def few_descriptors():
    """Room for 40 more open files: less than the shards that are read."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 40, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
