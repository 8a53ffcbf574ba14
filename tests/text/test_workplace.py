"""The workplace, and its end: at least one document is held out, all of it, and nothing of it is trained on."""

import csv
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from latemask.ground.errors import Interrupted, UserError
from latemask.text import lines, prepare, shards
from latemask.text.prepared import NOTE
from latemask.text.workplace import Finish, Workplace


def test_two_processes_do_not_work_in_one_folder(tmp_path, corpus):
    lock = Workplace(tmp_path / "out").lock()
    with pytest.raises(UserError, match="being prepared by another process"):
        prepare([corpus], out=tmp_path / "out")
    lock.release()
    assert prepare([corpus], out=tmp_path / "out").folder == tmp_path / "out"


def test_what_a_killed_process_wrote_aside_is_not_in_the_way(tmp_path, corpus, data):
    (tmp_path / "out").mkdir()
    for name in (".manifest.json.123", f".{NOTE}.123"):
        (tmp_path / "out" / name).write_text("{")
    made = prepare([corpus], out=tmp_path / "out", tokenizer=str(data.tokenizer_folder))
    ours = {"manifest.json", NOTE, "ngrams.bin", "tokenizer", "train", "validation"}
    assert {path.name for path in made.folder.iterdir()} == ours


def test_what_is_half_removed_is_not_gone_on_with(tmp_path, monkeypatch):
    place = Workplace(tmp_path)
    place.folder.mkdir()
    place.start({"old": 1})
    (tmp_path / "train").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: pytest.fail("power cut"))
    with pytest.raises(pytest.fail.Exception):
        place.start({"new": 1})
    assert not place.goes_on({"old": 1})


def test_one_document_alone_cannot_be_split(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("all of it is one document\n" * 100)
    with pytest.raises(UserError, match="only 1 document"):
        prepare([path], out=tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_documents_that_are_all_the_same_cannot_be_split(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(["always the same words"] * 20))
    with pytest.raises(UserError, match=r"only 1 document \(or always the same\)"):
        prepare([path], out=tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_one_document_that_is_held_out_is_held_out_of_every_task(tmp_path, monkeypatch):
    monkeypatch.setattr("latemask.text.sources.SMALLEST_GROUP", 1000)
    texts = [f"document {n} " * 20 for n in range(20)]
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
    data = prepare([tmp_path / f"{name}.txt" for name in "abc"], out=tmp_path / "out", validation=1e-9, workers=1)
    assert data.manifest["splits"]["validation"]["documents"] == 3
    assert data.manifest["splits"]["train"]["documents"] == 57


@pytest.mark.parametrize("stop_at", [0, 1, 2])
def test_holding_one_out_can_be_interrupted_at_any_task(tmp_path, monkeypatch, stop_at):
    monkeypatch.setattr("latemask.text.sources.SMALLEST_GROUP", 1000)
    texts = [f"document {n} " * 20 for n in range(20)]
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
    inputs = [tmp_path / f"{name}.txt" for name in "abc"]
    calm = prepare(inputs, out=tmp_path / "calm", validation=1e-9, workers=1)
    usual, done = Finish._do_again, []

    def until_power_cut(self, rank, validation_limit):
        if len(done) == stop_at:
            raise KeyboardInterrupt
        done.append(rank)
        usual(self, rank, validation_limit)

    with monkeypatch.context() as patched:
        patched.setattr(Finish, "_do_again", until_power_cut)
        with pytest.raises(Interrupted):
            prepare(inputs, out=tmp_path / "out", validation=1e-9, workers=1)
    assert prepare(inputs, out=tmp_path / "out", validation=1e-9, workers=1).fingerprint == calm.fingerprint


TEXTS = [f"it begins as document{n}a " + f"and goes on as document{n}a " * (n % 12) for n in range(60)]
"""Some longer than `longest`, most of them several times."""


@pytest.fixture
def short_sections(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_DOCUMENT", 80)


def write_tables(folder, format, texts):
    """The texts as a file of a format; a .txt with one line a document, or with a line for every few words."""
    path = folder / f"in.{format.split()[0]}"
    table = pa.table({"text": texts})
    if format == "txt":
        path.write_text("\n\n".join(texts))
    elif format == "txt lines":
        path.write_text("\n\n".join(text.replace(" and", "\nand") for text in texts))
    elif format == "jsonl":
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    elif format in ("csv", "tsv"):
        file = io.StringIO()
        csv.writer(file, "excel" if format == "csv" else "excel-tab").writerows([["text"], *([text] for text in texts)])
        path.write_text(file.getvalue())
    elif format == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def sides(data) -> dict[str, list[str]]:
    """The names that stand in the documents of each split, in order."""
    return {
        split: [
            name
            for shard in data.shards(split)
            for name in re.findall(r"document\d+a", data.tokenizer.decode(np.fromfile(shard.file, "<u2")))
        ]
        for split in shards.SPLITS
    }


def check_sides(data, texts=TEXTS):
    """Nothing is lost, and no document is on both sides."""
    found = sides(data)
    assert not set(found["train"]) & set(found["validation"])
    assert sorted(found["train"] + found["validation"]) == sorted(re.findall(r"document\d+a", " ".join(texts)))
    return found


@pytest.mark.parametrize("format", ["txt", "txt lines", "jsonl", "csv", "tsv", "parquet", "arrow"])
def test_all_of_a_long_document_is_on_one_side(tmp_path, data, short_sections, format):
    path = write_tables(tmp_path, format, TEXTS)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.4, "workers": 1}
    found = check_sides(prepare([path], out=tmp_path / "out", **options))
    assert 10 < len(set(found["validation"])) < 40


@pytest.mark.parametrize("streaming", [False, True])
def test_all_of_a_long_row_of_a_dataset_is_on_one_side(tmp_path, data, short_sections, monkeypatch, streaming):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    write_tables(tmp_path / "set", "parquet", TEXTS).rename(tmp_path / "set" / "train.parquet")
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.4, "workers": 1, "streaming": streaming}
    check_sides(prepare(hf_dataset=str(tmp_path / "set"), out=tmp_path / "out", **options))


def test_a_document_of_more_than_262144_characters_is_on_one_side(tmp_path, data):
    texts = [f"document{n}a " * 40_000 for n in range(4)] + [f"document{n}a " * 10 for n in range(4, 30)]
    assert len(texts[0]) > lines.LONGEST_DOCUMENT
    path = write_tables(tmp_path, "jsonl", texts)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.5}
    check_sides(prepare([path], out=tmp_path / "out", **options), texts)


@pytest.mark.parametrize("format", ["txt lines", "jsonl"])
def test_the_side_does_not_depend_on_where_a_file_is_cut(tmp_path, data, short_sections, monkeypatch, format):
    path = write_tables(tmp_path, format, TEXTS)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.4, "workers": 1}
    whole = prepare([path], out=tmp_path / "whole", **options)
    monkeypatch.setattr("latemask.text.sources.SMALLEST_GROUP", 300)
    parts = prepare([path], out=tmp_path / "parts", **options)
    assert len(parts.shards("train")) > 10
    assert sides(parts) == sides(whole)


def test_cleaning_takes_the_beginning_of_a_document_and_the_rest_stays_on_its_side(tmp_path, data, short_sections):
    """All begin with the same section: they are on one side, though only the first keeps it."""
    texts = ["the same words at the very beginning of every document that is in here and " + text for text in TEXTS]
    texts += [f"another document{n}a of few words" for n in range(100, 140)]
    path = write_tables(tmp_path, "jsonl", texts)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.4, "workers": 1}
    cleaned = prepare([path], out=tmp_path / "cleaned", dedup="exact", **options)
    assert cleaned.manifest["dropped"]["duplicates"] >= 59
    names = {split: {int(name[8:-1]) for name in found} for split, found in sides(cleaned).items()}
    assert sorted(names["train"] | names["validation"]) == [*range(60), *range(100, 140)]
    assert (
        set(range(60)) <= names["train"] - names["validation"] or set(range(60)) <= names["validation"] - names["train"]
    )


@pytest.mark.parametrize("stop_at", [3, 25, 60])
def test_an_interruption_in_the_middle_of_a_document_changes_nothing(
    tmp_path, data, short_sections, monkeypatch, stop_at
):
    """Parts are so small that most end inside of a document."""
    monkeypatch.setattr(shards, "BATCH_CHARACTERS", 100)
    monkeypatch.setattr(shards, "PART_TOKENS", 50)
    path = write_tables(tmp_path, "jsonl", TEXTS)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 0.4, "workers": 1}
    calm = prepare([path], out=tmp_path / "calm", **options)
    check_sides(calm)
    usual, added = shards._Part.add, []

    def until_power_cut(self, documents):
        if len(added) == stop_at:
            raise KeyboardInterrupt
        added.append(documents)
        usual(self, documents)

    with monkeypatch.context() as patched:
        patched.setattr(shards._Part, "add", until_power_cut)
        with pytest.raises(Interrupted):
            prepare([path], out=tmp_path / "out", **options)
    assert prepare([path], out=tmp_path / "out", **options).fingerprint == calm.fingerprint


def test_a_long_document_that_is_the_only_one_held_out_is_held_out_whole(tmp_path, data, short_sections):
    texts = TEXTS[11:60:12]
    path = write_tables(tmp_path, "jsonl", texts)
    options = {"tokenizer": str(data.tokenizer_folder), "validation": 1e-9, "workers": 1}
    found = check_sides(prepare([path], out=tmp_path / "out", **options), texts)
    assert len(set(found["validation"])) == 1
    assert len(found["validation"]) == 12


def test_one_long_document_alone_cannot_be_split(tmp_path, data, short_sections):
    path = write_tables(tmp_path, "txt lines", TEXTS[11:12])
    with pytest.raises(UserError, match="only 1 document"):
        prepare([path], out=tmp_path / "out", tokenizer=str(data.tokenizer_folder))
    whole = prepare([path], out=tmp_path / "out", tokenizer=str(data.tokenizer_folder), validation=0)
    assert sides(whole)["train"] == ["document11a"] * 12
    assert whole.manifest["splits"]["train"]["documents"] > 1  # its sections: what ends with </s>
