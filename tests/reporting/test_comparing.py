"""`latemask compare` and `latemask report`: a page, figures and tables, and plain words about what is wrong."""

import csv
import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from latemask import compare, report
from latemask.cli import main
from latemask.ground.errors import UserError
from latemask.reporting import write_page
from latemask.run_folder import RunFolder
from tests.reporting.conftest import CONTROL, write_results

FIGURES = ("loss-steps", "loss-tokens", "loss-flops", "loss-seconds", "compute")


@pytest.fixture
def copied(runs, tmp_path):
    """A run whose files a test may change."""
    return shutil.copytree(runs.late, tmp_path / "copied")


def test_the_page_has_all_figures_all_runs_and_the_verdict(runs, results, tmp_path, capsys):
    code = main(["compare", *map(str, runs.all), "--glue", str(results), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    page = (tmp_path / "out" / "report.html").read_text()
    assert code == 0
    assert f"report: {tmp_path / 'out' / 'report.html'}" in said
    for name in (*FIGURES, "loss-end", "scores", "tasks"):
        assert f'id="figure-{name}"' in page
        ElementTree.parse(tmp_path / "out" / f"{name}.svg")
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<svg") == len(FIGURES) + 3
    assert "reaches the median of early 40%" in page
    assert "reaches the median of early 40%" in said
    assert "mask.rate" in page


def test_the_tables_hold_every_number(runs, results, tmp_path):
    compare(runs.all, glue=[results], out=tmp_path / "out")
    curves = list(csv.DictReader((tmp_path / "out" / "curves.csv").open()))
    written = [json.loads(line) for run in runs.all for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [int(row["step"]) for row in curves] == [row["step"] for row in written]
    assert [float(row["loss"]) for row in curves if row["loss"]] == [row["loss"] for row in written if "loss" in row]
    scores = list(csv.DictReader((tmp_path / "out" / "scores.csv").open()))
    assert len(scores) == 3 * 2 * 2 + 2  # and a floor for each task
    assert {row["score"] for row in scores if row["masking"] == "no encoder"} == {"50.0"}
    assert {row["score"] for row in scores if (row["run"], row["task"]) == ("late", "sst2")} == {"80.0", "82.0"}


def test_a_never_trained_control_is_shown_everywhere(runs, tmp_path):
    scores = {run: {"sst2": [0.8]} for run in runs.all} | {CONTROL: {"sst2": [0.5, 0.625]}}
    page = compare(runs.all, glue=[write_results(tmp_path / "results.json", scores)], out=tmp_path / "out").read_text()
    assert page.count("never trained (random:&lt;tiny&gt;)") == 2  # in the legend and in the table
    assert "Never trained, random:&lt;tiny&gt; has 56.2" in page
    assert page.count("Broken line: never trained") == 2
    assert "random:<tiny>,never trained,,0,sst2,0.0001,1,62.5\n" in (tmp_path / "out" / "scores.csv").read_text()


def test_floors_stand_in_the_table_the_caption_and_the_words(runs, tmp_path):
    path = write_results(tmp_path / "results.json", {run: {"sst2": [0.8]} for run in runs.all})
    record = json.loads(path.read_text())
    record["tasks"]["sst2"]["floors"] = [{"name": "<tf>", "words": "", "score": 0.9, "metrics": {}}]
    path.write_text(json.dumps(record))
    page = compare(runs.all, glue=[path], out=tmp_path / "out").read_text()
    assert "Floors: majority class or mean 50.0, &lt;tf&gt; 90.0." in page
    assert "Without an encoder, &lt;tf&gt; has 90.0; AT OR BELOW it: late" in page
    assert page.count("&lt;tf&gt;") == 3  # once more in the table
    assert "<tf>,no encoder,,,sst2,,,90.0\n" in (tmp_path / "out" / "scores.csv").read_text()


def test_the_same_page_comes_out_twice(runs, results, tmp_path):
    for name in ("one", "two"):
        compare(runs.all, glue=[results], out=tmp_path / name)
    for file in (tmp_path / "one").glob("*.svg"):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_nothing_is_loaded_from_anywhere(runs, tmp_path):
    page = compare(runs.all, out=tmp_path / "out").read_text()
    assert "<script" not in page
    assert "Content-Security-Policy" in page
    for attribute in ('src="http', 'href="http', "url(http", "@import"):
        assert attribute not in page


def test_names_and_errors_are_escaped(runs, tmp_path, capsys):
    nasty = shutil.copytree(runs.late, tmp_path / "<img src=x onerror=alert(1)>$x^2$\x1b[31m")
    page = compare([nasty, runs.early], glue=[tmp_path / "<b>.json"], out=tmp_path / "out").read_text()
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;$x^2$\\x1b[31m" in page
    assert "<b>" not in page
    assert "\x1b" not in page + capsys.readouterr().err


def test_wrong_and_unfinished_runs_are_said_on_the_page_and_on_stderr(runs, copied, tmp_path, capsys):
    record = json.loads((copied / "run.json").read_text())
    record["status"] = "stopped"
    record["data"]["fingerprint"] = {"tokenizer/tokenizer.json": "0"}
    (copied / "run.json").write_text(json.dumps(record))
    page = compare([*runs.all, copied, tmp_path / "nowhere"], glue=[tmp_path / "none.json"], out=tmp_path / "out")
    for text in (page.read_text(), capsys.readouterr().err):
        assert "nowhere: no such folder" in text
        assert "copied: not finished" in text
        assert "different data" in text
        assert "different tokenizers" in text
        assert "none.json: no such file" in text


def test_no_run_at_all_is_an_error(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "nowhere")]) == 2
    assert "nothing to compare" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report.html", "scores.csv", "curves.csv", "compute.png"])
def test_somebody_elses_files_are_not_overwritten(runs, tmp_path, name):
    (tmp_path / name).write_text("my thesis on latemask")
    with pytest.raises(UserError, match=f"{name} was not written by latemask"):
        compare(runs.all, out=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "my thesis on latemask"}


def test_a_page_that_is_written_again_leaves_no_figure_of_the_one_before(runs, results, tmp_path):
    out = tmp_path / "out"
    compare(runs.all, glue=[results], out=out)
    assert (out / "scores.svg").is_file()
    (out / "notes.txt").write_text("mine")
    compare(runs.all, out=out)
    assert not (out / "scores.svg").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_scores_of_a_run_that_is_not_finished_are_in_the_table(runs, copied, results, tmp_path):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "stopped"}))
    page = compare([copied, runs.early, runs.fifteen], glue=[results], out=tmp_path / "out")
    assert "copied (not finished)" in page.read_text()
    assert "copied,late 40% inside 2,0," in (tmp_path / "out" / "scores.csv").read_text()


def test_a_report_is_about_one_run_and_lies_in_it(copied, capsys):
    assert main(["report", str(copied)]) == 0
    page = (copied / "report" / "report.html").read_text()
    assert "step 6 of 6" in page
    assert "<progress" in page
    assert all(f'id="figure-{name}"' in page for name in FIGURES)
    assert "Finished: step 6 of 6" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_report_while_the_run_still_runs(copied, rows, tmp_path):
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**record, "status": "running"}))
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:rows]))
    with RunFolder(copied).held():
        page = report(copied, out=tmp_path / "elsewhere").read_text()
    assert "Running: step" in page
    assert "not finished" in page
    assert ("to go" in page) == (rows == 3)


def test_a_report_of_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "not a latemask run" in capsys.readouterr().err


def test_the_end_of_a_run_writes_the_page(runs):
    assert "Finished: step 6 of 6" in (runs.late / "report" / "report.html").read_text()


def test_a_page_that_cannot_be_written_does_not_fail_the_run(runs, copied, monkeypatch, capsys):
    def full(run: Path) -> Path:
        raise OSError(28, "No space left on device")

    from latemask.training import running

    monkeypatch.setattr(running, "write_page", full)
    running.write_report(RunFolder(copied))
    assert "no report was written" in capsys.readouterr().err


def test_writing_the_page_again_changes_only_the_page(copied):
    shutil.rmtree(copied / "report")
    write_page(copied)
    assert [path.name for path in (copied / "report").iterdir()] == ["report.html"]
