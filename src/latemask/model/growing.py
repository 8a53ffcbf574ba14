"""A word table for more words than an encoder was trained with: new pieces begin as what they were spelled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from latemask.model.stock import StockModel

if TYPE_CHECKING:
    from torch import Tensor


def grown(stock: StockModel, rows: int, parts: Sequence[Sequence[int]], pieces: int) -> StockModel:
    """Return the encoder and its head with tables of `rows`, of which the first `pieces` are a tokenizer's.

    The last `len(parts)` pieces are new, and each of their rows is the mean of those of its old `parts`. Rows that no
    piece has, up to the multiple of 64, are the mean of all old ones, with the lowest old bias: ordinary numbers in
    whatever precision, which the first steps push down like any word that never occurs.
    """
    import torch

    words = stock.encoder.get_input_embeddings().weight
    if not parts and rows <= len(words):
        return stock
    with torch.no_grad():
        old = min(pieces - len(parts), len(words))
        table = _grown(words, rows, old, parts, words[:old].mean(0))
        if rows > len(words):
            stock.encoder.resize_token_embeddings(rows, mean_resizing=False)
        stock.encoder.get_input_embeddings().weight.copy_(table)
        head = dict(stock.head)
        if "bias" in head:
            head["bias"] = _grown(head["bias"], rows, old, parts, head["bias"][:old].min())
        if "words" in head:
            head["words"] = _grown(head["words"], rows, old, parts, head["words"][:old].mean(0))
    return replace(stock, head=head)


def _grown(table: Tensor, rows: int, old: int, parts: Sequence[Sequence[int]], unused: Tensor) -> Tensor:
    """Return a table of words: `old` rows as they are, a mean for each of `parts`, and `unused` for those beyond.

    Rows that were there already beyond all pieces stay.
    """
    found = unused.expand(max(rows, len(table)), *table.shape[1:]).clone()
    found[: len(table)] = table
    for number, ids in enumerate(parts, old):
        found[number] = table[list(ids)].mean(0)
    return found
