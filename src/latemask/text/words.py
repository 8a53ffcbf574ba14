"""Where words begin in a row of pieces, by the marks that the tokenizer itself puts on them.

What a piece says of its words is a byte: how it begins (bits 0, 1), how it ends (2 to 4), and whether a letter or digit
is in it (5). A word begins at a piece that says so (white space, a ▁, no ##), behind one that ends its word, and where
letters meet signs: `word,` is two words, as BERT's are, although the comma of a byte-level piece bears no mark. Scripts
without spaces have no marks either: there every piece is a word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

WITHOUT_SPACES = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF))
"""Thai and Lao, Burmese, Khmer, kana, Han."""

_GOES_ON, _LETTERS, _SIGNS, _BEGINS = range(4)  # how a piece begins
_CLOSED, _OPEN, _COMPLETE = 0, 3, 4  # how it ends: or in letters or signs
_END_BITS, _HAS_LETTERS = 0b11100, 32
_ALONE = _BEGINS | _CLOSED << 2
_WHITE, _MARK, _LONE = 5, 6, 7  # further kinds of characters


def words_of(content: dict[str, Any], size: int, special: tuple[int, ...]) -> bytes | None:
    """Return the byte of every piece, from a tokenizer's JSON; None where its pieces do not tell words apart."""
    read = _reader(content)
    if read is None:
        return None
    model, vocab = content["model"], content["model"]["vocab"]
    pieces = (
        enumerate(piece for piece, _ in vocab) if model["type"] == "Unigram" else ((n, p) for p, n in vocab.items())
    )
    codes = bytearray([_ALONE]) * size
    for number, piece in pieces:
        if number < size:
            codes[number] = read(piece)
    for token in content["added_tokens"]:  # of plain characters, whatever the pieces are made of
        codes[token["id"]] = _code(token["content"])
    for number in special:
        codes[number] = _ALONE
    return bytes(codes)


def all_words(size: int) -> bytes:
    """Return the bytes of as many pieces that are a word each."""
    return bytes([_ALONE | _HAS_LETTERS]) * size


def word_starts(ids: np.ndarray, words: bytes) -> np.ndarray:
    """Tell for each position of rows [B, L] whether a word begins there; the first one always does."""
    codes = _table(words)[ids]
    starts: np.ndarray = np.ones(ids.shape, bool)
    starts[:, 1:] = _MEETINGS[(codes[:, :-1] & _END_BITS) | (codes[:, 1:] & 3)]
    return starts


def has_letters(ids: np.ndarray, words: bytes) -> np.ndarray:
    """Tell for each position whether a letter or a digit is in its piece."""
    return (_table(words)[ids] & _HAS_LETTERS) > 0


def _begins(end: int, begin: int) -> bool:
    """Whether a word begins where a piece that ends so is followed by one that begins so."""
    if begin == _BEGINS or end == _CLOSED:
        return True
    return begin not in (_GOES_ON, end) and end != _OPEN


_MEETINGS = np.array([_begins(end, begin) for end in range(8) for begin in range(4)])


@lru_cache(maxsize=4)
def _table(words: bytes) -> np.ndarray:
    return np.frombuffer(words, np.uint8)


# Reading pieces


def _reader(content: dict[str, Any]) -> Any:
    """Return what makes the byte of a piece, by what the tokenizer says of its pieces; None where that is nothing."""
    model = content["model"]
    parts = [part for name in ("normalizer", "pre_tokenizer", "decoder") for part in _parts(content.get(name))]
    kinds = {part["type"] for part in parts}
    if model["type"] == "WordLevel":  # pieces are what the pre-tokenizer cuts: words, or as in proteins letters
        return None if "Split" in kinds else _whole_word
    if prefix := model.get("continuing_subword_prefix"):
        return lambda piece: _marked(piece.removeprefix(prefix), not piece.startswith(prefix))
    if suffix := model.get("end_of_word_suffix"):
        return lambda piece: _ended(piece.removesuffix(suffix), piece.endswith(suffix))
    if "ByteLevel" in kinds:
        return _of_bytes
    if (mark := next(filter(None, map(_mark, parts)), None)) is not None:
        return lambda piece: _code(_text(_byte(piece)) if _is_byte(piece) else piece.replace(mark, " "))
    return None


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a part of the tokenizer, itself included."""
    if isinstance(part, dict):
        yield part
        for key in ("normalizers", "pretokenizers", "decoders"):
            for inner in part.get(key, ()):
                yield from _parts(inner)


def _mark(part: dict[str, Any]) -> str | None:
    """Return what a part writes for a space."""
    if part["type"] == "Metaspace":
        return str(part["replacement"])
    if part["type"] == "Replace" and part["pattern"].get("String") == " ":
        return str(part["content"]) or None
    return None


def _whole_word(piece: str) -> int:
    return _ALONE | _letters_in(piece)


def _marked(piece: str, begins: bool) -> int:
    return (_BEGINS if begins else _GOES_ON) | _OPEN << 2 | _letters_in(piece)


def _ended(piece: str, ends: bool) -> int:
    return _GOES_ON | (_CLOSED if ends else _OPEN) << 2 | _letters_in(piece)


def _of_bytes(piece: str) -> int:
    try:
        return _code(_text(bytes(map(_BYTES.__getitem__, piece))))
    except KeyError:  # a piece of plain characters among those of bytes
        return _code(piece)


def _is_byte(piece: str) -> bool:
    """Whether a piece stands for one byte: <0xE4>."""
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _byte(piece: str) -> bytes:
    return bytes([int(piece[3:5], 16)])


def _bytes_by_character() -> dict[str, int]:
    """GPT-2's alphabet: every byte as a character that can be seen."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + n): byte for n, byte in enumerate(hidden)}}


_BYTES = _bytes_by_character()
_INSIDE = "\u0301"  # a character that no word begins with


def _text(content: bytes) -> str:
    """Decode bytes that may begin and end inside of a character."""
    whole = content.lstrip(bytes(range(0x80, 0xC0)))
    first = _INSIDE if len(whole) < len(content) else ""
    for missing in range(4):  # of a character that is cut: the last one that begins so
        try:
            return first + (whole + b"\xbf" * missing).decode("utf-8") + (_INSIDE if missing else "")
        except UnicodeDecodeError:
            continue
    return first + "a"


def _code(text: str) -> int:
    """Return the byte of a piece that stands for a text."""
    if not text:
        return _ALONE
    first, last = _kind(text[0]), _kind(text[-1])
    begin = {_WHITE: _BEGINS, _MARK: _GOES_ON, _LONE: _BEGINS}.get(first, first)
    end = {_WHITE: _OPEN if text[-1] == " " else _CLOSED, _MARK: _LETTERS, _LONE: _COMPLETE}.get(last, last)
    return begin | end << 2 | _letters_in(text)


def _letters_in(text: str) -> int:
    return _HAS_LETTERS if any(_kind(character) in (_LETTERS, _LONE) for character in text) else 0


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> int:
    code, category = ord(character), unicodedata.category(character)
    if character.isspace():
        return _WHITE
    if category[0] == "M":
        return _MARK
    if category[0] in "LN" or category == "Cn":
        return _LONE if any(first <= code <= last for first, last in WITHOUT_SPACES) else _LETTERS
    return _SIGNS
