"""The record of a probe: comes back as it was written, or not at all; its words agree with its numbers."""

import json
from dataclasses import replace

import pytest

from latemask import UserError
from latemask.evaluation.effective_rank import EffectiveRank, LayerRank
from latemask.evaluation.probe_records import (
    LayerScores,
    ProbeRecord,
    ProbeResult,
    layer_rows,
    layer_words,
    probe_rows,
    rank_rows,
    rank_words,
    read_probe,
)


def probe_of(*layers: list[float], task: str = "order", mean: list[float] | None = None) -> ProbeResult:
    """A probe with these accuracies, layer by layer."""
    found = [LayerScores(str(number), scores, [0.5] * len(scores)) for number, scores in enumerate(layers)]
    if mean:
        found.append(LayerScores("mean of the last 2", mean, [0.5] * len(mean)))
    return ProbeResult(task, f"which {task}", 300, 0.5, layers[-1], [0.5] * len(layers[-1]), found)


@pytest.fixture
def record():
    ranks = [LayerRank(0, 0.5, 0.5, 0.25), LayerRank(1, 0.75, 0.5, 0.625)]
    rank = EffectiveRank(0.9, 0.15, 1000, 150, ranks, ranks[::-1])
    return ProbeRecord("runs/a", "0" * 64, "late", "a.txt", [probe_of([0.5, 0.6], [0.8, 0.9])], rank, [{"command": []}])


def test_a_record_comes_back_as_it_was_written(record, tmp_path):
    record.write(tmp_path / "p.json")
    assert read_probe(tmp_path / "p.json") == record
    short = replace(record, rank=None, objective=None, probes=[replace(record.probes[0], layers=[])])
    short.write(tmp_path / "p.json")
    assert read_probe(tmp_path / "p.json") == short


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("probes"),
        lambda record: record["probes"].clear(),
        lambda record: record["probes"][0].update(encoder=["0.5", 0.6]),
        lambda record: record["probes"][0].update(encoder=[float("nan"), 0.5]),
        lambda record: record["probes"][0]["encoder"].pop(),
        lambda record: record["probes"][0].pop("majority"),
        lambda record: record["probes"][0]["layers"][1]["random"].append(0.5),
        lambda record: record["probes"][0]["layers"][1].update(layer=1),
        lambda record: record["encoder"].update(name=3),
        lambda record: record["rank"]["encoder"].pop(),
        lambda record: record["rank"]["encoder"][0].update(clean=1.5),
        lambda record: record["rank"].update(tokens="many"),
        lambda record: record.update(rank=[]),
        lambda record: record.pop("made_by"),
    ],
)
def test_a_damaged_record_is_named(record, tmp_path, change):
    path = tmp_path / "p.json"
    damaged = json.loads(json.dumps(record.as_record()))
    change(damaged)
    path.write_text(json.dumps(damaged))
    with pytest.raises(UserError, match=r"p\.json is damaged, or no record"):
        read_probe(path)


def test_no_file_no_json_and_another_format_are_said(record, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_probe(tmp_path / "p.json")
    for text in ("", "[]", '{"format":', "\x00"):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(UserError, match="is damaged"):
            read_probe(tmp_path / "p.json")
    (tmp_path / "p.json").write_text(json.dumps({**record.as_record(), "format": 9}))
    with pytest.raises(UserError, match="format 9"):
        read_probe(tmp_path / "p.json")


def test_tables_show_medians_and_spread_and_escape_what_files_say(record):
    (probe,) = record.probes
    assert probe_rows([replace(probe, question="a\x1b[2Jb")])[1] == [
        "a\\x1b[2Jb", "85.0 (80.0–90.0)", "50.0 (50.0–50.0)", "50.0", "300"
    ]  # fmt: skip
    assert layer_rows([probe, replace(probe, task="file")]) == [
        ["layer", "order", "random", "file", "random"],
        ["0", "55.0", "50.0", "55.0", "50.0"],
        ["1", "85.0", "50.0", "85.0", "50.0"],
    ]
    assert rank_rows(record.rank)[1:] == [["0", "50.0", "50.0", "25.0", "75.0"], ["1", "75.0", "50.0", "62.5", "50.0"]]


def test_a_better_layer_is_named_if_it_is_better_in_every_split():
    order, file = (
        probe_of([0.5, 0.5], [0.8, 0.9], [0.7, 0.8]),
        probe_of([0.6, 0.6], [0.6, 0.6], [0.6, 0.7], task="file"),
    )
    assert layer_words([order, file]) == [
        "order: best from layer 1, 85.0 (80.0–90.0); the last layer has 75.0 (70.0–80.0)",
        "file: best from layer 2, 65.0 (60.0–70.0), the last one",
        "all probes together: layer 1 is best, but not in every split; pool the last layer",
    ]
    assert layer_words([order])[-1] == (
        "all probes together: layer 1 is better than the last layer in every split, by 10.0 to 10.0 points"
    )


def test_the_last_layer_is_left_only_for_a_better_one():
    equal = probe_of([0.7, 0.7], [0.7, 0.7], mean=[0.7, 0.7])
    assert layer_words([equal])[-1] == "all probes together: no layer is better than the last; pool that one"
    mean = probe_of([0.6, 0.7], [0.7, 0.7], mean=[0.8, 0.75])
    assert layer_words([mean])[-1].startswith("all probes together: the mean of the last 2 layers is better")


def test_of_a_late_encoder_it_is_said_that_it_knows_no_mask(record):
    late, early = rank_words(record.rank, "late"), rank_words(record.rank, "early")
    assert early == late[:1]
    assert "75.0 % of its dimensions hold 90% of the variance of 1,000 real tokens" in late[0]
    assert "never saw a [MASK]" in late[1]
