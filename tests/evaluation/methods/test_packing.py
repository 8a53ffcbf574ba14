"""Codes of 2, 3 and 4 bits come back from their words as they were, and the words are as few as they can be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask.evaluation.methods.packing import packed, unpacked, words_for


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3, 4]), st.integers(1, 5), st.integers(1, 131), st.integers(0, 2**32))
def test_what_is_packed_is_unpacked_for_every_size(bits, rows, columns, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns))
    words = packed(torch.from_numpy(codes), bits)
    assert words.dtype == torch.int32
    assert words.shape == (rows, words_for(columns, bits))
    assert np.array_equal(unpacked(words, bits, columns).numpy(), codes)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 3, 4]), st.integers(1, 100), st.integers(0, 2**32))
def test_a_row_is_one_stream_of_bits_the_lowest_first(bits, columns, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, columns)
    stream = sum(int(code) << (bits * place) for place, code in enumerate(codes))
    words = packed(torch.from_numpy(codes[None]), bits)[0].tolist()
    assert [word % 2**32 for word in words] == [(stream >> 32 * at) % 2**32 for at in range(len(words))]


@pytest.mark.parametrize(("bits", "columns", "words"), [(2, 16, 1), (2, 17, 2), (3, 32, 3), (3, 10, 1), (4, 8, 1)])
def test_no_word_is_wasted(bits, columns, words):
    assert words_for(columns, bits) == words
    most = torch.full((1, columns), 2**bits - 1)  # every bit is set, the sign's included
    assert torch.equal(unpacked(packed(most, bits), bits, columns).long(), most)
