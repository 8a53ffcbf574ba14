"""Texts → tokens: too long is cut and counted; a word's tag stands on its first piece."""

import copy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import Sequence

from latemask.evaluation.features import (
    IGNORED,
    UNSEEN,
    Features,
    Fit,
    at_words,
    featurize,
    make_collator,
    word_windows,
)
from latemask.evaluation.tasks import Examples


def test_what_is_too_long_is_cut_and_counted(encoder):
    examples = Examples("x", ["word " * 100, "short", "word " * 40], None, [0, 1, 0])
    features = featurize(examples, "classification", encoder.tokenizer, 16)
    lengths = [len(row["input_ids"]) for row in features.rows]
    assert (features.cut, lengths[0], lengths[2]) == (2, 16, 16)
    assert features.fit.longest > 100
    assert [row["labels"] for row in features.rows] == [0, 1, 0]
    whole = encoder.tokenizer("short").input_ids
    assert features.rows[1]["input_ids"] == whole


def test_the_limit_is_exact(encoder):
    ids = encoder.tokenizer("some words of a text").input_ids
    examples = Examples("x", ["some words of a text"], None, [0])
    for limit, cut in ((len(ids), 0), (len(ids) - 1, 1)):
        features = featurize(examples, "classification", encoder.tokenizer, limit)
        assert (features.cut, len(features.rows[0]["input_ids"])) == (cut, limit)


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


def test_words_that_the_encoder_does_not_see_are_outside_or_wrong():
    """One has no piece: the others keep their tags, also from several windows."""
    features, wanted = Features([{}] * 3, [0, 0, 1], [[1], [2], [0]], Fit()), [[0, 0, 0], [0]]
    assert at_words([[1], [2], [1]], features, wanted, ("O", "B-A", "I-A")) == [[0, 1, 2], [1]]
    assert at_words([[1], [2], [1]], features, wanted, ("NOUN", "VERB", "ADJ")) == [[UNSEEN, 1, 2], [1]]


def test_a_word_without_a_piece_moves_no_tag(encoder):
    """BERT's tokenizers drop some characters altogether; here one that drops them."""
    from tokenizers import normalizers

    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
    examples = Examples("x", [["\u200b", "a", "b"]], None, [[1, 2, 3]])
    features = featurize(examples, "tagging", tokenizer, 32)
    assert features.words == [[1, 2]]
    assert list(features.fit.lines("x", 32)) == [
        "x: the tokenizer has no piece for 1 words, and the model gives them no tag"
    ]
    assert [label for label in features.rows[0]["labels"] if label != IGNORED] == [2, 3]


def test_an_empty_text_is_a_row_whatever_the_tokenizer_adds(encoder):
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.backend_tokenizer.post_processor = Sequence([])
    (row,) = featurize(Examples("x", [""], None, [1]), "classification", tokenizer, 32).rows
    assert row == {"input_ids": [tokenizer.pad_token_id], "labels": 1}


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(4, 20))
def test_windows_hold_every_word_overlap_and_fit(pieces, room):
    windows = word_windows(pieces, room)
    assert {word for window in windows for word in window} == set(range(len(pieces)))
    assert all(len(window) == 1 or sum(pieces[word] for word in window) <= room for window in windows)
    for one, other in pairwise(windows):
        assert one.start < other.start <= one.stop < other.stop
        room_for_one_more = sum(pieces[other.start - 1 : one.stop]) <= room // 2
        fits = sum(pieces[other.start - 1 : one.stop + 1]) <= room
        assert not (room_for_one_more and fits and other.start - 1 > one.start)  # as much is shared as can be


def test_a_long_sentence_is_read_in_windows_and_every_word_asked_once_where_it_has_most_context(encoder):
    words = ["documentation", "of", "Xylophonzq", "and", "a", "film"] * 12
    tags = list(range(len(words)))
    examples = Examples("x", [["short"], words], None, [[5], tags])
    features = featurize(examples, "tagging", encoder.tokenizer, 32)
    assert features.examples == [0] + [1] * (len(features) - 1)
    assert (features.fit.windowed, features.cut, features.fit.unseen) == (1, 0, 0)
    assert sorted(word for asked in features.words[1:] for word in asked) == tags
    pieces = [
        len(encoder.tokenizer([word], is_split_into_words=True, add_special_tokens=False).input_ids) for word in words
    ]
    around = len(encoder.tokenizer("").input_ids)
    windows = word_windows(pieces, 32 - around)
    end = len(words)
    for window, row, asked in zip(windows, features.rows[1:], features.words[1:], strict=True):
        inside = words[window.start : window.stop]
        assert row["input_ids"] == encoder.tokenizer(inside, is_split_into_words=True).input_ids
        assert len(row["input_ids"]) <= 32
        assert [label for label in row["labels"] if label != IGNORED] == asked
        for word in asked:
            contexts = [
                min(word - w.start if w.start else end, w.stop - 1 - word if w.stop < end else end)
                for w in windows if word in w
            ]  # fmt: skip
            here = min(
                word - window.start if window.start else end, window.stop - 1 - word if window.stop < end else end
            )
            assert here == max(contexts)


def test_a_word_longer_than_the_encoder_is_asked_all_the_same(encoder):
    features = featurize(Examples("x", [["a", "xyzq" * 40, "b"]], None, [[0, 1, 2]]), "tagging", encoder.tokenizer, 16)
    assert sorted(word for asked in features.words for word in asked) == [0, 1, 2]
    assert max(len(row["input_ids"]) for row in features.rows) <= 16


def test_long_texts_are_read_to_the_end_if_asked_to(encoder):
    texts, pairs = ["a b c d e f g h " * 9, "short"], ["one two", "two " * 60]
    features = featurize(Examples("x", texts, pairs, [0, 1]), "classification", encoder.tokenizer, 24, to_the_end=True)
    assert features.fit.windowed == 2
    assert {0, 1} == set(features.examples)
    for example, row in zip(features.examples, features.rows, strict=True):
        assert row["labels"] == example
        assert len(row["input_ids"]) <= 24
        whole = encoder.tokenizer((texts, pairs)[1 - example][example]).input_ids[1:-1]
        assert str(whole)[1:-1] in str(row["input_ids"])  # the short side stands in every window
    both = Examples("x", ["one " * 40], ["two " * 40], [0])
    features = featurize(both, "classification", encoder.tokenizer, 24, to_the_end=True)
    assert (len(features), features.cut, features.fit.windowed) == (1, 1, 0)
    assert "1 of 1 texts are longer than 24 tokens and were cut" in next(features.fit.lines("x", 24))
