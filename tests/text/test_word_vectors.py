"""Word vectors: a factorisation that a dense one confirms, the same bits on any number of cores."""

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from latemask.text.neighbours import Neighbours
from latemask.text.word_vectors import FEWEST, positive_information, word_vectors

SIZE = 60


@pytest.fixture(scope="module")
def counted() -> Neighbours:
    """Words of one half stand near words of the same half."""
    random = np.random.default_rng(0)
    table = random.poisson(0.5, (SIZE, SIZE))
    half = SIZE // 2
    table[:half, :half] += random.poisson(4, (half, half))
    table[half:, half:] += random.poisson(4, (half, half))
    table *= 60
    frequencies = np.full(SIZE, 1000)
    frequencies[3] = FEWEST - 1
    return Neighbours(60_000, frequencies, sparse.csr_array(table))


def slow_information(pairs: np.ndarray) -> np.ndarray:
    """The oracle: log p(i, j) / p(i) p(j), with the contexts' frequencies to the power 0.75."""
    joint = pairs / pairs.sum()
    context = pairs.sum(0) ** 0.75
    found = np.zeros_like(joint)
    for i, j in zip(*pairs.nonzero(), strict=True):
        found[i, j] = max(0, np.log(joint[i, j] / (joint[i].sum() * context[j] / context.sum())))
    return found


def test_information_is_that_of_a_slow_loop(counted):
    pairs = counted.pairs
    np.testing.assert_allclose(
        positive_information(pairs).toarray(), slow_information(pairs.toarray().astype(float)), atol=1e-5
    )


def test_vectors_are_those_of_a_dense_factorisation(counted):
    known = [word for word in range(SIZE) if word not in (0, 3)]
    left, values, _ = np.linalg.svd(slow_information(counted.pairs.toarray()[np.ix_(known, known)].astype(float)))
    expected = left[:, :2] * np.sqrt(values[:2])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = word_vectors(counted, 2, special=(0,))  # two halves: the others are noise, close to one another
    np.testing.assert_allclose(found[known] @ found[known].T, expected @ expected.T, atol=1e-3)


def test_special_and_rare_tokens_have_none(counted):
    found = word_vectors(counted, 8, special=(0,))
    assert [word for word in range(SIZE) if not found[word].any()] == [0, 3]


def test_words_with_the_same_neighbours_are_alike(counted):
    found = word_vectors(counted, 8)
    alike = found @ found.T
    assert alike[4:30, 4:30].mean() > alike[4:30, 30:].mean() + 0.3


def test_the_bits_do_not_depend_on_the_number_of_threads(counted):
    with threadpool_limits(2):
        several = word_vectors(counted, 8)
    with threadpool_limits(1):
        assert (word_vectors(counted, 8) == several).all()


def test_a_width_above_the_rank_leaves_numbers_at_zero(counted):
    found = word_vectors(counted, 100)
    assert found.shape == (SIZE, 100)
    assert np.isfinite(found).all()
    assert not found[:, SIZE:].any()


@pytest.mark.parametrize("frequencies", [[0, 0, 0], [900, 0, 0], [0, 500, 500]])
def test_hardly_any_words_have_no_vectors_and_no_trouble(frequencies):
    nothing = Neighbours(900, np.array(frequencies), sparse.csr_array((3, 3), dtype=np.int64))
    assert not word_vectors(nothing, 4).any()
