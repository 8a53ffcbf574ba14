"""Counts of neighbours → a vector for every word: words that stand near the same words get vectors that are alike.

Positive pointwise mutual information and a truncated singular value decomposition (Levy, Goldberg, Dagan 2015).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from latemask.text.neighbours import Neighbours

FEWEST = 10
"""Occurrences below which a token's neighbours say nothing of it."""
_SMOOTHING = 0.75  # of the contexts' frequencies: rare ones would look too telling
_OVERSAMPLING = 16
_ITERATIONS = 4


def word_vectors(counted: Neighbours, width: int, special: tuple[int, ...] = ()) -> np.ndarray:
    """Return vectors of length one [W, width], zero for tokens that are special or too rare.

    A pure function of its arguments. Where the counts have a lower rank than `width`, the last numbers of every vector
    are zero.
    """
    known = known_tokens(counted, special)
    found: np.ndarray = np.zeros((len(counted.frequencies), width), np.float32)
    found[known] = factorised(positive_information(counted.pairs[known][:, known]), width)
    return found


def known_tokens(counted: Neighbours, special: tuple[int, ...] = ()) -> np.ndarray:
    """Return the ids of tokens whose neighbours say something of them."""
    is_known = counted.frequencies >= FEWEST
    is_known[list(special)] = False
    return np.flatnonzero(is_known)


def positive_information(pairs: sparse.csr_array) -> sparse.csr_array:
    """Return how much more often than by chance a token (row) stands near another (column), where it is more: in nats.

    Nothing is stored where it is not, so most of the table is empty.
    """
    tokens, contexts = (np.asarray(pairs.sum(axis)).ravel().astype(np.float64) for axis in (1, 0))
    contexts **= _SMOOTHING
    with np.errstate(divide="ignore"):  # of tokens that have no neighbours, and no pairs
        by_row, by_column = np.log(tokens), np.log(contexts / max(contexts.sum(), 1))
    rows: np.ndarray = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    values = np.log(pairs.data) - by_row[rows] - by_column[pairs.indices]
    parts = (values.clip(0).astype(np.float32), pairs.indices, pairs.indptr)
    found = sparse.csr_array(parts, shape=pairs.shape, copy=True)  # or the next line would change `pairs`, too
    found.eliminate_zeros()
    return found


def factorised(information: sparse.csr_array, width: int, power: float = 0.5) -> np.ndarray:
    """Return a vector of length one for every row [rows, width]: its singular vectors, times their values to a power.

    The products use one thread, whatever the machine has: more could change the last bits.
    """
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    found: np.ndarray = np.zeros((information.shape[0], width), np.float32)
    rank = min(width, information.shape[0] - 1)
    if rank < 1 or not information.nnz:
        return found
    with threadpool_limits(1):
        left, values, _ = randomized_svd(
            information, rank, n_oversamples=_OVERSAMPLING, n_iter=_ITERATIONS, random_state=0
        )
    vectors = left * values**power
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found[:, :rank] = np.divide(vectors, lengths, where=lengths > 0, out=np.zeros_like(vectors))
    return found
