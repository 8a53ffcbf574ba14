"""Whether an encoder that is there and the tokenizer of the data belong together."""

from __future__ import annotations

from typing import Any

from latemask.ground.errors import UserError
from latemask.model.stock import checkpoint_of, stock_config, tokenizer_of
from latemask.text.new_pieces import can_extend, old_parts
from latemask.text.tokenizer import load_tokenizer


def pieces_new_to(start: str, tokenizer: Any, data: str) -> tuple[tuple[int, ...], ...]:
    """Return what spelled the pieces that the data's tokenizer has and the encoder's has not.

    A checkpoint goes on only with the tokenizer it was trained with, or one that adds to it.
    """
    place = tokenizer_of(start)
    own: Any = load_tokenizer(place)
    rows = stock_config(checkpoint_of(start)).vocab_size
    if rows < len(own):
        raise UserError(
            f"the encoder at '{start}' has {rows:,} rows in its word table, and its tokenizer {len(own):,} pieces: "
            "they do not belong together; put the right tokenizer beside it"
        )
    if own.get_vocab() == tokenizer.get_vocab():
        return ()
    parts = old_parts(own, tokenizer)
    if parts is None:
        extending = f", or --extend {place} for new pieces" if can_extend(own) else ""
        raise UserError(
            f"{data} was prepared with another tokenizer than the encoder at '{start}'; "
            f"prepare the data with --tokenizer {place}{extending}"
        )
    return tuple(map(tuple, parts))
