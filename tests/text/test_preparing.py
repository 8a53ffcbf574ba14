"""prepare: the whole way from text to a folder that knows what is in it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from latemask.errors import UserError
from latemask.files import sha256_of
from latemask.text import PreparedData, prepare


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"This is document {n} of a small corpus. " * 5 for n in range(300)))
    return path


def test_the_manifest_counts_what_is_there(data):
    manifest = data.manifest
    for split in ("train", "validation"):
        record = manifest["splits"][split]
        (shard,) = record["shards"]
        assert record["tokens"] == (data.folder / shard).stat().st_size // 2
        assert record["documents"] == len(np.fromfile(data.folder / f"{shard}.index", "<u8")) > 0
        assert manifest["files"][shard]["sha256"] == sha256_of(data.folder / shard)
    assert manifest["tokenizer"]["size"] == len(data.tokenizer) == 1000
    assert set(manifest["versions"]) == {"latemask", "datatrove", "tokenizers", "transformers"}


def test_rows_decode_to_the_text(data, corpus):
    row = data.tokenizer.decode(data.rows("train", 64).take([0])[0], skip_special_tokens=True)
    assert row.strip()[:40] in corpus.read_text()


def test_about_a_share_of_the_documents_is_held_out_and_none_is_in_both(tmp_path, text):
    data = prepare([text], out=tmp_path / "out", vocab_size=300, validation=0.2)
    counts = {split: record["documents"] for split, record in data.manifest["splits"].items()}
    assert sum(counts.values()) == 300
    assert 35 <= counts["validation"] <= 85


def test_at_least_one_document_is_held_out(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("one document of words\n\nanother document of words\n\na third one")
    data = prepare([path], out=tmp_path / "out", vocab_size=300)
    assert data.manifest["splits"]["validation"]["documents"] == 1


def test_validation_zero_holds_out_none(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a single document of words, " * 50)
    data = prepare([path], out=tmp_path / "out", vocab_size=300, validation=0)
    assert data.manifest["splits"]["validation"]["documents"] == 0
    assert len(data.rows("validation", 32)) == 0


def test_the_same_again_is_a_no_op_that_says_so(tmp_path, text, capsys):
    first = prepare([text], out=tmp_path / "out", vocab_size=300)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    again = prepare([text], out=tmp_path / "out", vocab_size=300)
    assert "nothing to do" in capsys.readouterr().err
    assert again.manifest == first.manifest
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}


def test_other_settings_or_a_changed_input_are_refused_unless_overwriting(tmp_path, text):
    out = tmp_path / "out"
    prepare([text], out=out, vocab_size=300)
    with pytest.raises(UserError, match=r"other settings \(vocab_size\)"):
        prepare([text], out=out, vocab_size=310)
    text.write_text(text.read_text() + "\n\nmore")
    with pytest.raises(UserError, match=r"other settings \(inputs\)"):
        prepare([text], out=out, vocab_size=300)
    assert len(prepare([text], out=out, vocab_size=310, overwrite=True).tokenizer) == 310


def test_the_same_input_gives_the_same_bytes(tmp_path, text):
    one, two = (prepare([text], out=tmp_path / name, vocab_size=300) for name in "ab")
    assert one.fingerprint == two.fingerprint


def test_a_tokenizer_can_be_reused(tmp_path, text, data):
    again = prepare([text], out=tmp_path / "out", tokenizer=str(data.tokenizer_folder))
    assert again.tokenizer.get_vocab() == data.tokenizer.get_vocab()
    assert again.vocabulary == data.vocabulary


def test_a_failure_leaves_nothing_that_looks_finished(tmp_path, text):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n" * 5000 + b"\xff\n")
    with pytest.raises(UserError, match=r"bad\.txt:5001: not valid UTF-8"):
        prepare([text, bad], out=tmp_path / "out", vocab_size=300)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_folder_is_begun_again_and_a_foreign_one_left_alone(tmp_path, text):
    out = tmp_path / "out"
    prepare([text], out=out, vocab_size=300)
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        PreparedData.open(out)
    assert prepare([text], out=out, vocab_size=300).folder == out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match=r"thesis\.doc"):
        prepare([text], out=tmp_path / "mine", vocab_size=300, overwrite=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either INPUT"),
        ({"inputs": ["x"], "builtin": True}, "either INPUT"),
        ({"builtin": True, "vocab_size": 100}, "--vocab-size 100 is too small"),
        ({"builtin": True, "validation": 1.0}, "--validation 1.0"),
        ({"builtin": True, "tokenizer": "no/such-thing"}, "no tokenizer at"),
    ],
)
def test_impossible_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        prepare(out=tmp_path / "out", **arguments)


def test_one_document_alone_cannot_be_split(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("all of it is one document\n" * 100)
    with pytest.raises(UserError, match="only 1 document"):
        prepare([path], out=tmp_path / "out", vocab_size=300)


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_damage_to_any_file_is_noticed_and_named(data, tmp_path, harm):
    for name in data.manifest["files"]:
        copy = tmp_path / harm / name.replace("/", "-")
        shutil.copytree(data.folder, copy)
        path = copy / name
        content = bytearray(path.read_bytes())
        if harm == "truncate":
            path.write_bytes(content[:-1])
        elif harm == "flip":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        else:
            path.unlink()
        with pytest.raises(UserError, match=path.name.replace(".", r"\.")):
            PreparedData.open(copy)


def test_a_torn_manifest_is_one_clear_line(data, tmp_path):
    shutil.copytree(data.folder, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedData.open(tmp_path / "copy")
    manifest.write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        PreparedData.open(tmp_path / "copy")


def test_a_relative_folder_means_the_current_one_each_time(tmp_path, text, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        prepare([text], out=Path("data"), vocab_size=300)
        assert (tmp_path / name / "data" / "train" / "00000.ds").stat().st_size > 1000


def test_one_path_alone_is_taken_as_one_input(tmp_path, text):
    assert prepare(str(text), out=tmp_path / "out", vocab_size=300).manifest["settings"]["inputs"][0]["path"] == str(
        text
    )
    with pytest.raises(UserError, match="INPUT is empty"):
        prepare([""], out=tmp_path / "other")


@pytest.mark.parametrize("harm", ["manifest", "shard", "tokenizer"])
def test_overwrite_repairs_a_damaged_folder(tmp_path, text, harm):
    out = tmp_path / "out"
    whole = prepare([text], out=out, vocab_size=300)
    {
        "manifest": out / "manifest.json",
        "shard": out / "train" / "00000.ds",
        "tokenizer": out / "tokenizer" / "tokenizer.json",
    }[harm].write_bytes(b"x")
    with pytest.raises(UserError, match="--overwrite"):
        prepare([text], out=out, vocab_size=300)
    assert prepare([text], out=out, vocab_size=300, overwrite=True).fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.pop("splits"),
        lambda m: m.pop("settings"),
        lambda m: m["splits"].pop("validation"),
        lambda m: m.update(token_bytes=4),
        lambda m: m.update(files=[]),
        lambda m: m["tokenizer"].update(mask=10**6),
        lambda m: m["splits"]["train"].update(shards=["../elsewhere.ds"]),
    ],
)
def test_a_manifest_that_prepare_would_not_write_is_refused(data, tmp_path, edit):
    shutil.copytree(data.folder, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    edit(manifest)
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedData.open(tmp_path / "copy")


def test_a_file_name_that_is_no_text_survives(tmp_path, text):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff\x1b.txt"))
    shutil.copy(text, odd)
    out = tmp_path / "out"
    first = prepare([odd], out=out, vocab_size=300)
    assert prepare([odd], out=out, vocab_size=300).manifest == first.manifest
