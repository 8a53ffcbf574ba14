"""Texts → tokens: too long is cut and counted; a word's tag stands on its first piece."""

import pytest

from latemask.evaluation.features import IGNORED, featurize, make_collator
from latemask.evaluation.predictions import completed
from latemask.evaluation.tasks import Examples


def test_what_is_too_long_is_cut_and_counted(encoder):
    examples = Examples("x", ["word " * 100, "short", "word " * 40], None, [0, 1, 0])
    features = featurize(examples, "classification", encoder.tokenizer, 16)
    lengths = [len(row["input_ids"]) for row in features.rows]
    assert (features.cut, lengths[0], lengths[2]) == (2, 16, 16)
    assert features.longest > 100
    assert [row["labels"] for row in features.rows] == [0, 1, 0]
    whole = encoder.tokenizer("short").input_ids
    assert features.rows[1]["input_ids"] == whole


def test_a_cut_row_is_what_the_tokenizer_itself_cuts(encoder):
    examples = Examples("x", ["a b c d e f g h " * 5], ["one two three"], [0])
    (row,) = featurize(examples, "classification", encoder.tokenizer, 20).rows
    expected = encoder.tokenizer(examples.texts, examples.pairs, truncation=True, max_length=20)
    assert row["input_ids"] == expected.input_ids[0]


def test_a_tag_stands_on_the_first_piece_of_its_word(encoder):
    words = ["documentation", "of", "Xylophonzq"]
    (row,) = featurize(Examples("x", [words], None, [[1, 2, 3]]), "tagging", encoder.tokenizer, 32).rows
    places = encoder.tokenizer(words, is_split_into_words=True).word_ids()
    assert len(places) > 6  # some word has several pieces
    for place, label in enumerate(row["labels"]):
        first = places[place] is not None and (place == 0 or places[place - 1] != places[place])
        assert label == (places[place] + 1 if first else IGNORED)


def test_words_beyond_the_limit_get_the_tag_that_says_nothing():
    assert completed([[1, 2], [1]], [[0, 0, 0], [0]], 7) == [[1, 2, 7], [1]]


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_a_batch_is_padded_to_its_longest_row(encoder, kind):
    texts = ["one", "one two three four"]
    labels = [0, 1]
    if kind == "tagging":
        texts, labels = [text.split() for text in texts], [[1], [1, 1, 1, 1]]
    features = featurize(Examples("x", texts, None, labels), kind, encoder.tokenizer, 32)
    batch = make_collator(kind, encoder.tokenizer)(features.rows)
    longest = max(len(row["input_ids"]) for row in features.rows)
    assert batch["input_ids"].shape == (2, longest)
    assert batch["attention_mask"].sum(1).tolist() == [len(row["input_ids"]) for row in features.rows]
