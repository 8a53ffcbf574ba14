"""Collocations: what a slow loop counts and scores, kept with the data, and had later as well as at once."""

import json
import math
import shutil
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest

from latemask import UserError, inspect, prepare
from latemask.ground.errors import Interrupted
from latemask.ground.files import sha256_of
from latemask.text import PreparedData, collocations, prepared, units
from latemask.text.collocations import FEWEST, WordRuns, find_collocations
from latemask.text.prepared import UNITS
from latemask.text.rows import Shard
from latemask.text.units import Units, best_units, read_units, with_units
from latemask.text.words import has_letters, word_starts, words_of
from tests.text.kinds_of_tokenizers import save

# 0: the end of a document, 1 a sign, 2–5 words, 6 goes on with one
VOCAB = {"[E]": 0, ",": 1, "a": 2, "b": 3, "c": 4, "d": 5, "##x": 6}
WORDS = words_of(
    {"model": {"type": "WordPiece", "vocab": VOCAB, "continuing_subword_prefix": "##"}, "added_tokens": []}, 7, (0,)
)


def shard(path, ids) -> Shard:
    np.asarray(ids, "<u2").tofile(path)
    return Shard(path, 0, len(ids))


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(0)
    sizes = (4000, 1, 3000)
    return [draw.choice(7, size, p=[0.03, 0.05, 0.3, 0.25, 0.17, 0.1, 0.1]) for size in sizes]


def slow_words(ids) -> list[tuple[int, ...]]:
    """The words of a text; None for one that does not count."""
    starts = word_starts(ids[None], WORDS)[0]
    groups = np.split(ids, np.flatnonzero(starts)[1:])
    counting = [tuple(part.tolist()) if has_letters(part, WORDS).any() else None for part in groups]
    return [None, *counting[1:-1], None] if len(counting) > 1 else [None]  # they may be cut


def slow_counts(texts) -> list[Counter]:
    found = [Counter() for _ in range(6)]
    for ids in texts:
        words = slow_words(ids)
        for length in range(1, 6):
            for first in range(len(words) - length + 1):
                if None not in (run := tuple(words[first : first + length])):
                    found[length][run] += 1
    return found


def slow_score(run, counts) -> float:
    """The least over all ways to part a run of log(p(run)² / Π p(part))."""

    def log_share(part):
        return math.log(counts[len(part)][part] / counts[len(part)].total())

    scores = []
    for cuts in (c for number in range(1, len(run)) for c in combinations(range(1, len(run)), number)):
        parts = [run[a:b] for a, b in pairwise([0, *cuts, len(run)])]
        scores.append(2 * log_share(run) - sum(map(log_share, parts)))
    return min(scores)


def found_in(found) -> dict[tuple, tuple[float, int]]:
    """Units by their words, with score and count."""
    known = {}
    for number in range(len(found.words)):
        ids = found.of(number)
        starts = word_starts(ids[None], WORDS)[0]
        run = tuple(tuple(part.tolist()) for part in np.split(ids, np.flatnonzero(starts)[1:]))
        assert len(run) == found.words[number]
        known[run] = (float(found.scores[number]), int(found.counts[number]))
    assert len(known) == len(found.words)
    return known


@pytest.mark.parametrize("cells", [1 << 23, 4], ids=["a cell for each", "few cells"])
def test_counts_and_scores_are_those_of_a_slow_loop(texts, tmp_path, monkeypatch, cells):
    monkeypatch.setattr(collocations, "_MOST_CELLS", cells)
    shards = [shard(tmp_path / str(number), ids) for number, ids in enumerate(texts)]
    found = found_in(find_collocations(shards, 2, WORDS, 1_000_000))
    counts = slow_counts(texts)
    expected = {run: n for length in range(2, 6) for run, n in counts[length].items() if n >= FEWEST}
    assert {run: count for run, (_, count) in found.items()} == expected
    assert len(expected) > 200
    assert max(map(len, expected)) == 5
    for run, (score, _) in found.items():
        assert score == pytest.approx(slow_score(run, counts), abs=2e-6)


def test_the_best_are_taken_half_of_them_pairs(texts, tmp_path):
    shards = [shard(tmp_path / "text", texts[0])]
    every, few = (found_in(find_collocations(shards, 2, WORDS, wanted)) for wanted in (10**6, 17))
    assert [sum(len(run) == length for run in few) for length in range(2, 6)] == [9, 4, 2, 2]
    for length, quota in ((2, 9), (3, 4), (4, 2), (5, 2)):
        scores = sorted((score for run, (score, _) in every.items() if len(run) == length), reverse=True)
        assert sorted((score for run, (score, _) in few.items() if len(run) == length), reverse=True) == scores[:quota]


def test_chunks_part_runs_and_nothing_else(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(collocations, "_CHUNK", 1000)
    found = found_in(find_collocations([shard(tmp_path / "text", texts[0])], 2, WORDS, 10**6))
    counts = slow_counts(np.split(texts[0], range(1000, 4000, 1000)))
    assert {run: n for run, (_, n) in found.items()} == {
        run: n for length in range(2, 6) for run, n in counts[length].items() if n >= FEWEST
    }


@pytest.mark.parametrize("ids", [[], [2], [2, 3, 0], [1] * 50])
def test_a_text_with_nothing_in_it_has_no_units(tmp_path, ids):
    found = find_collocations([shard(tmp_path / "text", ids)], 2, WORDS, 10)
    assert len(found.words) == len(found.pieces) == 0
    starts = np.ones(3, bool)
    assert all(len(places) == 0 for places in Units.of([found], WORDS).found(WordRuns(np.arange(3), starts)).values())


def test_hashes_tell_runs_apart_and_nothing_else_does():
    draw = np.random.default_rng(0)
    ids = draw.integers(2, 7, 5000)
    starts = word_starts(ids[None], WORDS)[0]
    runs = WordRuns(ids, starts)
    ends = np.append(runs.firsts[1:], len(ids))
    for length in range(1, 6):
        hashes = runs.hashes(length)
        known: dict = {}
        for n, number in enumerate(hashes.tolist()):
            assert known.setdefault(tuple(ids[runs.firsts[n] : ends[n + length - 1]].tolist()), number) == number
        assert len(set(known.values())) == len(known)
        places = np.arange(0, len(hashes), 3)
        assert (runs.hashes(length, places) == hashes[::3]).all()


def test_tables_hold_what_was_put_in_and_nothing_else():
    hashes = np.random.default_rng(0).integers(1, 2**63, 20_000).astype(np.uint64)
    table = units._Table(hashes[:10_000])
    assert table.holds(hashes[:10_000]).all()
    assert not table.holds(hashes[10_000:]).any()
    near = hashes[:1] + np.arange(50, dtype=np.uint64) * np.uint64(1 << 60)
    assert units._Table(near[:25]).holds(near).tolist()[:25] == [True] * 25


# With data


@pytest.fixture
def own_data(data, tmp_path) -> PreparedData:
    shutil.copytree(data.folder, tmp_path / "data")
    return PreparedData.open(tmp_path / "data")


def test_units_are_kept_with_the_data_that_stay_what_they_were(own_data):
    found = with_units(own_data, 17)
    assert found.fingerprint == own_data.fingerprint
    assert found.manifest["units"]["found"] == [9, 4, 2, 2]
    assert found.manifest["files"][UNITS]["sha256"] == sha256_of(found.folder / UNITS)
    assert not (found.folder / ".preparing").exists()
    assert len(read_units(PreparedData.open(found.folder, everything=True)).words) == 17
    with (found.folder / UNITS).open("r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff")
    with pytest.raises(UserError, match=r"units\.safetensors does not match its checksum"):
        PreparedData.open(found.folder)


def test_what_was_verified_is_not_read_again_when_units_come(own_data, monkeypatch):
    with_units(own_data, 20)
    read = []
    monkeypatch.setattr(prepared, "sha256_of", lambda path: read.append(path.name))
    PreparedData.open(own_data.folder)
    assert read == []


def test_units_are_the_same_at_once_and_later_and_with_any_number_of_workers(corpus, tmp_path, capsys):
    where = {"vocab_size": 1000, "no_ngrams": True}
    at_once = prepare([corpus], out=tmp_path / "one", pmi=16, workers=1, **where)
    later = prepare([corpus], out=tmp_path / "two", workers=2, **where)
    assert later.units_checksum is None
    later = prepare([corpus], out=tmp_path / "two", pmi=16, **where)
    assert later.units_checksum == at_once.units_checksum is not None
    capsys.readouterr()
    assert prepare([corpus], out=tmp_path / "two", pmi=16, **where).manifest == later.manifest
    assert prepare([corpus], out=tmp_path / "two", **where).manifest == later.manifest
    assert capsys.readouterr().err.count("nothing to do") == 2
    with pytest.raises(UserError, match=r"keeps the units of --pmi 16; leave --pmi away, or pass --overwrite"):
        prepare([corpus], out=tmp_path / "two", pmi=17, **where)
    more = prepare([corpus], out=tmp_path / "two", pmi=18, overwrite=True, **where)
    assert more.manifest["units"]["wanted"] == 18
    assert sum(more.manifest["units"]["found"]) == 18


def test_too_little_text_says_what_was_found(own_data, capsys):
    found = with_units(own_data, 10**6).manifest["units"]["found"]
    assert f"units: {sum(found):,}: {found[0]:,} of 2" in (said := capsys.readouterr().err)
    assert "(less than 1,000,000: the text has no more of some length)" in said


def test_an_interruption_leaves_data_without_units_and_the_same_command_goes_on(own_data, monkeypatch, corpus):
    where = {"out": own_data.folder, "vocab_size": 1000, "validation": 0.1, "pmi": 16}

    def stopped(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(units, "file_record", stopped)
        with pytest.raises(Interrupted, match="run the same command again"):
            prepare([corpus], **where)
    assert not own_data.units_checksum
    assert PreparedData.open(own_data.folder).manifest == own_data.manifest
    assert sum(prepare([corpus], **where).manifest["units"]["found"]) == 16


def test_a_kill_while_units_are_replaced_leaves_whole_data(own_data, monkeypatch):
    with_units(own_data, 30)
    monkeypatch.setattr(units, "file_record", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        with_units(PreparedData.open(own_data.folder), 40, overwrite=True)
    assert "units" not in PreparedData.open(own_data.folder).manifest


def test_a_tokenizer_without_words_is_refused_before_the_work(tmp_path):
    save("esm", tmp_path / "tokenizer")
    (tmp_path / "in.txt").write_text("\n\n".join(["LAGVSERT"] * 3))
    with pytest.raises(UserError, match="--pmi finds units of words, and the pieces of the tokenizer at"):
        prepare(tmp_path / "in.txt", out=tmp_path / "data", tokenizer=str(tmp_path / "tokenizer"), pmi=10)
    assert not (tmp_path / "data" / "manifest.json").exists()
    with pytest.raises(UserError, match="--pmi 0: one at least"):
        prepare(tmp_path / "in.txt", out=tmp_path / "data", pmi=0)


def test_inspect_shows_how_many_and_some_of_the_best(own_data, capsys):
    assert inspect(own_data.folder, rows=0)["units"] is None
    found = with_units(own_data, 18)
    capsys.readouterr()
    facts = inspect(found.folder, rows=2, pattern="pmi")
    shown = capsys.readouterr().out
    assert facts["units"]["found"] == [10, 4, 2, 2]
    assert "18: 10 of 2, 4 of 3, 2 of 4, 2 of 5 words" in shown
    best = best_units(found, 3)
    assert len(best) == 3 + 3 + 2 + 2
    assert all(repr(text) in shown for text in best if text.isascii())
    assert inspect(found.folder, rows=2, json=True)["units"] == json.loads(capsys.readouterr().out)["units"]


def test_units_of_text_are_found_in_rows(own_data):
    found = with_units(own_data, 200)
    words = found.words
    known = Units.of([read_units(found)], words)
    row = found.rows("train", 4096).take([0])
    runs = WordRuns(row[0], word_starts(row, words)[0])
    kept = read_units(found)
    every = {tuple(kept.of(n).tolist()): length for n, length in enumerate(kept.words.tolist())}
    ends = np.append(runs.firsts[1:], row.shape[1])
    for length, places in known.found(runs).items():
        expected = [
            n
            for n in range(len(ends) - length + 1)
            if every.get(tuple(row[0, runs.firsts[n] : ends[n + length - 1]].tolist())) == length
        ]
        assert places.tolist() == expected
