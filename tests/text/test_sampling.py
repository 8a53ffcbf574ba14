"""The tokenizer's sample: bounded, evenly spread, the same whatever the order."""

import random

from latemask.text.reading import content_hash
from latemask.text.sampling import evenly_spread, sample

TEXTS = [f"document {n} " * (1 + n % 30) for n in range(2000)]


def test_a_small_corpus_is_taken_whole():
    assert sorted(sample(TEXTS, 10**9)) == sorted(TEXTS)


def test_the_sample_is_bounded_and_uses_what_it_may():
    size = sum(map(len, sample(TEXTS, 50_000)))
    assert 50_000 - 500 < size <= 50_000


def test_it_does_not_depend_on_the_order():
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert sample(shuffled, 50_000) == sample(TEXTS, 50_000)


def test_it_is_spread_over_the_whole_corpus():
    numbers = sorted(int(text.split()[1]) for text in sample(TEXTS, 50_000))
    for quarter in range(4):
        found = sum(500 * quarter <= number < 500 * (quarter + 1) for number in numbers)
        assert 0.15 < found / len(numbers) < 0.35


def test_it_does_not_favour_validation_documents():
    chosen = [content_hash(text.encode()) < 2**62 for text in sample(TEXTS, 100_000)]
    assert 0.15 < sum(chosen) / len(chosen) < 0.35


def test_one_document_larger_than_the_sample_is_still_a_sample():
    assert sample(["x" * 1000], 10) == ["x" * 1000]


def test_tasks_of_a_large_corpus_are_sampled_at_even_distances():
    assert evenly_spread([10] * 100, 1000) == list(range(100))
    assert evenly_spread([10] * 100, 100) == list(range(0, 100, 10))
    assert evenly_spread([10**6], 10) == [0]
