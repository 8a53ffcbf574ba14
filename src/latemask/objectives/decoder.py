"""A separate small decoder, thrown away after pre-training: `self`, `cross` (the paper's) and `cross-only` (ours).

All are pre-norm and have no dropout. The stream is [visible ; [MASK]s]; `cross-only` keeps predicted positions alone.
Two more differ in what their layers read: the decoders of CrossMAE and of MAE-LM.
In the last layer of every kind queries and feed-forward are computed at predicted positions only, which is exact.

B batch, V visible, M masked, S = V + M, P predicted, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latemask.families import checkpointed, merge_heads, split_heads
from latemask.objectives.costs import DECODER_FFN_FACTOR
from latemask.objectives.inside import take_slots


class RelativeBias(nn.Module):
    """A learned bias for every head and signed distance, started as ALiBi's slopes: near positions first.

    Without the local start a decoder stays on the word-frequency plateau in a short run (docs/method.md).
    """

    def __init__(self, heads: int, length: int):
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(2 * length - 1, heads))

    def start(self) -> Tensor:
        """Return the ALiBi start: -slope x distance."""
        heads = self.weight.shape[1]
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        distance = torch.arange(-self.length + 1, self.length).abs()
        return -distance[:, None] * slopes

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B, H, Q, K] between positions [B, Q] and [B, K]."""
        distance = key_positions[:, None, :] - query_positions[:, :, None] + self.length - 1
        return F.embedding(distance, self.weight).permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Multi-head attention from queries to a context."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, queries: Tensor, context: Tensor, bias: Tensor | None) -> Tensor:
        """Return [B, Q, D] for queries [B, Q, D] over a context [B, K, D]."""
        keys, values = self.key_value(context).chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(
            split_heads(self.query(queries), self.head_width),
            split_heads(keys, self.head_width),
            split_heads(values, self.head_width),
            attn_mask=bias,
        )
        return self.output(merge_heads(attended))


class FeedForward(nn.Module):
    """Norm → wide → GELU → narrow."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, DECODER_FFN_FACTOR * width)
        self.narrow = nn.Linear(DECODER_FFN_FACTOR * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Return what is added to the states."""
        return self.narrow(F.gelu(self.wide(self.norm(states))))


class DecoderLayer(nn.Module):
    """What every layer has: a norm, an attention, a feed-forward."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)


class SelfLayer(DecoderLayer):
    """Self-attention over the stream, then feed-forward; `slots` keeps only those positions."""

    def forward(self, stream: Tensor, memory: Tensor, bias: Tensor | None, slots: Tensor | None = None) -> Tensor:
        stream, bias = self._attended(stream, bias, slots)
        return stream + self.feed_forward(stream)

    def _attended(self, stream: Tensor, bias: Tensor | None, slots: Tensor | None) -> tuple[Tensor, Tensor | None]:
        normed = queries = self.norm(stream)
        if slots is not None:
            stream, queries, bias = (
                take_slots(stream, slots),
                take_slots(normed, slots),
                _bias_at(bias, slots),
            )
        return stream + self.attention(queries, normed, bias), bias


class CrossLayer(SelfLayer):
    """Self-attention over the stream, cross-attention to the encoder's output, then feed-forward."""

    def __init__(self, width: int, heads: int):
        super().__init__(width, heads)
        self.cross_norm = nn.LayerNorm(width)
        self.cross_attention = Attention(width, heads)

    def forward(self, stream: Tensor, memory: Tensor, bias: Tensor | None, slots: Tensor | None = None) -> Tensor:
        stream, bias = self._attended(stream, bias, slots)
        visible_bias = None if bias is None else bias[..., : memory.shape[1]]  # the visible come first
        stream = stream + self.cross_attention(self.cross_norm(stream), memory, visible_bias)
        return stream + self.feed_forward(stream)


class CrossOnlyLayer(DecoderLayer):
    """Cross-attention from predicted positions to the encoder's output, then feed-forward."""

    def forward(self, stream: Tensor, memory: Tensor, bias: Tensor | None, slots: Tensor | None = None) -> Tensor:
        """Run the layer; the stream holds predicted positions only, so there is nothing to leave out."""
        stream = stream + self.attention(self.norm(stream), memory, bias)
        return stream + self.feed_forward(stream)


LAYERS: dict[str, type[DecoderLayer]] = {
    "self": SelfLayer,
    "cross": CrossLayer,
    "cross-only": CrossOnlyLayer,
}


class Decoder(nn.Module):
    """[MASK]s and the encoder's output → states at predicted positions."""

    def __init__(self, kind: str, layers: int, width: int, heads: int, length: int, positions: str):
        super().__init__()
        self.kind = kind
        self.saves_memory = False
        self.memory_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(LAYERS[kind](width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.relative_bias = RelativeBias(heads, length) if positions == "relative" else None
        self.position_embeddings = nn.Embedding(length, width) if positions == "absolute" else None

    def start(self) -> None:
        """A relative bias starts local."""
        if self.relative_bias is not None:
            self.relative_bias.weight.copy_(self.relative_bias.start())

    def forward(
        self,
        encoded: Tensor | Sequence[Tensor],
        mask_vector: Tensor,
        visible_positions: Tensor,
        masked_positions: Tensor,
        corrupted_slots: Tensor | None,
        prune: bool = True,
    ) -> Tensor:
        """Return [B, P, D], first the masked, then the corrupted; `prune=False` is the oracle of the tests."""
        memories = self.read(encoded, visible_positions)
        masks = self.join(mask_vector.expand(*masked_positions.shape, -1), masked_positions)
        parts = (memories[0], masks, visible_positions, masked_positions, corrupted_slots)
        if self.kind == "cross-only":
            stream, bias, slots = self._predicted_stream(*parts)
        else:
            stream, bias, slots = self._full_stream(*parts)
        *others, last = zip(self.layers, memories, strict=True)
        for layer, memory in others:
            stream = checkpointed(self.saves_memory, layer, stream, memory, bias)
        layer, memory = last
        if slots is None or prune:
            return self.norm(checkpointed(self.saves_memory, layer, stream, memory, bias, slots))
        return self.norm(take_slots(layer(stream, memory, bias), slots))

    def read(self, encoded: Any, positions: Tensor) -> Sequence[Tensor]:
        """Return what each layer reads of the encoder's output [B, V, D]: here all the same."""
        return [self._placed(self.memory_norm(encoded), positions)] * len(self.layers)

    def join(self, masks: Tensor, positions: Tensor) -> Tensor:
        """Return [MASK]s [B, M, D] as the layers take them."""
        return self._placed(masks, positions)

    def _placed(self, states: Tensor, positions: Tensor) -> Tensor:
        return states if self.position_embeddings is None else states + self.position_embeddings(positions)

    def _bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        return None if self.relative_bias is None else self.relative_bias(query_positions, key_positions)

    def _predicted_stream(
        self, memory: Tensor, masks: Tensor, visible: Tensor, masked: Tensor, corrupted_slots: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None]:
        stream, positions = masks, masked
        if corrupted_slots is not None:
            stream = torch.cat((masks, take_slots(memory, corrupted_slots)), dim=1)
            positions = torch.cat((masked, visible.gather(1, corrupted_slots)), dim=1)
        return stream, self._bias(positions, visible), None

    def _full_stream(
        self, memory: Tensor, masks: Tensor, visible: Tensor, masked: Tensor, corrupted_slots: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        stream = torch.cat((memory, masks), dim=1)
        positions = torch.cat((visible, masked), dim=1)
        slots = torch.arange(visible.shape[1], stream.shape[1], device=stream.device).expand(len(stream), -1)
        if corrupted_slots is not None:
            slots = torch.cat((slots, corrupted_slots), dim=1)
        return stream, self._bias(positions, positions), slots


class MixingDecoder(Decoder):
    """`cross-only` as in CrossMAE: each layer reads its own learned mix of what all layers of the encoder put out.

    At the start each reads the last output, as without a mix.
    """

    def __init__(self, encoder_layers: int, layers: int, width: int, heads: int, length: int, positions: str):
        super().__init__("cross-only", layers, width, heads, length, positions)
        del self.memory_norm  # each mix has a norm of its own
        self.memory_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mix = nn.Parameter(torch.empty(layers, encoder_layers + 1))

    def start(self) -> None:
        super().start()
        self.mix.zero_()[:, -1] = 1

    def read(self, encoded: Any, positions: Tensor) -> Sequence[Tensor]:
        """Mix the input of the encoder's first layer and the output of every layer, each [B, V, D]."""
        mixed = checkpointed(self.saves_memory, self._mixed, encoded).unbind()
        return [self._placed(norm(states), positions) for norm, states in zip(self.memory_norms, mixed, strict=True)]

    def _mixed(self, encoded: Sequence[Tensor]) -> Tensor:
        """Return a mix for each layer [layers, B, V, D], in one product: FLOPs count products."""
        return (self.mix @ torch.stack(list(encoded)).flatten(1)).unflatten(1, encoded[0].shape)


class WholeDecoder(Decoder):
    """`self` as in MAE-LM: positions are added to every slot, the encoder's and the [MASK]s', and then one norm."""

    def __init__(self, layers: int, width: int, heads: int, length: int):
        super().__init__("self", layers, width, heads, length, "absolute")

    def read(self, encoded: Any, positions: Tensor) -> Sequence[Tensor]:
        return [self.join(encoded, positions)] * len(self.layers)

    def join(self, masks: Tensor, positions: Tensor) -> Tensor:
        return self.memory_norm(self._placed(masks, positions))


def _bias_at(bias: Tensor | None, slots: Tensor) -> Tensor | None:
    """Take the query rows `slots` [B, n] of a bias [B, H, S, S]."""
    if bias is None:
        return None
    index = slots[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
    return bias.gather(2, index)
