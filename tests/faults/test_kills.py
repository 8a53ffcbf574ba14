"""Killed at any moment, a run that is resumed ends as an undisturbed one does, to the bit."""

import pytest

from tests.faults.tormenting import torment


@pytest.mark.parametrize(("name", "seed"), [("KILL", 1), ("TERM", 2)])
def test_killed_five_times_the_end_is_the_same(tmp_path, name, seed):
    tally = torment(tmp_path, rounds=5, name=name, seed=seed)
    assert tally.rounds >= 5
    assert tally.lost == 0
    assert tally.identical
