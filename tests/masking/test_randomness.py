"""Randomness as an argument: a permutation in constant memory, and streams that do not touch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask.masking.randomness import Fork, Stream, draws, fork, key, shuffled


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 1000))
def test_shuffled_is_a_permutation(size, seed, epoch):
    keys = key(seed, 0, np.full(size, epoch))
    assert sorted(shuffled(np.arange(size), size, keys).tolist()) == list(range(size))


def test_shuffled_takes_each_position_alone():
    keys = key(1, 0, np.zeros(1000, int))
    whole = shuffled(np.arange(1000), 1000, keys)
    assert shuffled(np.array([17]), 1000, keys[:1])[0] == whole[17]


def test_shuffled_leaves_little_in_place_and_differs_between_epochs():
    one, two = (shuffled(np.arange(5000), 5000, key(0, 0, np.full(5000, epoch))) for epoch in (0, 1))
    assert (one == np.arange(5000)).sum() < 20
    assert (one == two).sum() < 20
    assert abs(np.corrcoef(one, np.arange(5000))[0, 1]) < 0.06


def test_streams_and_seeds_and_indices_give_different_numbers():
    drawn = [
        draws(key(seed, stream, np.array([index])), 4)[0] for seed in (0, 1) for stream in (0, 1) for index in (0, 1)
    ]
    assert len({tuple(row) for row in drawn}) == 8


def test_draws_are_uniform():
    drawn = draws(key(0, 1, np.arange(2000)), 50).astype(float) / 2**64
    assert abs(drawn.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(drawn, 10, (0, 1))[0] / 10_000 - 1).max() < 0.05


def test_forks_of_a_key_are_independent_of_its_draws_and_of_one_another():
    keys = key(0, Stream.MASK, np.arange(500))
    drawn = [draws(keys, 20), *(draws(fork(keys, use), 20) for use in Fork)]
    assert len(np.unique(np.concatenate(drawn))) == 500 * 20 * (1 + len(Fork))
    for one in drawn:
        for other in drawn:
            if one is not other:
                assert abs(np.corrcoef(one.ravel().astype(float), other.ravel().astype(float))[0, 1]) < 0.04


def test_forks_are_the_same_next_year():
    assert [int(fork(key(7, Stream.MASK, np.array([3])), use)[0]) for use in Fork] == [
        4568419808826967529,
        14296438251776937117,
    ]
