"""Samples: sample i is the same from any number of workers and after any restart."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from latemask.masking.batches import LateMaskCollator
from latemask.masking.samples import SampleDataset, dealt
from latemask.recipe import MaskCounts, MaskRecipe
from latemask.text import PreparedData
from latemask.text.rows import Shard, TokenRows


@pytest.fixture
def rows(data: PreparedData):
    return data.rows("train", 32)


def test_an_epoch_holds_every_row_once_and_each_epoch_has_its_own_order(rows):
    count = len(rows)
    dataset = SampleDataset(rows, 2 * count)
    first, second = (dataset.row_numbers(np.arange(n * count, (n + 1) * count)) for n in (0, 1))
    assert sorted(first) == sorted(second) == list(range(count))
    assert (first != second).any()


def test_reading_samples_one_by_one_ends(rows):
    dataset = SampleDataset(rows, 5)
    assert [sample["index"] for sample in dataset] == list(range(5))
    for beyond in (-1, 5):
        with pytest.raises(IndexError, match=f"sample {beyond} of 5"):
            dataset[beyond]


def test_a_row_that_comes_round_has_a_new_mask(rows, data):
    count = len(rows)
    dataset = SampleDataset(rows, 2 * count)
    again = count + int(
        np.flatnonzero(dataset.row_numbers(np.arange(count, 2 * count)) == dataset.row_numbers(np.array([0])))[0]
    )
    collate = LateMaskCollator(MaskCounts.of(MaskRecipe(), 32), data.vocabulary)
    one, two = collate([dataset[0]]), collate([dataset[again]])
    assert (dataset[0]["ids"] == dataset[again]["ids"]).all()
    assert not torch.equal(one["masked_positions"], two["masked_positions"])


def test_the_number_of_workers_changes_nothing(rows, data):
    collate = LateMaskCollator(MaskCounts.of(MaskRecipe(random=0.1, keep=0.1, drop=0.1), 32), data.vocabulary)
    dataset = SampleDataset(rows, 64, seed=5)
    here, there = (list(DataLoader(dataset, 8, num_workers=n, collate_fn=collate)) for n in (0, 4))
    for one, two in zip(here, there, strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_starting_later_is_skipping(rows):
    whole, later = SampleDataset(rows, 100), SampleDataset(rows, 100, first=40)
    assert (whole[47]["ids"] == later[7]["ids"]).all()
    assert whole[47]["index"] == later[7]["index"] == 47


def test_validation_samples_are_in_order(rows):
    assert SampleDataset(rows, 10, shuffle=False).row_numbers(np.arange(5)).tolist() == [0, 1, 2, 3, 4]


WEIGHTS = st.lists(st.floats(0.01, 1), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(0, 10**9), st.integers(1, 400))
def test_parts_of_a_mixture_are_dealt_out_evenly_and_without_gaps(weights, start, count):
    parts, ordinals = dealt(np.arange(start, start + count), weights)
    for part, weight in enumerate(weights):
        given_ = ordinals[parts == part]
        assert (np.diff(given_) == 1).all()
        assert abs(len(given_) - count * weight / sum(weights)) <= len(weights) + 1e-3 * count


def test_a_mixture_draws_from_its_parts_by_weight_and_starts_anywhere(data):
    parts = [data.rows("train", 32), data.rows("validation", 32)]
    dataset = SampleDataset(parts, 400, weights=[0.75, 0.25], seed=3)
    held_out = {row.tobytes() for row in parts[1].take(range(len(parts[1])))}
    from_second = [sample["ids"].tobytes() in held_out for sample in dataset.__getitems__(range(400))]
    assert sum(from_second) == 100
    later = SampleDataset(parts, 400, weights=[0.75, 0.25], seed=3, first=123)
    assert (later[5]["ids"] == dataset[128]["ids"]).all()


def test_each_part_of_a_mixture_is_read_once_an_epoch_in_its_own_order(data):
    rows = data.rows("validation", 32)
    dataset = SampleDataset([rows, rows], 2 * len(rows), weights=[0.5, 0.5])
    numbers = [dataset.row_numbers(np.arange(len(rows)), part) for part in (0, 1)]
    assert sorted(numbers[0]) == sorted(numbers[1]) == list(range(len(rows)))
    assert (numbers[0] != numbers[1]).any()


def test_one_part_alone_is_read_as_if_there_were_no_mixture(rows):
    alone, mixed = SampleDataset(rows, 50), SampleDataset([rows], 50, weights=[0.3])
    assert all((alone[n]["ids"] == mixed[n]["ids"]).all() for n in range(50))


def test_a_million_samples_are_drawn_from_a_large_file_without_reading_it(tmp_path):
    path = tmp_path / "large.ds"
    with path.open("wb") as file:
        file.truncate(2 * 10**10)  # a hole: 10 billion tokens that take no room
    rows = TokenRows([Shard(path, 0, 10**10)], 2, 128, bos=0)
    dataset = SampleDataset(rows, 10**9)
    numbers = dataset.row_numbers(np.arange(10**6))
    assert len(np.unique(numbers)) == 10**6
    assert numbers.max() < len(rows)
    assert dataset[10**9 - 1]["ids"].tolist() == [0] * 128
