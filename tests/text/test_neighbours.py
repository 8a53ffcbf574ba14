"""Neighbours: what a slow loop counts, kept beside the data they belong to, and never taken for another's."""

import shutil
from collections import Counter

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from latemask.text import Mixture, PreparedData, neighbours, prepare
from latemask.text.neighbours import NEAREST, count_neighbours, frequencies_of, neighbours_of
from latemask.text.rows import Shard


def shard(path, ids, token_bytes=2) -> Shard:
    np.asarray(ids, f"<u{token_bytes}").tofile(path)
    return Shard(path, 0, len(ids))


def slow_counts(texts, window=5) -> Counter:
    """The oracle: one pair after another."""
    found: Counter = Counter()
    for ids in texts:
        for place, left in enumerate(ids):
            for distance, right in enumerate(ids[place + 1 : place + 1 + window], 1):
                found[int(left), int(right)] += NEAREST // distance
    return found


def as_counter(counted) -> Counter:
    found = counted.following.tocoo()
    return Counter({(int(i), int(j)): int(n) for i, j, n in zip(*found.coords, found.data, strict=True)})


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(0)
    return [random.zipf(1.3, size) % 40 for size in (3000, 1, 0, 500)]


@pytest.fixture
def own_data(data, tmp_path) -> PreparedData:
    """A copy of the data, for tests that write beside it."""
    shutil.copytree(data.folder, tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "neighbours", ignore_errors=True)
    return PreparedData.open(tmp_path / "data")


@pytest.mark.parametrize("token_bytes", [2, 4])
@pytest.mark.parametrize("cells", [1 << 23, 100], ids=["the table at once", "a few rows at a time"])
def test_pairs_are_those_of_a_slow_loop(texts, tmp_path, monkeypatch, token_bytes, cells):
    monkeypatch.setattr(neighbours, "_CELLS", cells)
    monkeypatch.setattr(neighbours, "_LEAST", 1)
    shards = [shard(tmp_path / str(number), ids, token_bytes) for number, ids in enumerate(texts)]
    counted = count_neighbours(shards, token_bytes, 40)
    assert as_counter(counted) == slow_counts(texts)
    assert counted.frequencies.tolist() == np.bincount(np.concatenate(texts), minlength=40).tolist()
    assert counted.tokens == sum(map(len, texts))


def test_pairs_count_in_both_orders(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "_LEAST", 1)
    counted = count_neighbours([shard(tmp_path / "text", texts[0])], 2, 40)
    both = counted.pairs.toarray()
    assert (both == both.T).all()
    assert both.sum() == 2 * counted.following.sum()


def test_rare_pairs_go_first(texts, tmp_path, monkeypatch):
    whole = slow_counts(texts[:1])
    counted = as_counter(count_neighbours([shard(tmp_path / "text", texts[0])], 2, 40))
    assert counted == Counter({pair: count for pair, count in whole.items() if count >= 24})
    monkeypatch.setattr(neighbours, "MOST_PAIRS", 100)
    fewer = as_counter(count_neighbours([shard(tmp_path / "text", texts[0])], 2, 40))
    assert 0 < len(fewer) <= 100
    least = min(fewer.values())
    assert all(count < 2 * least or pair in fewer for pair, count in whole.items())


def test_a_text_of_one_word_does_not_overflow(tmp_path):
    counted = count_neighbours([shard(tmp_path / "text", np.full(2_000_000, 7))], 2, 40)
    assert counted.following[7, 7] == sum(NEAREST // d * (2_000_000 - d) for d in range(1, 6))


def test_an_empty_text_has_no_neighbours():
    counted = count_neighbours([], 2, 40)
    assert (counted.tokens, counted.following.nnz) == (0, 0)
    assert counted.following.shape == (40, 40)


def test_frequencies_alone_are_those_counted_with_the_pairs(own_data):
    mixture = Mixture.open(own_data.folder)
    for tokens in (1000, 1 << 26):
        np.testing.assert_array_equal(frequencies_of(mixture, tokens), neighbours_of(mixture, tokens).frequencies)


# Kept beside the data


def the_same(one, other) -> bool:
    return (
        one.tokens == other.tokens
        and (one.frequencies == other.frequencies).all()
        and as_counter(one) == as_counter(other)
    )


def never_again(*_, **__):
    raise AssertionError("counted again")


def test_counts_are_kept_and_read_again(own_data, monkeypatch):
    first = neighbours_of(Mixture.open(own_data.folder))
    monkeypatch.setattr(neighbours, "count_neighbours", never_again)
    assert the_same(neighbours_of(Mixture.open(own_data.folder)), first)
    PreparedData.open(own_data.folder, everything=True)  # the data are as whole as before


@pytest.mark.parametrize("how", ["a bit", "cut", "no manifest", "not safetensors"])
def test_damaged_counts_are_said_and_made_again(own_data, capsys, how):
    first = neighbours_of(Mixture.open(own_data.folder))
    file = own_data.folder / "neighbours" / "counts.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"a bit": bytes(content), "cut": bytes(content[:-9])}
    file.write_bytes(damaged.get(how, b"nothing"))
    if how == "no manifest":
        (file.parent / "manifest.json").unlink()
    if how == "not safetensors":
        neighbours.seal(file.parent)
    capsys.readouterr()
    assert the_same(neighbours_of(Mixture.open(own_data.folder)), first)
    assert "counting again" in capsys.readouterr().err
    assert load_file(file)["frequencies"].sum() == first.tokens  # and kept


def test_counts_of_other_data_are_not_taken(own_data, corpus, tmp_path):
    text = corpus.read_text("utf-8")
    (tmp_path / "half.txt").write_text(text[: len(text) // 2], "utf-8")
    other = prepare([tmp_path / "half.txt"], out=tmp_path / "half", tokenizer=str(own_data.tokenizer_folder))
    own = neighbours_of(Mixture.open(own_data.folder))
    shutil.copytree(own_data.folder / "neighbours", other.folder / "neighbours")
    assert not the_same(neighbours_of(Mixture.open(other.folder)), own)


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(own_data, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    counted = neighbours_of(Mixture.open(own_data.folder))
    assert counted.tokens == own_data.tokens("train")
    assert "not kept" in capsys.readouterr().err
    assert not (own_data.folder / "neighbours").exists()


@pytest.mark.parametrize("kind", [OSError, SafetensorError])  # of a checksum's file, and of the counts'
def test_a_disk_that_fills_leaves_nothing_behind(own_data, monkeypatch, capsys, kind):
    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise kind("I/O error: No space left on device (os error 28)")

    before = sorted(own_data.folder.iterdir())
    monkeypatch.setattr("safetensors.numpy.save_file", full)
    assert neighbours_of(Mixture.open(own_data.folder)).tokens
    assert "No space left" in capsys.readouterr().err
    assert sorted(own_data.folder.iterdir()) == before


def test_what_a_kill_left_is_no_trouble(own_data):
    aside = own_data.folder / ".neighbours.writing"
    aside.mkdir()
    (aside / "counts.safetensors").write_bytes(b"half")
    neighbours_of(Mixture.open(own_data.folder))
    assert not aside.exists()
    assert (own_data.folder / "neighbours").is_dir()


def test_preparing_again_takes_the_counts_away(own_data, corpus):
    neighbours_of(Mixture.open(own_data.folder))
    (own_data.folder / ".neighbours.writing").mkdir()
    prepare([corpus], out=own_data.folder, vocab_size=500, overwrite=True)
    assert not (own_data.folder / "neighbours").exists()


# Mixtures


def test_a_mixture_counts_every_part_by_its_weight(own_data, corpus, tmp_path):
    text = corpus.read_text("utf-8")
    (tmp_path / "half.txt").write_text(text[: len(text) // 2], "utf-8")
    other = prepare([tmp_path / "half.txt"], out=tmp_path / "half", tokenizer=str(own_data.tokenizer_folder))
    mixture = Mixture.open([f"{own_data.folder}:0.25", f"{other.folder}:0.75"])
    mixed = neighbours_of(mixture)
    np.testing.assert_array_equal(frequencies_of(mixture), mixed.frequencies)
    own, others = (neighbours_of(Mixture.open(one.folder)) for one in (own_data, other))
    share = mixed.frequencies / mixed.frequencies.sum()
    expected = 0.25 * own.frequencies / own.tokens + 0.75 * others.frequencies / others.tokens
    np.testing.assert_allclose(share, expected)
    pairs = 0.25 * own.following.toarray() / own.tokens + 0.75 * others.following.toarray() / others.tokens
    np.testing.assert_allclose(mixed.following.toarray() / mixed.tokens, pairs)
