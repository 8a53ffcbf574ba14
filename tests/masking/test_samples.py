"""Samples: sample i is the same from any number of workers and after any restart."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from latemask.masking import LateMaskCollator, SampleDataset
from latemask.recipe import MaskCounts, MaskRecipe
from latemask.text import PreparedData


@pytest.fixture
def rows(data: PreparedData):
    return data.rows("train", 32)


def test_an_epoch_holds_every_row_once_and_each_epoch_has_its_own_order(rows):
    count = len(rows)
    dataset = SampleDataset(rows, 2 * count)
    first, second = (dataset.row_numbers(np.arange(n * count, (n + 1) * count)) for n in (0, 1))
    assert sorted(first) == sorted(second) == list(range(count))
    assert (first != second).any()


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
