"""Cleaning: what is dropped, and the count of it; nothing is dropped that was not asked for."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from datatrove.utils.lid import FT176LID
from fsspec.core import strip_protocol
from huggingface_hub import cached_assets_path

from latemask.ground.errors import UserError
from latemask.text import prepare, sources
from latemask.text.shards import SPLITS

DRAW = random.Random(0)
WORDS = ["word" + "".join(letters) for letters in itertools.product("abcdefg", repeat=3)]  # digits would count alike


def document(words: int = 60) -> str:
    return " ".join(DRAW.choices(WORDS, k=words))


ORIGINALS = [document() for _ in range(200)]
NEARLY = [text.replace(text.split()[30], "changed", 1) for text in ORIGINALS[:20]]


def corpus(folder, *groups):
    """The groups of documents in three files, so that duplicates lie in different tasks."""
    texts = [text for group in groups for text in group]
    for part in range(3):
        lines = "\n".join(json.dumps({"text": text}) for text in texts[part::3])
        (folder / f"{part}.jsonl").write_text(lines)
    return folder


def documents_of(data) -> int:
    return sum(data.manifest["splits"][split]["documents"] for split in SPLITS)


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch):
    monkeypatch.setattr(sources, "SMALLEST_GROUP", 10_000)


def prepared(tmp_path, *groups, **options):
    (tmp_path / "in").mkdir()
    return prepare([corpus(tmp_path / "in", *groups)], out=tmp_path / "out", workers=1, **options)


def test_nothing_is_dropped_unless_asked_for(tmp_path):
    data = prepared(tmp_path, ORIGINALS, ORIGINALS, ["x"])
    assert documents_of(data) == 401
    assert data.manifest["dropped"] == {}


def test_short_documents_are_dropped_and_counted(tmp_path, capsys):
    data = prepared(tmp_path, ORIGINALS, ["short", "x" * 99, "x" * 100], min_chars=100)
    assert documents_of(data) == 201
    assert data.manifest["dropped"] == {"shorter than 100": 2}
    assert "dropped 2 shorter than 100" in capsys.readouterr().err


@pytest.mark.parametrize("group_bytes", [10_000, 10**9])
def test_of_equal_documents_one_is_kept(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(sources, "SMALLEST_GROUP", group_bytes)
    data = prepared(tmp_path, ORIGINALS, ORIGINALS[50:90], ORIGINALS[60:70], NEARLY, dedup="exact")
    assert documents_of(data) == 220
    assert data.manifest["dropped"] == {"duplicates": 50}


@pytest.mark.parametrize("group_bytes", [10_000, 10**9])
def test_of_nearly_equal_documents_one_is_kept(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(sources, "SMALLEST_GROUP", group_bytes)
    data = prepared(tmp_path, ORIGINALS, ORIGINALS[50:90], NEARLY, dedup="minhash")
    dropped = data.manifest["dropped"]["near-duplicates"]
    assert 40 + 12 <= dropped <= 60  # all equal ones, and most of those with another word
    assert documents_of(data) == 260 - dropped


def test_texts_without_spaces_are_compared_by_their_characters(tmp_path):
    letters = [chr(0x4E00 + n) for n in range(400)]
    texts = ["".join(DRAW.choices(letters, k=120)) for _ in range(30)]
    data = prepared(tmp_path, texts, [text[:60] + "新" + text[60:] for text in texts], dedup="minhash")
    assert data.manifest["dropped"]["near-duplicates"] >= 24


def test_duplicates_are_sought_among_what_other_steps_left(tmp_path):
    data = prepared(tmp_path, ORIGINALS, ["short"] * 30, dedup="exact", min_chars=10)
    assert data.manifest["dropped"] == {"shorter than 10": 30, "duplicates": 0}


def test_when_nothing_is_left_it_is_said_what_was_dropped(tmp_path):
    tokenizer = str(prepared(tmp_path, ORIGINALS).tokenizer_folder)
    for options in ({"tokenizer": tokenizer}, {}):
        with pytest.raises(UserError, match=r"cleaning left no document \(200 shorter than 100000\)"):
            prepare([tmp_path / "in"], out=tmp_path / f"other{len(options)}", min_chars=100_000, **options)


def train_language_model(examples: Path, model: Path) -> None:
    """Train in a process whose memory is zero to begin with: this build of fasttext forgets to clear some."""
    code = "import sys, fasttext; fasttext.train_supervised(sys.argv[1], epoch=20, thread=1).save_model(sys.argv[2])"
    environment = {**os.environ, "MALLOC_PERTURB_": "255"}
    command = [sys.executable, "-c", code, str(examples), str(model)]
    if subprocess.run(command, env=environment, capture_output=True).returncode:
        pytest.skip("fasttext cannot be trained here")


@pytest.fixture
def language_model(tmp_path, monkeypatch):
    """A small model at the place where datatrove keeps the one it downloads, trained on the spot."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    examples = tmp_path / "examples"
    lines = [f"__label__en {text}\n__label__de {text.replace('word', 'wort')}" for text in ORIGINALS]
    examples.write_text("\n".join(lines))
    folder = cached_assets_path("datatrove", "lid", "ft176")
    assert str(folder).startswith(str(tmp_path))
    name = strip_protocol(FT176LID.MODEL_URL).replace("/", "_")
    train_language_model(examples, folder / name)
    (folder / f"{name}.completed").touch()


def test_other_languages_are_dropped(tmp_path, language_model):
    german = [text.replace("word", "wort") for text in ORIGINALS[:70]]
    data = prepared(tmp_path, ORIGINALS, german, language="en")
    assert data.manifest["dropped"] == {"not en": 70}


def test_a_language_model_that_cannot_be_downloaded_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    with pytest.raises(UserError, match=r"--language: the model .* cannot be downloaded from https://\S+ \(") as caught:
        prepared(tmp_path, ORIGINALS, language="en")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
