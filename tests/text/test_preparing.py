"""prepare: the whole way from text to a folder that knows what is in it."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from latemask.ground.errors import UserError
from latemask.text import PreparedData, prepare
from latemask.text.prepared import NGRAMS, NOTE
from tests.launching import Launched, launch, run
from tests.text.test_executors import fake_slurm


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"This is document {n} of a small corpus. " * 5 for n in range(300)))
    return path


def test_about_a_share_of_the_documents_is_held_out_and_none_is_in_both(tmp_path, text):
    data = prepare([text], out=tmp_path / "out", vocab_size=300, validation=0.2)
    counts = {split: record["documents"] for split, record in data.manifest["splits"].items()}
    assert sum(counts.values()) == 300
    assert 35 <= counts["validation"] <= 85


def test_at_least_one_document_is_held_out(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("one document of words\n\nanother document of words\n\na third one")
    data = prepare([path], out=tmp_path / "out")
    assert data.manifest["splits"]["validation"]["documents"] == 1


def test_validation_zero_holds_out_none(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a single document of words, " * 50)
    data = prepare([path], out=tmp_path / "out", validation=0)
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
        prepare([text], out=out, vocab_size=270)
    text.write_text(text.read_text() + "\n\nmore")
    with pytest.raises(UserError, match=r"other settings \(inputs\)"):
        prepare([text], out=out, vocab_size=300)
    assert len(prepare([text], out=out, vocab_size=384, overwrite=True).tokenizer) == 384


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


def test_a_folder_without_its_manifest_is_not_used_and_not_replaced_unasked(tmp_path, text):
    out = tmp_path / "out"
    prepare([text], out=out, vocab_size=300)
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        PreparedData.open(out)
    with pytest.raises(UserError, match=r"shards without a manifest.*--overwrite"):
        prepare([text], out=out, vocab_size=300)
    assert prepare([text], out=out, vocab_size=300, overwrite=True).folder == out


@pytest.mark.parametrize("name", ["thesis.doc", "train/thesis.txt", "validation/thesis.ds.bak", "tokenizer/thesis.doc"])
def test_what_is_not_ours_is_never_removed(tmp_path, text, name):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"was not made by latemask prepare.*thesis"):
            prepare([text], out=tmp_path / "mine", overwrite=overwrite)
    assert mine.read_text() == "precious"


def test_what_somebody_puts_into_a_finished_folder_is_not_removed_either(tmp_path, text):
    out = tmp_path / "out"
    prepare([text], out=out)
    (out / "train" / "thesis.txt").write_text("precious")
    prepare([text], out=out)  # nothing to do, nothing in the way
    with pytest.raises(UserError, match=r"thesis\.txt"):
        prepare([text], out=out, validation=0.2, overwrite=True)
    assert (out / "train" / "thesis.txt").read_text() == "precious"


def test_the_input_is_not_where_the_result_goes(tmp_path, text):
    out = tmp_path / "out"
    data = prepare([text], out=out)
    os.link(text, out / "tokenizer" / "more.txt")
    for given in (out / "tokenizer" / "more.txt", out):
        with pytest.raises(UserError, match="lies in --out"):
            prepare([given], out=out, tokenizer=str(data.tokenizer_folder), overwrite=True)
    assert (out / "tokenizer" / "more.txt").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adopt": "x", "min_chars": 5}, "--min-chars does not go with --adopt"),
        ({"adopt": "x", "out": "y"}, "--out does not go with --adopt"),
        ({"inputs": "x", "streaming": True}, "--streaming does not go with INPUT"),
        ({"builtin": True, "text_field": "body"}, "--text-field does not go with --builtin"),
        ({"hf_dataset": "x", "format": "csv"}, "--format does not go with --hf-dataset"),
        ({"inputs": "x", "tokenizer": "t", "vocab_size": 500}, "--vocab-size does not go with --tokenizer"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        prepare(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "say what to prepare"),
        ({"inputs": ["x"], "builtin": True}, "say what to prepare"),
        ({"builtin": True, "vocab_size": 100}, "--vocab-size 100 is too small"),
        ({"builtin": True, "validation": 1.0}, "--validation 1.0"),
        ({"builtin": True, "tokenizer": "no/such-thing"}, "no tokenizer at"),
    ],
)
def test_impossible_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        prepare(out=tmp_path / "out", **arguments)


def test_a_relative_folder_means_the_current_one_each_time(tmp_path, text, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        prepare([text], out=Path("data"), vocab_size=300)
        assert (tmp_path / name / "data" / "train" / "00000_0000.ds").stat().st_size > 1000


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
        "shard": out / "train" / "00000_0000.ds",
        "tokenizer": out / "tokenizer" / "tokenizer.json",
    }[harm].write_bytes(b"x")
    with pytest.raises(UserError, match="--overwrite"):
        prepare([text], out=out, vocab_size=300)
    assert prepare([text], out=out, vocab_size=300, overwrite=True).fingerprint == whole.fingerprint


def test_a_file_name_that_is_no_text_survives(tmp_path, text):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff\x1b.txt"))
    shutil.copy(text, odd)
    out = tmp_path / "out"
    first = prepare([odd], out=out, vocab_size=300)
    assert prepare([odd], out=out, vocab_size=300).manifest == first.manifest


# Tasks and parts so small that a small corpus has many.
SMALL = {
    "latemask.text.sources.SMALLEST_GROUP": 60_000,
    "latemask.text.shards.PART_TOKENS": 8_000,
    "latemask.text.shards.BATCH_CHARACTERS": 4_000,
}


def start(out: Path, *arguments: str | Path) -> Launched:
    """Begin to prepare into a folder, in a process of its own."""
    return launch(out.with_name(f"{out.name}-says"), "prepare", *arguments, "--out", out, change=SMALL)


def done(out: Path, *arguments: str | Path) -> Launched:
    """Prepare into a folder, in a process of its own."""
    process = start(out, *arguments)
    assert process.wait() == 0, process.stderr
    return process


def files_in(folder: Path) -> dict[str, bytes]:
    """What depends on the inputs alone: the note says when files were written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NOTE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def many_tasks(tmp_path_factory, corpus):
    """An input folder of several files and formats, the options to prepare it with, and the undisturbed result."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "in").mkdir()
    documents = corpus.read_text().split("\n\n")
    (folder / "in" / "a.txt").write_text("\n\n".join(documents[::2]))
    (folder / "in" / "b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents[1::2]))
    options = (folder / "in", "--vocab-size", "600", "--dedup", "exact", "--validation", "0.1")
    done(folder / "calm", *options, "--workers", "1")
    return options, folder / "calm"


@pytest.mark.parametrize("workers", [5])
def test_the_bytes_do_not_depend_on_the_number_of_workers(many_tasks, tmp_path, workers):
    options, calm = many_tasks
    done(tmp_path / "out", *options, "--workers", str(workers))
    assert len(list((calm / "train").glob("*.ds"))) > 8
    assert files_in(tmp_path / "out") == files_in(calm)


def test_killed_four_times_at_random_moments_it_ends_with_the_same_bytes(many_tasks, tmp_path):
    options, calm = many_tasks
    out, draw = tmp_path / "out", random.Random(0)
    for _ in range(4):
        process = start(out, *options, "--workers", "2")
        time.sleep(draw.uniform(0.2, 4))
        process.send_signal(signal.SIGKILL)
        process.wait()
    done(out, *options)
    assert files_in(out) == files_in(calm)


def test_a_signal_ends_it_in_one_line_that_says_how_to_go_on(many_tasks, tmp_path):
    options, calm = many_tasks
    number = signal.SIGINT  # as Ctrl-C sends it; a run's tests send SIGTERM
    out = tmp_path / "out"
    process = start(out, *options, "--workers", "2")
    while not list(out.glob(".preparing/records/*.json")) and process.returncode is None:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait() == 128 + number
    last = process.stderr.splitlines()[-1]
    assert last == "latemask: stopped. What is finished is kept: run the same command again to go on"
    assert "Traceback" not in process.stderr
    assert not (out / "manifest.json").exists()
    again = done(out, *options)
    assert "going on where an earlier run stopped" in again.stderr
    assert files_in(out) == files_in(calm)


def test_slurm_gives_the_same_bytes(many_tasks, tmp_path, monkeypatch):
    options, calm = many_tasks
    fake_slurm(tmp_path / "bin", monkeypatch)
    named = ("partition=cpu", "time=1:00:00", "tasks-per-job=50")
    slurm = ("--executor", "slurm", *(word for option in named for word in ("--executor-option", option)))
    assert "handed over to Slurm" in done(tmp_path / "out", *options, *slurm).stderr
    assert "nothing to do" in done(tmp_path / "out", *options).stderr  # and the log of the last job is gone
    assert files_in(tmp_path / "out") == files_in(calm)


def test_an_interrupted_run_with_other_settings_starts_afresh(many_tasks, tmp_path):
    (source, *_), calm = many_tasks
    out = tmp_path / "out"
    shutil.copytree(calm, out)
    (out / "manifest.json").unlink()
    (out / ".preparing" / "records").mkdir(parents=True)
    (out / ".preparing" / "settings.json").write_text("{}")
    (out / ".preparing" / "records" / "00000_0000.json").write_text("{}")
    fresh = prepare([source], out=tmp_path / "fresh", vocab_size=320)
    assert prepare([source], out=out, vocab_size=320).fingerprint == fresh.fingerprint


def test_nothing_but_the_result_is_left(tmp_path, text):
    data = prepare([text], out=tmp_path / "out")
    ours = {"manifest.json", NOTE, "ngrams.bin", "tokenizer", "train", "validation"}
    assert {path.name for path in data.folder.iterdir()} == ours
    assert set(files_in(data.folder)) == {*data.manifest["files"], "manifest.json"}


def test_without_ngrams_all_else_is_the_same_and_they_can_be_had_later(tmp_path, text, capsys):
    options = {"out": tmp_path / "out", "vocab_size": 300}
    without = prepare([text], **options, no_ngrams=True)
    assert NGRAMS not in files_in(without.folder)
    assert "ngrams" not in without.manifest  # as data folders were before there were any
    prepare([text], **options)
    assert "nothing to do (it keeps no n-grams; --overwrite" in capsys.readouterr().err
    with_them = prepare([text], **options, overwrite=True)
    assert with_them.manifest["ngrams"]["entries"] > 0
    assert with_them.fingerprint == without.fingerprint  # a run goes on with either
    prepare([text], **options, no_ngrams=True)
    assert capsys.readouterr().err.splitlines()[-1].endswith("nothing to do")


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for 300 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", place], capture_output=True).returncode:
        pytest.skip("no right to mount a small file system here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("workers", ["2"])
def test_a_full_disk_is_one_line_and_nothing_looks_finished(small_disk, many_tasks, tmp_path, workers):
    (source, *_), calm = many_tasks
    words = ("prepare", source, "--out", small_disk / "out", "--tokenizer", calm / "tokenizer", "--workers", workers)
    found = run(tmp_path / "says", *words, change=SMALL)
    assert found.returncode == 2
    assert "the disk is full" in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr
    assert not (small_disk / "out" / "manifest.json").exists()


def test_a_vocabulary_is_rounded_up_to_a_multiple_of_64_or_refused(tmp_path, corpus, text):
    assert prepare([corpus], out=tmp_path / "out", vocab_size=1001).vocabulary.size == 1024
    largest = prepare([text], out=tmp_path / "largest").vocabulary.size
    with pytest.raises(UserError, match=f"pass --vocab-size {largest}"):
        prepare([text], out=tmp_path / "more", vocab_size=largest + 1)


def test_a_vocabulary_that_the_text_cannot_fill_is_refused_with_one_that_it_can(tmp_path, text):
    with pytest.raises(UserError, match="does not fill a vocabulary of 5,056") as caught:
        prepare([text], out=tmp_path / "out", vocab_size=5000)
    assert not (tmp_path / "out").exists()
    possible = int(str(caught.value).split("--vocab-size ")[1].split(",")[0])
    assert prepare([text], out=tmp_path / "out", vocab_size=possible).vocabulary.size == possible
    assert prepare([text], out=tmp_path / "default").vocabulary.size == possible


def test_the_same_character_has_the_same_ids_however_it_was_typed_unless_asked(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"caf\u00e9 number {n}" for n in range(50)))
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    nfc = prepare([path], out=tmp_path / "nfc").tokenizer
    assert nfc(composed).input_ids == nfc(decomposed).input_ids
    plain = prepare([path], out=tmp_path / "none", normalize="none").tokenizer
    assert plain(composed).input_ids != plain(decomposed).input_ids


def test_the_tokenizer_is_trained_on_a_sample_of_the_size_that_was_asked_for(tmp_path, corpus, capsys):
    prepare([corpus], out=tmp_path / "out", tokenizer_sample="50 KB", vocab_size=400)
    assert "training a tokenizer on 0.0 M characters" in capsys.readouterr().err
    for wrong in ("many", "-5MB", "0", "5TB"):
        with pytest.raises(UserError, match="not a size like 200MB"):
            prepare([corpus], out=tmp_path / "other", tokenizer_sample=wrong)


def test_a_local_folder_is_a_hugging_face_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    rows = [{"body": f"Row {n} of a dataset, with words."} for n in range(200)] + [{"body": None}]
    (tmp_path / "set" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for streaming in (False, True):
        out = tmp_path / f"out-{streaming}"
        data = prepare(hf_dataset=str(tmp_path / "set"), text_field="body", streaming=streaming, out=out)
        assert sum(record["documents"] for record in data.manifest["splits"].values()) == 200
        assert data.manifest["skipped"] == 1
        assert data.sources == [str(tmp_path / "set")]
    with pytest.raises(UserError, match="has no column 'text'; it has 'body'"):
        prepare(hf_dataset=str(tmp_path / "set"), out=tmp_path / "other")
    with pytest.raises(UserError, match="cannot be loaded"):
        prepare(hf_dataset=str(tmp_path / "set"), hf_split="test", out=tmp_path / "other")


def test_a_dataset_of_the_hub_is_one_clear_line_offline(tmp_path):
    for streaming in (False, True):
        with pytest.raises(UserError, match="the dataset 'nobody/nothing' cannot be loaded") as caught:
            prepare(hf_dataset="nobody/nothing", streaming=streaming, out=tmp_path / "out")
        assert "\n" not in str(caught.value)
