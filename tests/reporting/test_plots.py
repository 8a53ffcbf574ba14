"""Figures: no two series look the same, and no name breaks one."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from latemask.reporting.plots import fitting, looks, places


def test_no_two_of_thirty_series_look_the_same_and_neighbours_differ_in_more_than_colour():
    found = [tuple(map(str, look.values())) for look in looks(30)]
    assert len(set(found)) == 30
    for (colour, dash, marker), (other_colour, other_dash, other_marker) in pairwise(found):
        assert (colour != other_colour, dash != other_dash, marker != other_marker) == (True, True, True)


def test_long_names_are_cut_in_the_middle_and_stay_apart():
    names = fitting(["short", "a" * 100, "a" * 101, f"{'b' * 40}-seed-1"])
    assert names[0] == "short"
    assert len(set(names)) == 4
    assert max(map(len, names)) < 40
    assert names[3].endswith("-seed-1")


def test_arms_with_the_same_flops_stand_side_by_side():
    arms = [SimpleNamespace(flops=flops) for flops in (100.0, 78.0, 100.0, 100.5)]
    found = places(arms)
    assert found == pytest.approx([100, 78, 102.01, 104.5], rel=0.01)
    assert min(abs(one - other) for one in found for other in found if one != other) >= 2
