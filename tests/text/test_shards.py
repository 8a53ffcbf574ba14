"""Shards and rows: no token lost, any length, special tokens in the text stay text."""

import hashlib
import os
import pickle
import resource

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.utils.dataset import DatatroveFolderDataset

from latemask.text import shards
from latemask.text.counting import count_tokens, document_lengths
from latemask.text.reading import Problems, content_hash
from latemask.text.rows import Shard, TokenRows
from latemask.text.shards import ShardWriter
from latemask.text.tokenizer import save_tokenizer, train_tokenizer

TEXTS = [f"document number {n} about the quick brown fox" + " and more" * (n % 7) for n in range(200)]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(iter(TEXTS), 300), folder)
    return folder


def write_shards(folder, tokenizer_folder, texts, limit=0, rank=0, part_tokens=10**9):
    tokenizer = tokenizer_folder / "tokenizer.json"
    writer = ShardWriter(folder, folder / ".preparing", tokenizer, "</s>", validation_limit=limit, problems=Problems())
    writer.part_tokens = part_tokens
    writer.run(iter(Document(text=text, id=str(n)) for n, text in enumerate(texts)), rank)
    return writer


def shard_of(path, token_bytes=2):
    return Shard(path, 0, path.stat().st_size // token_bytes)


def test_the_running_text_is_every_document_with_an_end_behind_it(tmp_path, tokenizer_folder):
    writer = write_shards(tmp_path, tokenizer_folder, TEXTS)
    tokens = np.fromfile(tmp_path / "train" / "00000_0000.ds", "<u2")
    assert tokens.tolist() == [i for text in TEXTS for i in writer.tokenizer.encode(text).ids]
    ends = np.fromfile(tmp_path / "train" / "00000_0000.ds.index", "<u8")
    assert (tokens[ends - 1] == 2).all()
    assert (tokens == 2).sum() == len(ends) == len(TEXTS)


def test_datatrove_itself_reads_the_shards(tmp_path, tokenizer_folder):
    write_shards(tmp_path, tokenizer_folder, TEXTS)
    theirs = DatatroveFolderDataset(str(tmp_path / "train"), seq_len=15, filename_pattern="*.ds")
    tokens = np.fromfile(tmp_path / "train" / "00000_0000.ds", "<u2")
    assert theirs[3]["input_ids"].tolist() == tokens[48:64].tolist()


def test_a_special_token_in_the_text_is_text(tmp_path, tokenizer_folder):
    write_shards(tmp_path, tokenizer_folder, ["a <mask> and </s> and <s> in the text"])
    assert (np.fromfile(tmp_path / "train" / "00000_0000.ds", "<u2") < 5).sum() == 1  # the document's own end


def test_documents_go_to_a_split_by_their_content(tmp_path, tokenizer_folder):
    limit = 2**64 // 4
    write_shards(tmp_path / "a", tokenizer_folder, TEXTS, limit)
    write_shards(tmp_path / "b", tokenizer_folder, TEXTS[::-1], limit)
    expected = sum(content_hash(text.encode()) < limit for text in TEXTS)
    assert 30 < expected < 70
    for folder in ("a", "b"):
        assert len(np.fromfile(tmp_path / folder / "validation" / "00000_0000.ds.index", "<u8")) == expected


def test_where_a_short_document_goes_is_fixed_for_ever(tmp_path):
    """The bytes of before documents had sections; a vocabulary of bytes alone does not change with a library."""
    save_tokenizer(train_tokenizer([], 261), tmp_path / "bytes")
    write_shards(tmp_path, tmp_path / "bytes", TEXTS, 2**62)
    digest = hashlib.sha256(b"".join(files_in(tmp_path).values())).hexdigest()
    assert digest == "2b500c3721ff88d7517d6257485168ec6221562f49a81d85e536a3d84266d39d"


def files_in(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*.ds*"))}


def test_a_task_is_written_in_parts_that_hold_every_document_in_order(tmp_path, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_CHARACTERS", 300)
    writer = write_shards(tmp_path / "parts", tokenizer_folder, TEXTS, 2**62, part_tokens=500)
    write_shards(tmp_path / "whole", tokenizer_folder, TEXTS, 2**62)
    parts, whole = files_in(tmp_path / "parts"), files_in(tmp_path / "whole")
    assert len([name for name in parts if name.startswith("train") and name.endswith(".ds")]) > 5
    for split in ("train", "validation"):
        joined = b"".join(content for name, content in parts.items() if name.startswith(split) and name.endswith(".ds"))
        assert joined == whole[f"{split}/00000_0000.ds"]
    assert sum(record.size for record in writer.ledger.parts(0)) == len(TEXTS)


@pytest.mark.parametrize("stop_after", [0, 3, 60, 130, 199])
def test_an_interrupted_task_goes_on_behind_its_last_sealed_part(tmp_path, tokenizer_folder, monkeypatch, stop_after):
    monkeypatch.setattr(shards, "BATCH_CHARACTERS", 300)

    def power_cut():
        yield from TEXTS[:stop_after]
        raise OSError("power cut")

    with pytest.raises(OSError, match="power cut"):
        write_shards(tmp_path / "cut", tokenizer_folder, power_cut(), 2**62, part_tokens=500)
    sealed = files_in(tmp_path / "cut" / "train") if (tmp_path / "cut" / "train").exists() else {}
    writer = write_shards(tmp_path / "cut", tokenizer_folder, TEXTS, 2**62, part_tokens=500)
    write_shards(tmp_path / "calm", tokenizer_folder, TEXTS, 2**62, part_tokens=500)
    for split in ("train", "validation"):
        assert files_in(tmp_path / "cut" / split) == files_in(tmp_path / "calm" / split)
    assert bool(sealed) == (stop_after >= 60)
    assert writer.ledger.task(0).parts == len(writer.ledger.parts(0))


def test_sealed_parts_are_not_tokenized_again(tmp_path, tokenizer_folder, monkeypatch):
    write_shards(tmp_path, tokenizer_folder, TEXTS)
    monkeypatch.setattr(ShardWriter, "tokenizer", property(lambda self: pytest.fail("tokenized again")))
    write_shards(tmp_path, tokenizer_folder, TEXTS)


@pytest.mark.parametrize("length", [4, 17, 128])
def test_rows_are_the_running_text_across_shards_with_a_start_before_each(tmp_path, tokenizer_folder, length):
    for rank, texts in enumerate((TEXTS[:3], [], TEXTS[3:4], TEXTS[4:])):
        write_shards(tmp_path, tokenizer_folder, texts, rank=rank)
    files = sorted((tmp_path / "train").glob("*.ds"))
    rows = TokenRows([shard_of(file) for file in files], 2, length, bos=0)
    stream = np.concatenate([np.fromfile(file, "<u2") for file in files])
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


@pytest.fixture
def few_descriptors():
    """Room for 40 more open files: less than the shards that are read."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 40, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
