"""Minimal pairs: every layout they are published in gives the same pairs; what is no pair is named."""

import gzip
import json

import pytest

from latemask import UserError
from latemask.evaluation.minimal_pairs import read_pairs

PAIRS = [("agreement", "number", "Dogs bark.", "Dogs barks."), ("islands", "adjunct", "Who left?", "Left who?")]


def write_tsv(path):
    lines = ["suite\tterm\tparadigm\tgood\tbad", *("\t".join(["mine", *pair]) for pair in PAIRS)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def write_blimp(folder):
    """BLiMP's own layout: a file for each paradigm, with more columns than we need."""
    folder.mkdir()
    for number, (term, paradigm, good, bad) in enumerate(PAIRS):
        row = {"sentence_good": good, "sentence_bad": bad, "field": "syntax", "linguistics_term": term, "UID": paradigm}
        (folder / f"{number}_{paradigm}.jsonl").write_text(json.dumps({**row, "pairID": 0}) + "\n")
    return folder


def test_a_table_and_blimps_folder_hold_the_same_pairs(tmp_path):
    table, folder = read_pairs(write_tsv(tmp_path / "mine.tsv.gz")), read_pairs(write_blimp(tmp_path / "blimp"))
    assert table.good == folder.good == ["Dogs bark.", "Who left?"]
    assert table.bad == ["Dogs barks.", "Left who?"]
    assert table.paradigms == [("agreement", "number"), ("islands", "adjunct")]
    assert (table.name, folder.name) == ("mine", "blimp")
    assert table.identity == folder.identity


def test_without_names_all_pairs_of_a_file_are_one_paradigm(tmp_path):
    (tmp_path / "own.csv").write_text('good,bad\n"Yes, it is.",Yes it are.\n')
    assert read_pairs(tmp_path / "own.csv").paradigms == [("all", "own")]


def test_a_table_in_the_folder_that_holds_no_pairs_is_left_out_and_named(tmp_path, capsys):
    folder = write_blimp(tmp_path / "blimp")
    (folder / "scores.csv").write_text("model,mean\ngpt2,82\n")
    assert len(read_pairs(folder)) == 2
    assert "scores.csv: left out, it has no columns 'good' and 'bad'" in " ".join(capsys.readouterr().err.split())


def test_twice_the_same_sentence_is_said(tmp_path, capsys):
    (tmp_path / "own.csv").write_text("good,bad\nSame.,Same.\n")
    read_pairs(tmp_path / "own.csv")
    assert "1 pairs are twice the same sentence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "right,wrong\na,b\n", "no columns 'good' and 'bad' .*it has 'right', 'wrong'"),
        ("p.csv", "good,bad\na,\n", "p.csv:2: one of the two sentences is missing"),
        ("p.csv", "good,bad\n", "holds no rows"),
        ("p.txt", "good bad", "a table is needed"),
    ],
)
def test_what_holds_no_pairs_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / name)


def test_so_is_a_folder_without_tables_and_what_is_not_there(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(UserError, match="no table in it"):
        read_pairs(tmp_path)
    with pytest.raises(UserError, match="no such file or folder"):
        read_pairs(tmp_path / "gone")
