"""Times are read as people write them."""

import math
import time

import pytest

from latemask.ground.errors import UserError
from latemask.ground.signals import deadline, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1d", 86400), ("10", 10)]
)
def test_times_are_written_as_people_write_them(text, seconds):
    assert seconds_of(text, "--stop-after") == seconds


@pytest.mark.parametrize("text", ["", "h", "2 hours", "-5m", "1.5h"])
def test_other_times_are_refused(text):
    with pytest.raises(UserError, match="write a time as 90m"):
        seconds_of(text, "--stop-after")


def test_a_deadline_is_counted_from_now_and_none_is_never():
    assert deadline("2h", "--stop-after") == pytest.approx(time.monotonic() + 7200, abs=60)
    assert deadline(None, "--stop-after") == math.inf
