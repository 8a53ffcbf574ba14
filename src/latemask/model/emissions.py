"""How likely each of many states finds each of a few tokens of the vocabulary, without ever holding all logits.

B batch, N states of a row, T tokens of a row, E width of the word table, W vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latemask.ground.precision import autocast_dtype, without_autocast
from latemask.model.head import CHUNK_ROWS, PredictionHead, add_outer, added


def log_probabilities(head: PredictionHead, states: Tensor, words: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities [B, N, T], in fp32, of tokens [B, T] at the states [B, N, D] of their row.

    As with the head's loss, products are in half precision where autocast is on, and exact where nothing is learnt.
    """
    features = head.features(states)
    product = (autocast_dtype(states.device) if torch.is_grad_enabled() else None) or torch.float32
    each = words.new_zeros(len(words)) if head.bias is None else head.bias
    with without_autocast(states.device):
        found: Tensor = _Emissions.apply(features.flatten(0, 1), words, each, tokens, product)
    return found.unflatten(0, features.shape[:2])


class _Emissions(torch.autograd.Function):
    """Log-probabilities by chunks of states. The logits come and go, and are computed once more on the way back.

    What a state's loss weighs is known only after the recursion over all states of its row, so the gradient cannot be
    found on the way forward.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, words: Tensor, bias: Tensor, tokens: Tensor, product: torch.dtype
    ) -> Tensor:
        """features [B * N, E], words [W, E], bias [W], tokens [B, T] → [B * N, T]."""
        ctx.save_for_backward(features, words, bias, tokens)
        ctx.product = product
        found = [
            logits.gather(1, wanted) - logits.logsumexp(1, keepdim=True)
            for _, logits, wanted in _chunks(features, words.to(product), bias, tokens)
        ]
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Go through the chunks again: a logit's gradient is its share of all that its state weighs, less its own."""
        features, words, bias, tokens = ctx.saved_tensors
        (given,) = gradients
        size = given.abs().amax().clamp_min(torch.finfo(given.dtype).tiny)  # small numbers would be lost in fp16
        narrow = words.to(ctx.product)
        for_features = torch.empty_like(features, dtype=torch.float32)
        for_words = for_bias = None
        with without_autocast(features.device):
            for rows, logits, wanted in _chunks(features, narrow, bias, tokens):
                weights = given[rows] / size
                exact = logits.softmax(1).mul_(-weights.sum(1, keepdim=True)).scatter_add_(1, wanted, weights)
                gradient = exact.to(ctx.product)
                for_features[rows] = gradient @ narrow
                for_words = add_outer(for_words, gradient, features[rows].to(ctx.product))
                for_bias = added(for_bias, exact.sum(0))
        found = zip((for_features, for_words, for_bias), (features, words, bias), strict=True)
        return (*(gradient.mul_(size).to(of.dtype) for gradient, of in found if gradient is not None), None, None)


def _chunks(features: Tensor, words: Tensor, bias: Tensor, tokens: Tensor) -> Any:
    """Yield (which rows of features, their logits in fp32, their row's tokens), chunk by chunk."""
    states = len(features) // len(tokens)
    of_row = torch.arange(len(features), device=tokens.device) // states
    for start in range(0, len(features), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        logits = F.linear(features[rows].to(words.dtype), words).float().add_(bias)
        yield rows, logits, tokens[of_row[rows]]
