"""inspect: the numbers agree with a slow count, and what is shown cannot harm a terminal."""

import json
import shutil

import numpy as np
import pytest

from latemask import UserError, inspect, prepare
from latemask.cli import main
from latemask.ground.files import sha256_of
from latemask.masking.samples import SampleDataset


@pytest.fixture
def facts(data, capsys):
    return inspect(data.folder, rows=4, length=64, rate=0.4, verify=True)


def stream(data, split="train"):
    return np.concatenate([shard.map(np.dtype("<u2")) for shard in data.shards(split)])


def test_the_counts_are_those_of_the_files(data, facts):
    tokens = stream(data)
    assert facts["splits"]["train"]["tokens"] == len(tokens)
    assert facts["splits"]["train"]["documents"] == (tokens == data.vocabulary.eos).sum()
    assert facts["splits"]["validation"]["tokens"] == len(stream(data, "validation"))
    used = [int((tokens == n).sum()) for n in range(data.vocabulary.size) if n not in data.vocabulary.special]
    assert facts["vocabulary"]["unused_pieces"] == used.count(0)
    assert facts["vocabulary"]["rare_pieces"] == sum(count < 100 for count in used)
    assert facts["vocabulary"]["rare_share"] == pytest.approx(sum(c for c in used if c < 100) / len(tokens))
    assert facts["vocabulary"]["unknown_share"] == 0


def test_bytes_per_token_are_those_of_text_and_disk(data, corpus, facts):
    total = sum(record["text_bytes"] for record in facts["splits"].values())
    breaks = 2 * (sum(record["documents"] for record in facts["splits"].values()) - 1)
    assert abs(total + breaks - corpus.stat().st_size) < 0.01 * total
    assert 2 < facts["splits"]["train"]["disk_bytes_per_token"] < 2.2


def test_the_histogram_holds_every_document(data, facts):
    lengths = np.diff(np.flatnonzero(stream(data) == data.vocabulary.eos), prepend=-1)
    assert facts["lengths"]["longest"] == lengths.max()
    assert facts["lengths"]["median"] == np.median(lengths)
    lower = 0
    for entry in facts["lengths"]["histogram"]:
        upper = entry["up_to"] or np.inf
        assert entry["documents"] == ((lengths > lower) & (lengths <= upper)).sum()
        lower = upper


def test_rows_are_the_samples_of_training_with_as_much_masked_as_asked_for(data, facts):
    samples = SampleDataset(data.rows("train", 64), 4)
    for sample, row in zip((samples[n] for n in range(4)), facts["rows"], strict=True):
        assert sum(part["tokens"] for part in row) == 64
        assert sum(part["tokens"] for part in row if part["masked"]) == round(0.4 * 64)
        assert "".join(part["text"] for part in row) == data.tokenizer.decode(sample["ids"])


def test_json_is_all_of_it(data, capsys):
    assert main(["inspect", str(data.folder), "--json", "--rows", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checksums"] == "not compared"
    assert len(found["rows"]) == 1
    assert {"splits", "vocabulary", "lengths", "dropped", "skipped", "token_bytes"} <= set(found)


def test_the_page_shows_numbers_histogram_and_masked_text(data, capsys):
    assert main(["inspect", str(data.folder), "--verify"]) == 0
    page = capsys.readouterr().out
    for words in ("tokens in", "bytes of text a token", "never used", "checksums   match", "█", "⟦"):
        assert words in page


def test_a_damaged_file_is_named_with_verify(data, tmp_path, capsys):
    shutil.copytree(data.folder, tmp_path / "copy")
    shard = tmp_path / "copy" / data.manifest["splits"]["train"]["shards"][0]["file"]
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    assert main(["inspect", str(tmp_path / "copy")]) == 0
    assert main(["inspect", str(tmp_path / "copy"), "--verify"]) == 2
    assert f"{shard} does not match its checksum" in capsys.readouterr().err


def test_verify_reads_every_file_whatever_is_remembered(data, tmp_path, monkeypatch, capsys):
    shutil.copytree(data.folder, tmp_path / "copy")
    monkeypatch.setattr("latemask.text.prepared.stamp", lambda path: "always the same")
    read = []
    monkeypatch.setattr("latemask.text.prepared.sha256_of", lambda path: read.append(path) or sha256_of(path))
    for _ in range(2):
        read.clear()
        inspect(tmp_path / "copy", rows=0, verify=True)
        assert len(read) == len(data.manifest["files"])


def test_control_characters_of_the_corpus_do_not_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"red \x1b[31m and back \u202e {n}" for n in range(200)))
    prepare([path], out=tmp_path / "out")
    capsys.readouterr()
    inspect(tmp_path / "out", length=32)
    page = capsys.readouterr().out
    assert "\\x1b" in page
    assert "\x1b" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rows": -1}, "less than none"), ({"rate": 1.5}, "rate"), ({"length": 1}, "length")],
)
def test_impossible_options_are_refused(data, options, message):
    with pytest.raises(UserError, match=message):
        inspect(data.folder, **options)


def test_a_folder_too_small_for_a_row_is_shown_without_rows(tmp_path, capsys):
    path = tmp_path / "in.txt"
    path.write_text("one\n\ntwo")
    prepare([path], out=tmp_path / "out")
    assert inspect(tmp_path / "out")["rows"] is None
    assert "no row of 128 tokens" in capsys.readouterr().out
