"""The benchmark of the neighbours: its contenders are recipes, and its table in the docs is made from its records."""

import pytest
from benchmarks.neighbours import CONTENDERS, REFERENCE, close_to_the_best, recipe_of, summary, table, waves

from tests.test_readme import ROOT


def test_the_table_of_the_results_is_made_from_the_records():
    assert table(summary()) in (ROOT / "docs" / "results.md").read_text("utf-8")


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_is_a_recipe_with_a_seed(name, tmp_path):
    recipe = recipe_of(name, 3, tmp_path)
    assert recipe.seed == 3
    assert (recipe.encoder.layers, recipe.encoder.width, recipe.encoder.start) == (12, 192, "corpus")


def test_who_chooses_samples_runs_behind_what_scores_them():
    first, then = waves()
    assert REFERENCE in first
    assert {f"{name}-0" for name in CONTENDERS} <= {*first, *then}
    assert then
    assert all("select" in CONTENDERS[name.rpartition("-")[0]][1] for name in then)


def test_who_ends_close_to_the_best_is_asked_again():
    losses = {"late": 4.64, "early": 4.985, "late-word": 4.689, "of earlier": 4.6}
    assert close_to_the_best({name: {"loss": loss} for name, loss in losses.items()}) == ["late"]
