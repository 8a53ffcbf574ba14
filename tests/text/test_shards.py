"""Shards: no token lost, whatever interrupts; special tokens in the text stay text."""

import hashlib

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.utils.dataset import DatatroveFolderDataset

from latemask.text import shards
from latemask.text.reading import Problems, content_hash
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
