"""Probes on the page: every layer and rank of every record; a damaged record is named."""

import pytest

from latemask import report
from latemask.evaluation.effective_rank import EffectiveRank, LayerRank
from latemask.evaluation.probe_records import LayerScores, ProbeRecord, ProbeResult
from latemask.reporting.probes import probe_figures, probe_tables, read_probes


def write(path, name="runs/<late>", with_rank=True):
    layers = [LayerScores(str(number), [0.5 + number / 10], [0.5]) for number in range(3)]
    probe = ProbeResult("order", "are the words in order", 200, 0.5, [0.7], [0.5], layers)
    ranks = [LayerRank(number, 0.4 - number / 10, 0.3, 0.35) for number in range(3)]
    rank = EffectiveRank(0.9, 0.15, 1000, 150, ranks, ranks) if with_rank else None
    ProbeRecord(name, "checksum", "late", "my text", [probe], rank, [{}]).write(path)
    return path


def test_layers_and_rank_are_on_the_page(runs, tmp_path):
    page = report(runs.late, probe=[write(tmp_path / "p.json")], out=tmp_path / "report").read_text("utf-8")
    assert "runs/&lt;late&gt;, effective rank of layer" in page
    assert "Effective rank, layer by layer" in page
    assert (tmp_path / "report" / "rank.svg").is_file()


def test_every_record_has_its_tables_and_only_ranks_are_drawn(tmp_path):
    found = read_probes([write(tmp_path / "a.json"), write(tmp_path / "b.json", "other", with_rank=False)])
    assert [len(table.rows) for table in probe_tables(found)] == [1, 3, 3, 1, 3]
    (figure,) = probe_figures(found)
    (axis,) = figure.drawing.axes
    assert list(axis.lines[0].get_ydata()) == pytest.approx([40, 30, 20])


def test_a_damaged_record_is_named_and_left_out(tmp_path):
    (tmp_path / "torn.json").write_text("{")
    found = read_probes([tmp_path / "torn.json"])
    assert "torn.json is damaged" in found.problems[0]
    assert not probe_tables(found)
    assert not probe_figures(found)
