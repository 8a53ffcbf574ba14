"""A data folder: what is in it, and whether it is whole; nothing is read twice without a reason."""

import json
import os
import shutil

import numpy as np
import pytest

from latemask.ground.errors import UserError
from latemask.ground.files import json_digest, sha256_of
from latemask.text import Mixture, PreparedData, prepare, prepared
from latemask.text.prepared import NOTE
from tests.text.test_adopting import theirs


def test_the_manifest_counts_what_is_there(data):
    manifest = data.manifest
    for split in ("train", "validation"):
        record = manifest["splits"][split]
        shard = record["shards"][0]["file"]
        assert record["tokens"] == (data.folder / shard).stat().st_size // 2
        assert record["documents"] == len(np.fromfile(data.folder / f"{shard}.index", "<u8")) > 0
        assert manifest["files"][shard]["sha256"] == sha256_of(data.folder / shard)
    assert manifest["tokenizer"]["size"] == len(data.tokenizer) == 1024
    assert set(manifest["versions"]) == {"latemask", "datatrove", "tokenizers", "transformers"}


def test_rows_decode_to_the_text(data, corpus):
    row = data.tokenizer.decode(data.rows("train", 64).take([0])[0], skip_special_tokens=True)
    assert row.strip()[:40] in corpus.read_text()


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


def test_a_single_changed_number_in_the_manifest_is_noticed(data, tmp_path):
    shutil.copytree(data.folder, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    record = json.loads(manifest.read_text())
    record["splits"]["train"]["documents"] += 1
    manifest.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedData.open(tmp_path / "copy")


def test_a_torn_manifest_is_one_clear_line(data, tmp_path):
    shutil.copytree(data.folder, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedData.open(tmp_path / "copy")
    manifest.write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        PreparedData.open(tmp_path / "copy")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.pop("splits"),
        lambda m: m.pop("settings"),
        lambda m: m["splits"].pop("validation"),
        lambda m: m.update(token_bytes=4),
        lambda m: m.update(files=[]),
        lambda m: m["ngrams"].update(buckets=10**9),
        lambda m: m["tokenizer"].update(mask=10**6),
        lambda m: m["splits"]["train"].update(shards=[{"file": "../elsewhere.ds", "first": 0, "tokens": 1}]),
    ],
)
def test_a_manifest_that_prepare_would_not_write_is_refused(data, tmp_path, edit):
    shutil.copytree(data.folder, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    del manifest["sha256"]
    edit(manifest)
    signed = {**manifest, "sha256": json_digest(manifest)}  # not damaged: made by somebody else
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(signed))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        PreparedData.open(tmp_path / "copy")


@pytest.fixture
def copy(data, tmp_path):
    """The data, as another machine gets them: whole, and never verified there."""
    shutil.copytree(data.folder, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch):
    """The names of files that were read to compare them with their checksums."""
    names = []
    monkeypatch.setattr(prepared, "sha256_of", lambda path: names.append(path.name) or sha256_of(path))
    return names


def test_what_was_verified_is_not_read_again(copy, read):
    names = sorted(path.split("/")[-1] for path in PreparedData.open(copy).manifest["files"])
    assert sorted(read) == names
    for open_it in (PreparedData.open, Mixture.open):
        read.clear()
        open_it(copy)
        assert read == []
        open_it(copy, everything=True)
        assert sorted(read) == names


def touch(path):
    os.utime(path)


def replace(path):
    path.with_name("other").write_bytes(path.read_bytes())
    os.utime(path.with_name("other"), ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.with_name("other").replace(path)


def set_back(path):
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [touch, replace, set_back])
def test_a_file_that_looks_otherwise_is_read_and_only_that_one(copy, read, change):
    PreparedData.open(copy)
    read.clear()
    change(copy / "train" / "00000_0000.ds")
    PreparedData.open(copy)
    assert read == ["00000_0000.ds"]
    PreparedData.open(copy)
    assert read == ["00000_0000.ds"]


def test_a_flipped_bit_is_noticed_though_the_time_was_set_back(copy):
    PreparedData.open(copy)
    path = copy / "train" / "00000_0000.ds"
    before, content = path.stat(), bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):  # what did not match is not remembered
        with pytest.raises(UserError, match=r"00000_0000\.ds does not match its checksum"):
            PreparedData.open(copy)


def test_everything_finds_what_no_stamp_shows(copy, monkeypatch):
    """As if the disk had lost a bit: the file looks as it did."""
    monkeypatch.setattr(prepared, "stamp", lambda path: "always the same")
    PreparedData.open(copy)
    path = copy / "train" / "00000_0000.ds"
    path.write_bytes(bytes(path.stat().st_size))
    PreparedData.open(copy)
    with pytest.raises(UserError, match=r"00000_0000\.ds does not match its checksum"):
        PreparedData.open(copy, everything=True)


def test_a_fresh_preparation_is_not_read_once_more(tmp_path, corpus, data, read):
    tokenizer = str(data.tokenizer_folder)
    made = prepare([corpus], out=tmp_path / "out", tokenizer=tokenizer)
    adopted = prepare(adopt=theirs(tmp_path / "shards", data))
    read.clear()
    for folder in (made.folder, adopted.folder):
        PreparedData.open(folder)
    prepare([corpus], out=tmp_path / "out", tokenizer=tokenizer)
    assert read == []


def test_a_shard_that_changes_before_its_preparation_ends_is_read(tmp_path, corpus, data, monkeypatch):
    """The note says what a shard looked like when it was written, not when the last one was."""
    usual = prepared.write_manifest

    def after_harm(out, **entries):
        shard = next((out / "train").glob("*.ds"))
        shard.write_bytes(bytes(shard.stat().st_size))
        return usual(out, **entries)

    monkeypatch.setattr("latemask.text.workplace.write_manifest", after_harm)
    made = prepare([corpus], out=tmp_path / "out", tokenizer=str(data.tokenizer_folder))
    with pytest.raises(UserError, match="does not match its checksum"):
        PreparedData.open(made.folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"manifest": 3}', b"\xff", b'{"files": 1, "manifest": "x"}'])
def test_a_damaged_note_is_no_note(copy, read, content):
    PreparedData.open(copy)
    read.clear()
    (copy / NOTE).write_bytes(content)
    assert len(PreparedData.open(copy).manifest["files"]) == len(read)


def test_a_note_of_another_manifest_is_no_note(copy, read):
    PreparedData.open(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"]["train/00000_0000.ds"]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps({**manifest, "sha256": json_digest(manifest)}))
    with pytest.raises(UserError, match=r"00000_0000\.ds does not match its checksum"):
        PreparedData.open(copy)


def test_where_no_note_can_be_written_everything_is_read_each_time(copy, read, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prepared, "write_json_atomically", refuse)
    for _ in range(2):
        read.clear()
        assert len(PreparedData.open(copy).manifest["files"]) == len(read)


def test_without_verifying_nothing_is_read_and_nothing_written(copy, read):
    (copy / NOTE).unlink()
    PreparedData.open(copy, verify=False, everything=True)
    assert read == []
    assert not (copy / NOTE).exists()
