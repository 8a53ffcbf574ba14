"""Rows: any length from the same shards, no token lost, with few open files."""

import os
import pickle

import numpy as np
import pytest

from latemask.text.rows import Shard, TokenRows, count_tokens, document_lengths


def shard_of(path, token_bytes=2):
    return Shard(path, 0, path.stat().st_size // token_bytes)


@pytest.mark.parametrize("length", [4, 17, 128])
def test_rows_are_the_running_text_across_shards_with_a_start_before_each(tmp_path, length):
    stream = np.random.default_rng(0).integers(5, 300, 5000).astype("<u2")
    shards = []
    for number, part in enumerate(np.split(stream, [40, 40, 55, 300])):
        part.tofile(tmp_path / f"{number}.ds")
        shards.append(shard_of(tmp_path / f"{number}.ds"))
    rows = TokenRows(shards, 2, length, bos=0)
    assert len(rows) == len(stream) // (length - 1)
    found = rows.take(np.arange(len(rows)))
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:].ravel() == stream[: len(rows) * (length - 1)]).all()


def test_wide_vocabularies_are_four_bytes(tmp_path):
    np.arange(70_000, 70_100, dtype="<u4").tofile(tmp_path / "a.ds")
    assert TokenRows([shard_of(tmp_path / "a.ds", 4)], 4, 11, bos=5).take([1])[0].tolist() == [
        5,
        *range(70_010, 70_020),
    ]


def test_rows_keep_to_their_part_of_a_file(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.ds")
    rows = TokenRows([Shard(tmp_path / "a.ds", 10, 25), Shard(tmp_path / "a.ds", 90, 10)], 2, 11, bos=5)
    stream = [*range(10, 35), *range(90, 100)]
    assert rows.take(range(len(rows)))[:, 1:].ravel().tolist() == stream[:30]


def test_rows_can_be_sent_to_a_worker(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.ds")
    rows = TokenRows([shard_of(tmp_path / "a.ds")], 2, 11, bos=5)
    rows.take([0])
    assert (pickle.loads(pickle.dumps(rows)).take([2]) == rows.take([2])).all()


def many_shards(folder, count=300, tokens=30):
    found = []
    for number in range(count):
        path = folder / f"{number:03d}.ds"
        np.arange(number * tokens, (number + 1) * tokens, dtype="<u2").tofile(path)
        np.array([10, tokens], "<u8").tofile(f"{path}.index")
        found.append(shard_of(path))
    return found


def test_there_may_be_more_shards_than_files_a_process_may_open(tmp_path, few_descriptors):
    found = many_shards(tmp_path)
    rows = TokenRows(found, 2, 101, bos=5)
    backwards = np.arange(len(rows))[::-1]
    assert (rows.take(backwards)[:, 1:] == np.arange(9000).reshape(-1, 100)[::-1]).all()
    assert (count_tokens(found, 2, 9000) == 1).all()
    assert document_lengths(found).tolist() == [10, 20] * 300


@pytest.mark.parametrize("row", [0, 2, 3], ids=["inside", "across", "the next"])
def test_a_file_that_is_cut_or_gone_is_an_error_with_its_name(tmp_path, row):
    found = many_shards(tmp_path, 4)
    rows = TokenRows(found, 2, 13, bos=5)
    cut = found[0].file if row < 2 else found[1].file
    assert rows.take([row])[0, 1:].tolist() == list(range(row * 12, row * 12 + 12))
    os.truncate(cut, 2)
    with pytest.raises(OSError, match="was cut while in use") as stop:
        rows.take([row])
    assert stop.value.filename == str(cut)
    cut.unlink()
    with pytest.raises(FileNotFoundError) as stop:
        rows.take([row])
    assert stop.value.filename == str(cut)
