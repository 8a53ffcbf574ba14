"""--adopt: shards that plain datatrove wrote are usable after a check; nothing of theirs is changed."""

import shutil

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer

from latemask import inspect
from latemask.ground.errors import UserError
from latemask.text import PreparedData, prepare

TEXTS = [f"Document {n} of the text that datatrove tokenized, with some words. " * (1 + n % 5) for n in range(300)]


def theirs(folder, data, eos="</s>", texts=TEXTS, **options):
    """Tokenize with datatrove alone, in two tasks."""
    for rank in range(2):
        step = DocumentTokenizer(
            str(folder),
            str(data.tokenizer_folder / "tokenizer.json"),
            eos_token=eos,
            shuffle_documents=False,
            **options,
        )
        step.run((Document(text=text, id=str(n)) for n, text in enumerate(texts[rank::2])), rank, 2)
    return folder


def swap_first_entries(index):
    ends = np.fromfile(index, "<u8")
    ends[[0, 1]] = ends[[1, 0]]
    ends.tofile(index)


def stream(folder):
    return np.concatenate([np.fromfile(path, "<u2") for path in sorted(folder.rglob("*.ds"))])


def test_shards_of_plain_datatrove_become_a_data_folder(tmp_path, data):
    folder = theirs(tmp_path / "shards", data)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    adopted = prepare(adopt=folder)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert sum(record["documents"] for record in adopted.manifest["splits"].values()) == len(TEXTS)
    opened = PreparedData.open(folder)
    assert opened.vocabulary == data.vocabulary
    tokens = stream(folder)
    train, held_out = opened.tokens("train"), opened.tokens("validation")
    assert train + held_out == len(tokens)
    assert 0.01 * len(tokens) <= held_out < 0.02 * len(tokens)
    rows = opened.rows("train", 32)
    assert rows.take(range(len(rows)))[:, 1:].ravel().tolist() == tokens[: len(rows) * 31].tolist()
    held = opened.rows("validation", held_out + 1)
    assert held.take([0])[0, 1:].tolist() == tokens[train:].tolist()
    assert tokens[train - 1] == data.vocabulary.eos


def test_it_can_be_pretrained_on(tmp_path, data):
    from latemask import pretrain
    from tests.conftest import tiny_recipe

    folder = theirs(tmp_path / "shards", data)
    prepare(adopt=folder)
    run = pretrain(tiny_recipe(), data=folder, out=tmp_path / "run", max_steps=2)
    assert run.is_finished()


def test_a_folder_called_validation_is_the_validation(tmp_path, data):
    theirs(tmp_path / "shards" / "train", data)
    theirs(tmp_path / "shards" / "validation", data, texts=TEXTS[:40])
    adopted = prepare(adopt=tmp_path / "shards")
    assert adopted.manifest["splits"]["train"]["documents"] == 300
    assert adopted.manifest["splits"]["validation"]["documents"] == 40


def test_a_large_share_takes_whole_shards(tmp_path, data):
    adopted = prepare(adopt=theirs(tmp_path / "shards", data), validation=0.7)
    counts = {split: record["documents"] for split, record in adopted.manifest["splits"].items()}
    assert sum(counts.values()) == 300
    assert len(adopted.shards("validation")) == 2
    assert 0.7 <= adopted.tokens("validation") / (adopted.tokens("train") + adopted.tokens("validation")) < 0.72


def test_again_is_a_no_op_and_the_tokenizer_can_be_named(tmp_path, data, capsys):
    folder = theirs(tmp_path / "shards", data, save_final_metadata=False)
    with pytest.raises(UserError, match="does not say which tokenizer made it; name it with --tokenizer"):
        prepare(adopt=folder)
    first = prepare(adopt=folder, tokenizer=str(data.tokenizer_folder), validation=0)
    assert first.tokens("validation") == 0
    assert prepare(adopt=folder).manifest == first.manifest
    assert "nothing to do" in capsys.readouterr().err


def test_another_tokenizer_that_lies_there_is_not_mistaken_for_the_named_one(tmp_path, data, corpus):
    folder = theirs(tmp_path / "shards", data)
    other = prepare([corpus], out=tmp_path / "other", vocab_size=1088)
    shutil.copytree(other.tokenizer_folder, folder / "tokenizer")
    with pytest.raises(UserError, match="is another tokenizer than --tokenizer; pass --overwrite"):
        prepare(adopt=folder, tokenizer=str(data.tokenizer_folder))
    assert not (folder / "manifest.json").exists()
    adopted = prepare(adopt=folder, tokenizer=str(data.tokenizer_folder), overwrite=True)
    assert adopted.tokenizer.get_vocab() == data.tokenizer.get_vocab()


def test_a_failed_adoption_leaves_nothing(tmp_path, data):
    folder = theirs(tmp_path / "shards", data)
    with pytest.raises(UserError, match="would hold out every document"):
        prepare(adopt=folder, validation=0.99999)
    assert not (folder / "tokenizer").exists()


def test_documents_that_begin_with_a_start_token_are_adopted_and_said(tmp_path, data, capsys):
    prepare(adopt=theirs(tmp_path / "shards", data, eos=None))
    assert "begin with a start token" in capsys.readouterr().err


def test_an_empty_note_is_no_note(tmp_path, data):
    folder = theirs(tmp_path / "shards", data)
    for note in folder.glob("*.metadata"):
        note.write_bytes(b"")
    assert prepare(adopt=folder, tokenizer=str(data.tokenizer_folder)).vocabulary == data.vocabulary


def add_empty_document(index):
    ends = np.fromfile(index, "<u8")
    np.append(ends, ends[-1:]).tofile(index)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda shard: shard.write_bytes(shard.read_bytes()[:-2]),
            r"00000_unshuffled\.ds has \d+ bytes, its index means",
        ),
        (lambda shard: shard.with_name(f"{shard.name}.index").unlink(), r"has no \.index"),
        (lambda shard: swap_first_entries(shard.with_name(f"{shard.name}.index")), "damaged"),
        (lambda shard: add_empty_document(shard.with_name(f"{shard.name}.index")), "damaged"),
        (lambda shard: shard.write_bytes(b"\xff\xff" + shard.read_bytes()[2:]), "holds the id 65535"),
        (lambda shard: shard.write_bytes(b"\x09\x00" * (shard.stat().st_size // 2)), "do not end with"),
        (lambda shard: [path.unlink() for path in shard.parent.iterdir()], r"holds no \.ds shard"),
        (lambda shard: shutil.rmtree(shard.parent), "no such folder"),
    ],
)
def test_what_is_wrong_with_a_shard_is_said(tmp_path, data, harm, message):
    folder = theirs(tmp_path / "shards", data)
    harm(folder / "00000_unshuffled.ds")
    with pytest.raises(UserError, match=message):
        prepare(adopt=folder)
    assert not (folder / "manifest.json").exists()


def test_shards_of_another_tokenizer_are_refused(tmp_path, data, corpus):
    small = prepare([corpus], out=tmp_path / "small", vocab_size=320)
    with pytest.raises(UserError, match="the tokenizer has 320 pieces"):
        prepare(adopt=theirs(tmp_path / "shards", data), tokenizer=str(small.tokenizer_folder))


def test_there_may_be_more_shards_than_files_a_process_may_open(tmp_path, data, few_descriptors, capsys):
    (tmp_path / "shards").mkdir()
    for number in range(150):
        path = tmp_path / "shards" / f"{number:03d}.ds"
        np.array([7, 8, data.vocabulary.eos] * 5, "<u2").tofile(path)
        np.arange(3, 16, 3, dtype="<u8").tofile(f"{path}.index")
    adopted = prepare(adopt=tmp_path / "shards", tokenizer=str(data.tokenizer_folder))
    facts = inspect(adopted.folder, rows=2, length=32)
    assert facts["splits"]["train"]["shards"] + facts["splits"]["validation"]["shards"] >= 150
    assert len(facts["rows"]) == 2
