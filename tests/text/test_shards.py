"""Shards and rows: no token lost, any length, special tokens in the text stay text."""

import pickle

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.utils.dataset import DatatroveFolderDataset

from latemask.text.shards import ShardWriter, TokenRows, document_hash
from latemask.text.tokenizer import save_tokenizer, train_tokenizer

TEXTS = [f"document number {n} about the quick brown fox" + " and more" * (n % 7) for n in range(200)]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(iter(TEXTS), 300), folder)
    return folder


def write_shards(folder, tokenizer_folder, texts, limit=0, rank=0):
    writer = ShardWriter(folder, tokenizer_folder / "tokenizer.json", "</s>", lambda h: h < limit)
    list(writer.run([Document(text=text, id=str(n)) for n, text in enumerate(texts)], rank))
    return writer


def test_the_running_text_is_every_document_with_an_end_behind_it(tmp_path, tokenizer_folder):
    writer = write_shards(tmp_path, tokenizer_folder, TEXTS)
    tokens = np.fromfile(tmp_path / "train" / "00000.ds", "<u2")
    assert tokens.tolist() == [i for text in TEXTS for i in writer.tokenizer.encode(text).ids]
    ends = np.fromfile(tmp_path / "train" / "00000.ds.index", "<u8")
    assert (tokens[ends - 1] == 2).all()
    assert (tokens == 2).sum() == len(ends) == len(TEXTS)


def test_datatrove_itself_reads_the_shards(tmp_path, tokenizer_folder):
    write_shards(tmp_path, tokenizer_folder, TEXTS)
    theirs = DatatroveFolderDataset(str(tmp_path / "train"), seq_len=15, filename_pattern="*.ds")
    tokens = np.fromfile(tmp_path / "train" / "00000.ds", "<u2")
    assert theirs[3]["input_ids"].tolist() == tokens[48:64].tolist()


def test_a_special_token_in_the_text_is_text(tmp_path, tokenizer_folder):
    write_shards(tmp_path, tokenizer_folder, ["a <mask> and </s> and <s> in the text"])
    assert (np.fromfile(tmp_path / "train" / "00000.ds", "<u2") < 5).sum() == 1  # the document's own end


def test_documents_go_to_a_split_by_their_content(tmp_path, tokenizer_folder):
    limit = 2**64 // 4
    write_shards(tmp_path / "a", tokenizer_folder, TEXTS, limit)
    write_shards(tmp_path / "b", tokenizer_folder, TEXTS[::-1], limit)
    expected = sum(document_hash(text) < limit for text in TEXTS)
    assert 30 < expected < 70
    for folder in ("a", "b"):
        assert len(np.fromfile(tmp_path / folder / "validation" / "00000.ds.index", "<u8")) == expected


@pytest.mark.parametrize("length", [4, 17, 128])
def test_rows_are_the_running_text_across_shards_with_a_start_before_each(tmp_path, tokenizer_folder, length):
    for rank, texts in enumerate((TEXTS[:3], [], TEXTS[3:4], TEXTS[4:])):
        write_shards(tmp_path, tokenizer_folder, texts, rank=rank)
    files = sorted((tmp_path / "train").glob("*.ds"))
    rows = TokenRows(files, 2, length, bos=0)
    stream = np.concatenate([np.fromfile(file, "<u2") for file in files])
    assert len(rows) == len(stream) // (length - 1)
    found = rows.take(np.arange(len(rows)))
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:].ravel() == stream[: len(rows) * (length - 1)]).all()


def test_wide_vocabularies_are_four_bytes(tmp_path):
    np.arange(70_000, 70_100, dtype="<u4").tofile(tmp_path / "a.ds")
    assert TokenRows([tmp_path / "a.ds"], 4, 11, bos=5).take([1])[0].tolist() == [5, *range(70_010, 70_020)]


def test_rows_can_be_sent_to_a_worker(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.ds")
    rows = TokenRows([tmp_path / "a.ds"], 2, 11, bos=5)
    rows.take([0])
    assert (pickle.loads(pickle.dumps(rows)).take([2]) == rows.take([2])).all()
