"""The vocabulary head: RoBERTa's dense → GELU → norm, tied to the encoder's word table. Logits only where predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# torch's own choice of chunk is a few rows, 1.7 to 2.5 times slower here; from 256 rows on it makes no difference
# (docs/results.md). At 50,000 pieces 512 rows of logits are 100 MB.
CHUNK_ROWS = 512


class PredictionHead(nn.Module):
    """States at predicted positions → loss, or logits. The word table is an argument: it stays the encoder's."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def features(self, states: Tensor) -> Tensor:
        """Return what is multiplied with the word table."""
        return self.norm(F.gelu(self.dense(states)))

    def logits(self, states: Tensor, words: Tensor) -> Tensor:
        """[..., D] → [..., vocabulary]."""
        return F.linear(self.features(states), words, self.bias)

    def loss(self, states: Tensor, words: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy without ever holding all logits: they come and go in chunks."""
        features, words, bias = _as_autocast(self.features(states).flatten(0, -2), words, self.bias)
        return F.linear_cross_entropy(
            features,
            words,
            labels.flatten(),
            linear_bias=bias,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_ROWS),
        )


def _as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast would, if it is on: it does not know the chunked loss.

    On a CPU to fp32: the chunked loss is no faster in bf16 there, and would be rounded to two digits.
    """
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.float32 if kind == "cpu" else torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)
