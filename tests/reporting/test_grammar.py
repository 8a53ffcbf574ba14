"""Grammar tests on the page: every model with its floors, at the FLOPs of its run; what does not belong is named."""

import json
import shutil

import pytest

from latemask import compare, report
from latemask.evaluation.identity import encoder_checksum
from latemask.reporting.grammar import grammar_figures, read_grammar
from latemask.reporting.runs import read_runs
from latemask.run_folder import RunFolder


def entry(name, run=None, step=None, mean=60.0, identity=None):
    terms = {"<b>islands</b>": {"mean": mean, "error": 0.4, "unigram": 55.0, "untrained": 50.0}}
    own = None if run is None else encoder_checksum(RunFolder(run).model)
    floors = {"unigram": 55.0, "untrained": 50.0, "errors_of_floors": {"unigram": 0.2, "untrained": 0.3}}
    where = {"run": None if run is None else str(run.resolve()), "identity": identity or own or name, "step": step}
    return {
        "model": name,
        **where,
        "mean": mean,
        "error": 0.2,
        "pairs": 1000,
        "terms": terms,
        "paradigms": {},
        **floors,
    }


def write(path, *models, name="blimp", score="token"):
    pairs = {"name": name, "identity": name, "count": 1000}
    path.write_text(json.dumps({"format": 1, "made_by": [], "pairs": pairs, "score": score, "models": models}))
    return path


@pytest.fixture
def record(runs, tmp_path):
    return write(
        tmp_path / "grammar.json",
        entry("runs/late", runs.late, mean=61.0),
        entry("runs/early", runs.early, mean=54.0),
        entry("bert", mean=80.0),
    )


def test_the_page_shows_every_model_with_its_floors_and_words(runs, record, tmp_path):
    page = compare(runs.all, grammar=[record], out=tmp_path / "report").read_text("utf-8")
    assert "Grammar against FLOPs" in page
    for word in ("61.0 ± 0.2", "80.0 ± 0.2", "6.0 above word frequencies (55.0)", "1.0 BELOW word frequencies (55.0)"):
        assert word in page
    assert "<b>islands" not in page  # escaped
    assert (tmp_path / "report" / "grammar.svg").is_file()


def test_a_single_run_has_its_own(runs, record, tmp_path):
    page = report(runs.late, grammar=[record], out=tmp_path / "one").read_text("utf-8")
    assert "11.0 above never trained (50.0)" in page


def test_a_checkpoint_stands_at_the_flops_of_its_step(runs, tmp_path):
    path = write(tmp_path / "g.json", entry("late", runs.late, step=3, identity="x"), entry("late", runs.late))
    found, _ = read_runs(runs.all)
    (test,) = read_grammar([path], found).tests.values()
    early, end = test.judged
    assert early.flops == pytest.approx(end.flops / 2)
    assert early.name == "late (step 3)"


def test_a_run_that_was_moved_is_known_by_its_weights(runs, record, tmp_path):
    shutil.copytree(runs.late, tmp_path / "moved")
    found, _ = read_runs([tmp_path / "moved"])
    (test,) = read_grammar([record], found).tests.values()
    assert [one.flops is not None for one in test.judged] == [True, False, False]


def test_other_weights_and_damaged_files_are_named_and_left_out(runs, tmp_path):
    found, _ = read_runs(runs.all)
    old = write(tmp_path / "old.json", entry("late", runs.late, identity="of other weights"))
    (tmp_path / "torn.json").write_text("{")
    tests = read_grammar([old, tmp_path / "torn.json", tmp_path / "gone"], found)
    assert "late: its grammar was tested with other weights than it has now; left out" in tests.problems
    assert sum("left out: " in problem for problem in tests.problems) == 2
    assert not grammar_figures(tests)


def test_the_same_model_in_two_records_is_shown_once_and_other_pairs_apart(runs, record, tmp_path):
    found, _ = read_runs(runs.all)
    again = write(tmp_path / "again.json", entry("late", runs.late))
    other = write(tmp_path / "other.json", entry("late", runs.late), score="word")
    tests = read_grammar([record, again, other], found)
    assert [(test.name, len(test.judged)) for test in tests.tests.values()] == [("blimp", 3), ("blimp, by word", 1)]
    (figure,) = grammar_figures(tests)
    assert len(figure.drawing.axes) == 2
