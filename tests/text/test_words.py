"""Words: where they begin, for every kind of tokenizer, and by what its own parts say."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from latemask.text import prepare
from latemask.text.tokenizer import words_in
from latemask.text.words import all_words, has_letters, word_starts, words_of
from tests.text.kinds_of_tokenizers import KINDS, OF_WORDS, make, save

TEXT = "the quick (brown) fox, isn't 1234 there\n\nnaïve mountains?"
SIGNS_APART = "the| quick| (|brown|)| fox|,| isn|'|t| 1234| there|\n|\n|naïve| mountains|?"


def starts_in(tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    row = np.array([[tokenizer.cls_token_id or tokenizer.bos_token_id or 0, *ids]])
    return ids, word_starts(row, words_in(tokenizer))[0, 1:]


def plain(text: str) -> str:
    return "".join(text.lower().replace("ï", "i").split())


@pytest.mark.parametrize("kind", OF_WORDS)
def test_words_of_every_kind(kind):
    """They begin where words of the text do, whatever the tokenizer leaves of white space and accents."""
    tokenizer = make(kind)
    ids, starts = starts_in(tokenizer, TEXT)
    firsts = np.flatnonzero(starts)
    words = [plain(tokenizer.decode(part)) for part in np.split(np.array(ids), firsts[1:])]
    assert [word for word in words if word] == [word for word in map(plain, SIGNS_APART.split("|")) if word]


def test_letters_of_proteins_are_no_words():
    assert words_in(make("esm")) is None


@pytest.mark.parametrize("kind", KINDS)
def test_data_know_what_their_tokenizer_knows(kind, tmp_path):
    """From the file beside the shards: data that were prepared before there were words say as much."""
    save(kind, tmp_path / "tokenizer")
    (tmp_path / "in.txt").write_text("\n\n".join(f"THE OLD RIVER {n}" for n in range(5)))
    data = prepare(tmp_path / "in.txt", out=tmp_path / "data", tokenizer=str(tmp_path / "tokenizer"), validation=0)
    assert "words" not in json.loads((tmp_path / "data" / "manifest.json").read_text())["tokenizer"]
    assert data.words == words_in(make(kind))


def content_of(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str())


def test_an_end_of_word_says_where_the_next_one_begins():
    vocab = {"lo": 0, "w</w>": 1, "high</w>": 2, "[E]": 3}
    content = content_of(Tokenizer(models.BPE(vocab, [], end_of_word_suffix="</w>")))
    words = words_of(content, 4, (3,))
    ids = np.array([[3, 0, 1, 2, 0, 0, 3, 0]])
    assert word_starts(ids, words)[0].astype(int).tolist() == [1, 1, 0, 1, 1, 0, 1, 1]


def test_pieces_of_a_whole_word_each():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert word_starts(np.array([[0, 1, 1]]), words_of(content_of(tokenizer), 2, ())).all()


def test_pieces_without_marks_tell_nothing():
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert words_of(content_of(tokenizer), 2, ()) is None


def byte_words(*pieces: bytes) -> bytes:
    """What byte-level pieces say, given by their bytes."""
    from latemask.text.words import _BYTES

    characters = {byte: character for character, byte in _BYTES.items()}
    vocab = {"".join(characters[byte] for byte in piece): number for number, piece in enumerate(pieces)}
    content = {"model": {"type": "BPE", "vocab": vocab}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    found = words_of(content, len(vocab), ())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ([" new", "er", ","], "101"),
        (["don", "'", "t"], "111"),
        ([" ", "word"], "10"),  # a lone space goes with what follows
        (["\n", "word"], "11"),
        (["\t\t", "x", "\n", "\n"], "1111"),
        ([" mp", "3", "-", "player"], "1011"),
        (["naï", "ve"], "10"),
        (["我", "们", "喜欢", "x"], "1111"),  # scripts without spaces
        (["ก", "ั", "น"], "101"),  # but their marks go with the letter
        (["…", "!", "?"], "100"),
        ([b"\xc3", b"\xaf", "ve"], "100"),  # a letter in two pieces
        (["na", b"\xc3", b"\xaf"], "100"),
        ([b"\xe6\x88", b"\x91", "b"], "100"),
        (["x", b"\xe6", b"\x88\x91"], "110"),
    ],
)
def test_pieces_of_bytes(text, starts):
    pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in text]
    distinct = list(dict.fromkeys(pieces))
    ids = np.array([[distinct.index(piece) for piece in pieces]])
    assert word_starts(ids, byte_words(*distinct))[0].astype(int).tolist() == [int(c) for c in starts]


def test_letters_and_digits_are_told_from_signs():
    words = byte_words(b" a", b"7", b",", b" (", b"\n", "ß".encode(), "我".encode(), b"n't")
    assert has_letters(np.arange(8), words).tolist() == [True, True, False, False, False, True, True, True]


def test_made_up_words():
    assert word_starts(np.array([[3, 1, 1, 2]]), all_words(4)).all()
