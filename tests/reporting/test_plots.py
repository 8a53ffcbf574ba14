"""Figures: no two series look the same, and no name breaks one."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from latemask.reporting.plots import curves, ends, fitting, looks, places
from latemask.reporting.runs import read_run
from latemask.reporting.scores import Scores
from latemask.reporting.verdict import arms_of


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


def test_every_name_is_in_the_legend_as_it_is(runs):
    names = ["_hidden", "#0072b2"]
    read = [replace(read_run(run), name=name) for run, name in zip((runs.late, runs.early), names, strict=True)]
    for figure in curves(read):
        assert all(f">{name}<" in figure.inline for name in names)


def test_letters_that_this_machine_cannot_draw_are_no_trouble(runs, tmp_path, recwarn):
    curves([replace(read_run(runs.late), name="日本"), read_run(runs.early)])[0].save(tmp_path)
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_last_losses_are_drawn_only_if_all_were_validated_alike(runs):
    read = [read_run(run) for run in runs.all]
    nothing = Scores([], {run.name: {} for run in read}, [])
    assert [figure.name for figure in ends(arms_of(read, nothing))] == ["loss-end"]
    assert ends(arms_of(read[:1], nothing)) == []
    silent = replace(read[0], rows=read[0].points("loss"))
    assert ends(arms_of([silent, *read[1:]], nothing)) == []
    train = replace(read[0].recipe.train, eval_rows=9)
    other = replace(read[0], recipe=replace(read[0].recipe, train=train))
    assert ends(arms_of([other, *read[1:]], nothing)) == []


def test_arms_with_the_same_flops_stand_side_by_side():
    arms = [SimpleNamespace(flops=flops) for flops in (100.0, 78.0, 100.0, 100.5)]
    found = places(arms)
    assert found == pytest.approx([100, 78, 102.01, 104.5], rel=0.01)
    assert min(abs(one - other) for one in found for other in found if one != other) >= 2
