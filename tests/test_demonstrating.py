"""demo: the whole job, here on a small part of the builtin text and a tiny recipe."""

import re
from itertools import islice

import pytest

from latemask import demo
from latemask.recipe import BudgetRecipe, load_recipe
from latemask.text.builtin import BuiltinReader, builtin_files
from tests.conftest import tiny_recipe


@pytest.fixture
def small(monkeypatch):
    """Less text and fewer steps; everything else is the real demo."""
    whole, some = BuiltinReader.run, builtin_files()[::15]
    monkeypatch.setattr("latemask.text.builtin.builtin_files", lambda: some)
    monkeypatch.setattr(BuiltinReader, "run", lambda self: islice(whole(self), 0, None, 3))
    monkeypatch.setattr("latemask.demonstrating.PROBE_EXAMPLES", 200)
    monkeypatch.setattr("latemask.evaluation.probe_tasks._FEWEST_OF_AN_ORIGIN", 20)
    recipe = tiny_recipe(budget=BudgetRecipe(steps=5))
    monkeypatch.setattr("latemask.demonstrating.load_recipe", lambda name: recipe)


def test_it_goes_from_nothing_to_an_encoder_and_says_what_next(small, tmp_path, capsys):
    run = demo(out=tmp_path / "demo")
    out, said = capsys.readouterr()
    assert run.is_finished()
    assert (run.encoder / "config.json").is_file()
    assert re.search(r"loss [678]\.\d\d -> ", said)
    for word in ("next:", "latemask fill", str(run.encoder), "Return the number of <mask>"):
        assert word in said
    assert "random encoder" in out  # it ends with the probes
    page = run.path / "report" / "report.html"
    assert said.rstrip().endswith(f"report: {page}  (open it in a browser)")
    assert "step 5 of 5" in page.read_text()


def test_a_second_time_everything_is_there_already(small, tmp_path, capsys):
    demo(out=tmp_path / "demo")
    capsys.readouterr()
    demo(out=tmp_path / "demo")
    said = capsys.readouterr().err
    assert "nothing to do" in said
    assert "finished already" in said


def test_the_real_demo_recipe_is_small_enough():
    recipe = load_recipe("demo")
    assert recipe.budget.steps * recipe.train.batch_size * recipe.length < 3e6
