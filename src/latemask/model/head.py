"""The vocabulary head: dense → activation → norm → word table, as stock models have it. Logits only where predicted.

N predicted positions of a batch, D width, E width of the word table, W vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from latemask.families import HeadShape

# torch's own choice of chunk is a few rows, 1.7 to 2.5 times slower here; from 256 rows on it makes no difference
# (docs/results.md). At 50,000 pieces 512 rows of logits are 100 MB.
CHUNK_ROWS = 512
# Of the word table's gradient in half precision. oneDNN finds no good blocking for some sizes: 50,265 words at once
# take 1.5 times as long.
PIECE_WORDS = 8192


class PredictionHead(nn.Module):
    """States at predicted positions → loss, or logits. The word table is an argument: it is the encoder's, or `words`.

    Dense and norm have biases whatever the family: what a stock head has no place for is exported into its last bias.
    """

    def __init__(self, width: int, vocab_size: int, words_width: int | None = None, shape: HeadShape | None = None):
        super().__init__()
        shape, inner = shape or HeadShape(), words_width or width
        self.dense = None if shape.plain else nn.Linear(width, inner)
        self.activation = ACT2FN[shape.activation]
        self.norm = None if shape.plain else nn.LayerNorm(inner, eps=shape.epsilon)
        self.words = None if shape.tied else nn.Parameter(torch.empty(vocab_size, inner))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if shape.bias else None

    def features(self, states: Tensor) -> Tensor:
        """Return what is multiplied with the word table."""
        if self.dense is None or self.norm is None:
            return states
        return self.norm(self.activation(self.dense(states)))

    def logits(self, states: Tensor, words: Tensor) -> Tensor:
        """[..., D] → [..., W]."""
        return F.linear(self.features(states), words, self.bias)

    def loss(self, states: Tensor, words: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy in fp32, without ever holding all logits: they come and go in chunks."""
        features = self.features(states).flatten(0, -2)
        device = features.device.type
        if torch.is_autocast_enabled(device) and torch.is_grad_enabled():  # what is only looked at is exact
            half = torch.get_autocast_dtype(device)
            each = words.new_zeros(len(words)) if self.bias is None else self.bias
            return HalfPrecisionLoss.apply(features, words, each, labels.flatten(), half)
        options = nn.LinearCrossEntropyOptions(
            batch_chunk_size=CHUNK_ROWS,
            allow_retain_graph=torch.compiler.is_compiling(),  # or torch warns, which breaks the graph
        )
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(device, enabled=False):
            return F.linear_cross_entropy(
                features.float(), words.float(), labels.flatten(), linear_bias=bias, options=options
            )

    @torch.no_grad()
    def row_losses(self, states: Tensor, words: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of each row [B] in fp32, of states [B, P, D] and labels [B, P].

        Without gradient, in chunks as above; the products are as precise as those of a training step.
        """
        features, wanted = self.features(states).flatten(0, -2), labels.flatten()
        losses = features.new_empty(len(features), dtype=torch.float32)
        for start in range(0, len(features), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            logits = F.linear(features[rows], words).float()
            if self.bias is not None:
                logits += self.bias
            losses[rows] = F.cross_entropy(logits, wanted[rows], reduction="none")
        return losses.view(labels.shape).mean(1)


class HalfPrecisionLoss(torch.autograd.Function):
    """Mean cross-entropy with products in half precision and everything else in fp32, chunk by chunk.

    torch's chunked loss rounds what it returns to the products' precision: 8.8894 becomes 8.875 in bf16. Like torch's,
    it finds the gradients on the way forward, when the logits are there.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, words: Tensor, bias: Tensor, labels: Tensor, half: torch.dtype) -> Tensor:
        """features [N, D], words [W, D], bias [W], labels [N] → the loss, a scalar in fp32."""
        narrow_features, narrow_words = features.to(half), words.to(half)
        for_features = torch.empty_like(features, dtype=torch.float32)
        total = for_words = for_bias = None
        with torch.autocast(features.device.type, enabled=False):
            for start in range(0, len(features), CHUNK_ROWS):
                rows = slice(start, start + CHUNK_ROWS)
                losses, shares = _losses_and_shares(F.linear(narrow_features[rows], narrow_words), bias, labels[rows])
                gradient = shares.to(half)  # not divided yet: small numbers would be lost in fp16
                for_features[rows] = gradient @ narrow_words
                for_words = add_outer(for_words, gradient, narrow_features[rows])
                for_bias = added(for_bias, shares.sum(0))
                total = added(total, losses.sum())
        assert total is not None
        ctx.save_for_backward(for_features, for_words, for_bias)
        ctx.dtypes = features.dtype, words.dtype, bias.dtype
        return total / len(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Scale what the forward pass found: in place, so torch refuses to go back a second time."""
        scale = gradients[0] / len(ctx.saved_tensors[0])
        found = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return (*(gradient.mul_(scale).to(dtype) for gradient, dtype in found), None, None)


def _losses_and_shares(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and the gradient of its logits: the softmax, less 1 where the label is."""
    exact = logits.float().add_(bias)
    shares = exact.softmax(-1)
    wanted = labels[:, None]
    # The largest share is exp(largest logit - log of the sum) and never 0, so the sum needs no second pass of exp.
    logs_of_sums = exact.amax(-1) - shares.amax(-1).log()
    losses = logs_of_sums - exact.gather(1, wanted).squeeze(1)
    return losses, shares.scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=shares.dtype))


def add_outer(total: Tensor | None, gradient: Tensor, features: Tensor) -> Tensor:
    """Return the word table's gradient with that of a chunk added, in fp32: gradient.T [W, N] @ features [N, D]."""
    products = (some.T @ features for some in gradient.split(PIECE_WORDS, dim=1))
    if total is None:  # the table is large: no pass to clear it first
        total = features.new_empty(gradient.shape[1], features.shape[1], dtype=torch.float32)
        for words, product in zip(total.split(PIECE_WORDS), products, strict=True):
            words.copy_(product)
    else:
        for words, product in zip(total.split(PIECE_WORDS), products, strict=True):
            words.add_(product)
    return total


def added(total: Tensor | None, part: Tensor) -> Tensor:
    """Return the sum so far, in fp32."""
    return part if total is None else total.add_(part)
