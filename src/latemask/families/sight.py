"""What attention may see, in one place: a function of original positions, never of where a token stands in the stream.

Leaving hidden tokens out makes a stream shorter than its row, so a window of 64 positions is not a window of 64 slots.
Families and joins ask here; nobody builds a mask of their own. Where nothing is hidden there is no mask at all.

B batch, S slots of a stream, Q queries, K keys, H heads, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from latemask.families.facts import block_of

if TYPE_CHECKING:
    from torch import Tensor

Rotation = tuple["Tensor", "Tensor"]
_NOWHERE = -(2**30)


@dataclass(frozen=True)
class Places:
    """Where the slots of a stream stand in their rows, and what the layers of a family make of that."""

    positions: Tensor
    """[B, S]"""
    rotations: Mapping[str, Rotation] = field(default_factory=dict)
    """Cosines and sines [B, S, D/H], by the kind of layer that turns queries and keys with them."""
    shared: Any = None
    """What a family's layers share whatever the slots, such as a table of distances."""
    ordered: bool = True
    """Whether positions rise along the stream."""
    distinct: bool = True
    """Whether no two slots stand at one position."""

    def at(self, slots: Tensor | slice) -> Places:
        """Return the places of some slots: the same for every row, or [B, n]."""
        turned = {kind: (_take(cos, slots), _take(sin, slots)) for kind, (cos, sin) in self.rotations.items()}
        ordered = self.ordered and isinstance(slots, slice)
        return replace(self, positions=_take(self.positions, slots), rotations=turned, ordered=ordered)


def _take(of: Tensor, slots: Tensor | slice) -> Tensor:
    if isinstance(slots, slice):
        return of[:, slots]
    return of.gather(1, slots if of.ndim == 2 else slots[..., None].expand(-1, -1, of.shape[-1]))


def split_heads(states: Tensor, head_width: int) -> Tensor:
    """[B, S, D] → [B, H, S, D/H]."""
    return states.unflatten(-1, (-1, head_width)).transpose(1, 2)


def merge_heads(states: Tensor) -> Tensor:
    """[B, H, S, D/H] → [B, S, D]."""
    return states.transpose(1, 2).flatten(2)


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Places,
    to: Places,
    *,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from queries [B, H, Q, D/H] at some places to keys and values [B, H, K, D/H] at others: [B, Q, D].

    With a window, only to what is at most so many positions away; the queries' own places must be among the keys'.
    Blocks rely on positions that differ: where some stand at one position, a mask over all pairs does it.
    `bias` [B, H, Q, K] is added to the scores.
    """
    from torch.nn import functional as F

    if window is not None and bias is None and to.distinct and (block := block_of(keys.shape[2], window)):
        return _in_blocks(queries, keys, values, at, to, window, block, scale, dropout)
    if window is not None:
        seen = _within(at.positions, to.positions, window)[:, None]
        bias = seen if bias is None else bias.masked_fill(~seen, float("-inf"))
    return merge_heads(
        F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=dropout, scale=scale)
    )


def distances(at: Places, to: Places) -> Tensor:
    """Return how far behind each query each key stands [B, Q, K]."""
    return to.positions[:, None, :] - at.positions[:, :, None]


def _within(positions: Tensor, others: Tensor, window: int) -> Tensor:
    return (positions[..., :, None] - others[..., None, :]).abs() <= window


def _in_blocks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Places,
    to: Places,
    window: int,
    block: int,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attend within a window at a cost and memory that grow with K alone.

    Among slots in the order of their positions what is within a window of positions is within a window of slots, so a
    block of queries needs its own keys and those of the two blocks beside it.
    """
    import torch
    from torch.nn import functional as F

    positions = to.positions
    if not to.ordered:
        order = positions.argsort(1)
        positions = positions.gather(1, order)
        keys, values = (states.gather(2, _alike(order, states)) for states in (keys, values))
    slots = None
    if at.positions is not to.positions or not to.ordered:  # every query to where its position stands among the keys
        slots = torch.searchsorted(positions, at.positions.contiguous())
        queries = torch.zeros_like(keys).scatter(2, _alike(slots, keys), queries)

    blocks = -(-keys.shape[2] // block)
    beyond = blocks * block - keys.shape[2]
    if beyond:  # padding by nothing would copy
        queries, keys, values = (F.pad(states, (0, 0, 0, beyond)) for states in (queries, keys, values))
    own, *near = (states.unflatten(2, (blocks, block)) for states in (queries, keys, values))
    places = F.pad(positions, (0, beyond), value=_NOWHERE).unflatten(1, (blocks, block))[:, None]
    seen = _within(places, _with_neighbours(places, _NOWHERE), window)
    attend = _by_products if keys.dtype == torch.bfloat16 and keys.device.type == "cpu" else _by_kernel
    attended = attend(own, _with_neighbours(near[0]), _with_neighbours(near[1]), seen, scale, dropout)
    merged = merge_heads(attended.flatten(2, 3))[:, : positions.shape[1]]
    return merged if slots is None else _take(merged, slots)


def _alike(slots: Tensor, states: Tensor) -> Tensor:
    """Spread slots [B, n] over the heads and the width of states [B, H, S, D/H]."""
    return slots[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])


def _by_products(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float | None, dropout: float
) -> Tensor:
    """Attend block by block, all [B, H, blocks, …, D/H]: in bf16 twice as fast as torch's kernel for CPUs."""
    import torch
    from torch.nn import functional as F

    scores = torch.matmul(queries * (scale or queries.shape[-1] ** -0.5), keys.transpose(-1, -2))
    weights = scores.masked_fill_(~seen, float("-inf")).softmax(-1).to(values.dtype)
    return torch.matmul(F.dropout(weights, dropout), values)


def _by_kernel(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float | None, dropout: float
) -> Tensor:
    """The same by torch's kernel, which keeps no weights; it wants four dimensions."""
    from torch.nn import functional as F

    given = [states.transpose(1, 2).flatten(0, 1) for states in (queries, keys, values)]
    mask = seen.transpose(1, 2).flatten(0, 1)
    attended = F.scaled_dot_product_attention(
        given[0], given[1], given[2], attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return attended.unflatten(0, (len(seen), -1)).transpose(1, 2)


def _with_neighbours(blocks: Tensor, beyond: float = 0) -> Tensor:
    """[B, H, blocks, block, …] → [B, H, blocks, 3 × block, …]: each with the block before and the one behind."""
    import torch

    outside = torch.full_like(blocks[:, :, :1], beyond)
    before = torch.cat((outside, blocks[:, :, :-1]), dim=2)
    behind = torch.cat((blocks[:, :, 1:], outside), dim=2)
    return torch.cat((before, blocks, behind), dim=3)
