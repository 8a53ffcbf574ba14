"""Where the quantised maps of an encoder come from: fitted on texts as ApiQ does it, or LoftQ's and the nearest codes.

The encoder is walked from the bottom to the top with two streams: what a full-precision encoder makes of the texts, and
what the quantised one does below the layer at hand. A layer is fitted to give the one from the other, so errors from
below are undone, too (Liao et al. 2024, arXiv 2402.05147). Layers are stock modules, run as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from latemask.evaluation.methods.calibration import Texts
from latemask.evaluation.methods.fake_quantized import Fitted, loftq
from latemask.evaluation.methods.places import layers_of
from latemask.evaluation.methods.quantized import Shape

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How the maps of an encoder are quantised."""

    shape: Shape
    fit: str
    epochs: int
    rate: float
    """AdamW's learning rate for the low-rank part."""
    clip_rate: float
    """The same for the ranges."""


@dataclass(frozen=True)
class Fitting:
    """One walk through an encoder."""

    recipe: Recipe
    texts: Sequence[Texts]
    generator: torch.Generator
    report: Callable[[], None]
    """Called after every step; may raise."""

    def layer(self, layer: nn.Module, clean: Sequence[Call], targets: Sequence[Any], rough: Sequence[Call]) -> None:
        """Replace a layer's maps; of calls of the whole layer, `clean` are full-precision and give `targets`."""
        if self.recipe.fit == "block":
            self._as_block(layer, targets, rough)
        elif self.recipe.fit == "layer":
            self._one_by_one(layer, clean, rough)
        else:
            for name, stock in linears_in(layer):
                layer.set_submodule(name, self._closed(stock).frozen())

    def _closed(self, stock: nn.Linear) -> Fitted:
        if self.recipe.fit == "loftq":
            return loftq(stock, self.recipe.shape, self.generator)
        return Fitted(stock, self.recipe.shape, self.generator, clip=math.inf)

    def _as_block(self, layer: nn.Module, targets: Sequence[Any], rough: Sequence[Call]) -> None:
        maps = {name: Fitted(stock, self.recipe.shape, self.generator) for name, stock in linears_in(layer)}
        for name, fitted in maps.items():
            layer.set_submodule(name, fitted)

        def error(number: int) -> Tensor:
            (args, kwargs), texts = rough[number], self.texts[number]
            return (texts.seen(layer(*args, **kwargs)) - texts.seen(targets[number])).square().mean()

        self._minimize(error, list(maps.values()))
        for name, fitted in maps.items():
            layer.set_submodule(name, fitted.frozen())

    def _one_by_one(self, layer: nn.Module, clean: Sequence[Call], rough: Sequence[Call]) -> None:
        before = copy.deepcopy(layer)  # still full-precision when the first maps of the other are not
        order = executed(layer, clean[0])
        for name in [*order, *(name for name, _ in linears_in(layer) if name not in order)]:
            stock: Any = layer.get_submodule(name)
            fitted = Fitted(stock, self.recipe.shape, self.generator)
            if name in order:
                self._as_map(fitted, watched(layer, name, rough), watched(before, name, clean))
            layer.set_submodule(name, fitted.frozen())

    def _as_map(
        self, fitted: Fitted, rough: Sequence[tuple[Tensor, Tensor]], clean: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        def error(number: int) -> Tensor:
            given, target = self.texts[number].seen(rough[number][0]), self.texts[number].seen(clean[number][1])
            return (fitted(given) - target).square().mean()

        self._minimize(error, [fitted])

    def _minimize(self, error: Callable[[int], Tensor], maps: Sequence[Fitted]) -> None:
        groups = [
            {"params": [weight for one in maps for weight in (one.down, one.up)], "lr": self.recipe.rate},
            {"params": [weight for one in maps for weight in (one.high, one.low)], "lr": self.recipe.clip_rate},
        ]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        for _ in range(self.recipe.epochs):
            for number in torch.randperm(len(self.texts), generator=self.generator).tolist():
                optimizer.zero_grad()
                error(number).backward()
                optimizer.step()
                self.report()


def quantize(model: Any, texts: Sequence[Texts], recipe: Recipe, report: Callable[[int], None]) -> float:
    """Put quantised maps into the layers of a stock model; return the relative error of what its last layer makes.

    It depends on weights, texts and recipe alone: what is drawn has a seed of its own, and there is no dropout.
    `report` is given the number of the layer after every step.
    """
    layers, was_training = layers_of(model), model.training
    generator = torch.Generator().manual_seed(0)
    wanted: list[Any] = [None] * len(texts)  # what the layer below makes of a batch, in full precision
    found: list[Any] = [None] * len(texts)  # and what it makes when quantised
    model.eval()
    for number, layer in enumerate(layers):
        clean = [call_at(model, number, one, before) for one, before in zip(texts, wanted, strict=True)]
        rough = [call_at(model, number, one, before) for one, before in zip(texts, found, strict=True)]
        with torch.no_grad():
            wanted = [layer(*args, **kwargs) for args, kwargs in clean]
        Fitting(recipe, texts, generator, partial(report, number)).layer(layer, clean, wanted, rough)
        with torch.no_grad():
            found = [layer(*args, **kwargs) for args, kwargs in rough]
        report(number)
    model.train(was_training)
    return _relative_error(texts, found, wanted)


def _relative_error(texts: Sequence[Texts], found: Sequence[Any], wanted: Sequence[Any]) -> float:
    pairs = [(one.seen(is_), one.seen(should)) for one, is_, should in zip(texts, found, wanted, strict=True)]
    off = sum(float((is_ - should).square().sum()) for is_, should in pairs)
    return math.sqrt(off / sum(float(should.square().sum()) for _, should in pairs))


@torch.no_grad()
def call_at(model: Any, number: int, texts: Texts, before: Any) -> Call:
    """Return what a layer is called with when the one below it makes `before`; the other layers are not run.

    So masks and rotations are the stock model's own, and so is what stands between two layers, as in DeBERTa.
    """
    layers, calls = layers_of(model), list[Call]()

    def forward(at: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal before
        if at == number:
            calls.append((args, kwargs))
        if before is None:  # the first layer says what kind of thing a layer makes
            before = type(layers[at]).forward(layers[at], *args, **kwargs)
        return before

    try:
        for at, layer in enumerate(layers):
            layer.forward = partial(forward, at)
        model.base_model(**texts.inputs)
    finally:
        for layer in layers:
            del layer.forward
    return calls[0]


def linears_in(layer: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Return the linear maps of a layer that are still stock ones."""
    return [(name, one) for name, one in layer.named_modules() if isinstance(one, nn.Linear)]


def executed(layer: nn.Module, call: Call) -> list[str]:
    """Return the names of a layer's linear maps in the order in which they are run."""
    names: dict[str, None] = {}
    hooks = [one.register_forward_hook(lambda *_, name=name: names.setdefault(name)) for name, one in linears_in(layer)]
    with torch.no_grad():
        layer(*call[0], **call[1])
    for hook in hooks:
        hook.remove()
    return list(names)


@torch.no_grad()
def watched(layer: nn.Module, name: str, calls: Sequence[Call]) -> list[tuple[Tensor, Tensor]]:
    """Return what one map of a layer is given and gives, call by call; of a map that is run twice, the first time."""
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        seen.append((given[0], made))

    found = []
    hook = layer.get_submodule(name).register_forward_hook(watch)
    for args, kwargs in calls:
        seen.clear()
        layer(*args, **kwargs)
        found.append(seen[0])
    hook.remove()
    return found
