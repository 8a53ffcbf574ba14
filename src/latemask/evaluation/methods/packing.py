"""Whole numbers of 2, 3 or 4 bits, in words of 32: a row's numbers one after another, the lowest bits first.

So a word holds 16 numbers of 2 bits or 8 of 4. Of 3 bits, 32 numbers share 3 words, and two of them straddle. It is the
order of GPTQ's format along `in`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_WORD = 32  # bits; and so many numbers fill `bits` words without a rest


def words_for(columns: int, bits: int) -> int:
    """Return how many words a row takes."""
    return -(-columns * bits // _WORD)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Return codes [rows, columns] as int32 words [rows, words]; what the last word has left is zero."""
    rows, columns = codes.shape
    blocks = pad(codes.long(), (0, -columns % _WORD)).view(rows, -1, _WORD)
    words = blocks.new_zeros(rows, blocks.shape[1], bits + 1)  # one more, into which nothing ever straddles
    for place in range(_WORD):
        word, shift = divmod(place * bits, _WORD)
        moved = blocks[..., place] << shift
        words[..., word] |= moved & 0xFFFFFFFF
        words[..., word + 1] |= moved >> _WORD
    signed = (words[..., :bits] ^ 0x80000000) - 0x80000000  # the same 32 bits, read as a signed number
    return signed.flatten(1)[:, : words_for(columns, bits)].int()


def unpacked(words: Tensor, bits: int, columns: int) -> Tensor:
    """Return the codes [rows, columns] of int32 words [rows, words]."""
    most = 2**bits - 1
    if _WORD % bits == 0:
        shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=words.device)
        return ((words[..., None] >> shifts) & most).flatten(1)[:, :columns]
    starts = torch.arange(0, _WORD * bits, bits, dtype=torch.int32, device=words.device)
    word, shift = starts // _WORD, starts % _WORD
    blocks = pad(words, (0, -words.shape[1] % bits)).view(len(words), -1, bits)
    found = blocks[..., word] >> shift  # a negative word is filled up with ones from above
    room = (_WORD - shift).clamp(max=_WORD - 1)  # all 32 only where nothing straddles
    above = blocks[..., (word + 1).clamp(max=bits - 1)] << room
    found = torch.where(room < bits, (found & ((1 << room) - 1)) | above, found)
    return (found & most).flatten(1)[:, :columns]
