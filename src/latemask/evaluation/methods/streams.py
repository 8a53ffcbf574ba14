"""A stock encoder whose layers two streams go through, frozen, with adapters that are trained (MEFT).

The stock model stays what it is around its layers: it makes embeddings, masks and rotations, and hands them to layer
after layer. Each of those notes what it is given, and the last one sends both streams through all of them.

    variant   F                                    G                         streams
    1         layer + adapter beside its FFN       adapter                   change places
    2         adapter                              layer + adapter           change places
    3         attention, adapter on its output     FFN + adapter beside it   stay
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from latemask.evaluation.methods.places import is_attention, layers_of
from latemask.evaluation.methods.reversible import (
    Coupling,
    Half,
    forgetting,
    random_state,
    set_random_state,
    storing,
)

_INIT_STD = 0.02
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation")  # what families call them
_DROPOUTS = ("hidden_dropout_prob", "mlp_dropout", "dropout")
_PAIRS = ("mpnet", "deberta-v2")  # whose layers return a tuple
# Whose layers end without a norm: one stands behind the last of them.
PRE_NORM = ("modernbert", "eurobert", "esm", "roberta-prelayernorm")


def _same(states: Tensor, *_: Any, **__: Any) -> Tensor:
    return states


def _none(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.zeros_like(hidden_states)


def _pair_of_same(states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return states, None


def _pair_of_none(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return torch.zeros_like(hidden_states), None


def _residual(_: Tensor, states: Tensor) -> Tensor:
    return states


Off = dict[str, Callable[..., Any]]
_BERT_FFN: Off = {"intermediate": _same, "output": _residual}
_BERT: tuple[Off, Off] = ({"attention": _pair_of_same}, _BERT_FFN)
_POST_NORM: tuple[Off, Off] = (
    {"self_attn": _pair_of_none, "post_attention_layernorm": _same},
    {"mlp": _none, "post_mlp_layernorm": _same},
)
# What stands in for the modules of a layer where its attention is left out, and where its feed-forward is.
HALVES: dict[str, tuple[Off, Off]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "electra"), _BERT),
    **dict.fromkeys(("mpnet", "deberta-v2"), _BERT),
    **dict.fromkeys(("nomic_bert", "gte"), _POST_NORM),
    "distilbert": (
        {"attention": _pair_of_none, "sa_layer_norm": _same},
        {"ffn": _none, "output_layer_norm": _same},
    ),
    "esm": ({"attention": _same}, _BERT_FFN),
    "modernbert": ({"attn": _pair_of_none}, {"mlp": _none}),
    "eurobert": ({"self_attn": _pair_of_none}, {"mlp": _none}),
}


def with_streams(model: Any, variant: int, rank: int, scales: tuple[float, float], anchors: int) -> Any:
    """Let two streams go through a stock model with a head; what is new in it is to be trained."""
    layers, passage = layers_of(model), Passage(anchors, variant)
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1
        layers[number] = StreamLayer(layer, model.config, rank, scales, passage, number == 0, is_last)
    return model


class Adapter(nn.Module):
    """A bottleneck: down to `rank`, the encoder's own activation and dropout, up again."""

    def __init__(self, config: Any, rank: int):
        super().__init__()
        self.down, self.up = nn.Linear(config.hidden_size, rank), nn.Linear(rank, config.hidden_size)
        self.activation = ACT2FN[_first_of(config, _ACTIVATIONS, "gelu")]
        self.dropout = nn.Dropout(_first_of(config, _DROPOUTS, 0.0))
        for linear in (self.down, self.up):
            nn.init.normal_(linear.weight, std=_INIT_STD)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        out: Tensor = self.up(self.dropout(self.activation(self.down(states))))
        return out


def _first_of(config: Any, names: tuple[str, ...], default: Any) -> Any:
    return next((getattr(config, name) for name in names if hasattr(config, name)), default)


class Passage:
    """One forward pass through the layers: what the stock model hands to each, until the last one has it."""

    def __init__(self, anchors: int, variant: int):
        self.anchors, self.variant = anchors, variant
        self.is_storing = False
        """Whether autograd keeps what it needs, to compare with."""
        self.couplings: list[Coupling] = []

    def run(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams after the last layer."""
        couplings, self.couplings = self.couplings, []
        if self.is_storing or not torch.is_grad_enabled():
            return storing(couplings, states)
        return forgetting(couplings, states, self.anchors)


class StreamLayer(nn.Module):
    """A stock layer with two adapters: one beside its feed-forward, one alone or on the output of its attention."""

    def __init__(
        self,
        stock: Any,
        config: Any,
        rank: int,
        scales: tuple[float, float],
        passage: Passage,
        is_first: bool,
        is_last: bool,
    ):
        super().__init__()
        self.stock, self.scales, self.passage = stock, scales, passage
        self.is_first, self.is_last = is_first, is_last
        self.family: str = config.model_type
        if hasattr(stock, "attention_type"):  # by which a ModernBERT chooses the mask
            self.attention_type = stock.attention_type
        self.beside, self.other = Adapter(config, rank), Adapter(config, rank)
        if is_last and self.family in PRE_NORM:
            self.alpha = nn.Parameter(torch.zeros(()))
        self._entered: Tensor | None = None
        linears = [(name, one) for name, one in stock.named_modules() if isinstance(one, nn.Linear)]
        feed_forward = [one for name, one in linears if not is_attention(name)]
        feed_forward[0].register_forward_pre_hook(self._note)
        feed_forward[-1].register_forward_hook(self._add)
        if passage.variant == 3:
            [one for name, one in linears if is_attention(name)][-1].register_forward_hook(self._add_to_attention)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """What is trained of its adapters."""
        return (*_trained(self.beside), *_trained(self.other))

    def _note(self, module: Any, args: tuple[Tensor, ...]) -> None:
        self._entered = args[0]

    def _add(self, module: Any, args: Any, out: Tensor) -> Tensor:
        entered, self._entered = self._entered, None
        assert entered is not None
        return out + self.beside(entered)

    def _add_to_attention(self, module: Any, args: Any, out: Tensor) -> Tensor:
        return out + self.other(out)

    def forward(self, states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Note what the layer is given and hand the states on; the last one returns what all layers make of them."""
        if self.is_first:
            self.passage.couplings.clear()  # of a pass that was broken off
        self.passage.couplings.append(self._coupling(args, kwargs))
        if self.is_last:
            states = self._joined(*self.passage.run(states))
        return (states, None) if self.family in _PAIRS else states

    def _coupling(self, args: Any, kwargs: Any) -> Coupling:
        whole = partial(self._run, {}, args, kwargs)
        beside, other = _trained(self.beside), _trained(self.other)
        if self.passage.variant == 1:
            return Coupling(whole, self.other, beside, other, *self.scales, swaps=True)
        if self.passage.variant == 2:
            return Coupling(self.other, whole, other, beside, *self.scales, swaps=True)
        without_attention, without_feed_forward = HALVES[self.family]
        attention: Half = partial(self._run, without_feed_forward, args, kwargs)
        feed_forward: Half = partial(self._run, without_attention, args, kwargs)
        return Coupling(attention, feed_forward, other, beside, *self.scales, swaps=False)

    def _run(self, off: Off, args: Any, kwargs: Any, states: Tensor) -> Tensor:
        """Run the stock layer, without some of its modules."""
        with _standing_in({getattr(self.stock, name): instead for name, instead in off.items()}):
            out = self.stock(states, *args, **kwargs)
        found: Tensor = out[0] if self.family in _PAIRS else out
        return found

    def _joined(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the mean of the streams; before a final norm, the one that follows the stock model and α the other."""
        if self.family not in PRE_NORM:
            return (first + second) / 2
        follows, other = (first, second) if self.passage.variant == 2 else (second, first)
        return follows + self.alpha * other


def _trained(adapter: Adapter) -> tuple[Tensor, ...]:
    return tuple(weight for weight in adapter.parameters() if weight.requires_grad)


@contextmanager
def _standing_in(modules: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    """Let functions stand in for what modules do."""
    for module, instead in modules.items():
        module.forward = instead
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def gradient_cosines(model: Any, loss: Callable[[], Tensor]) -> list[float]:
    """Return, for each layer from below, the cosine between its adapters' gradient and the one that autograd gives.

    `loss` computes the same loss at each call; dropout draws the same.
    """
    layers = layers_of(model)
    start, weights = random_state(model.device), [weight for layer in layers for weight in layer.weights]
    found = []
    for is_storing in (True, False):
        set_random_state(model.device, start)
        layers[0].passage.is_storing = is_storing
        gradients = iter(torch.autograd.grad(loss(), weights))
        found.append([torch.cat([next(gradients).flatten().double() for _ in layer.weights]) for layer in layers])
    set_random_state(model.device, start)
    return [_cosine(exact, ours) for exact, ours in zip(*found, strict=True)]


def _cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine between two vectors; 1 where both are nothing."""
    norms = one.norm() * other.norm()
    return 1.0 if not one.any() and not other.any() else float(one @ other / norms)
