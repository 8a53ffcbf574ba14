"""`--method hiwi`: adapters that read a frozen parameter, not an activation, and become a parameter in the end.

Liao, Meng, Monz 2023 (arXiv 2305.16742): b' = b + f(b·D)·U for the biases of the feed-forward. There is no public code
of theirs; how D starts, and f, are our choices, said where they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from latemask.evaluation.methods import METHODS, Method, freeze_encoder
from latemask.evaluation.methods.places import is_attention, linears_of
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.protocol import Protocol
    from latemask.evaluation.trials import Prepared


@dataclass(frozen=True)
class Adapters:
    """Adapters that read the feed-forward's parameters"""

    rank: int = 16
    """Width of the adapters; what is stored of biases does not depend on it."""
    form: Literal["auto", "bias", "weights"] = "auto"
    """What they read; auto takes the biases where all have one, and else the matrices."""
    function: Literal["tanh", "gelu"] = "tanh"
    """What makes them more than a product."""


@METHODS.register("hiwi")
class Hiwi(Method):
    """An adapter reads what never changes, and so it can be computed once and thrown away.

    Of tanh no unit dies: its input is the same in every step, and one that ReLU cuts off at the start stays so forever;
    half of GELU's units would begin nearly so.
    """

    words = "adapters on its feed-forward's parameters"
    Options = Adapters

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights: outputs then move as fast as with `bias`, or LoRA for matrices."""
        return 10 * super().learning_rate(width)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Say what is wrong with the options, or cannot be with this encoder."""
        given, skeleton = protocol.of_method, encoder.skeleton()
        if given.rank < 1:
            return f"--hiwi.rank {given.rank}: 1 at least"
        found = feed_forward(skeleton)
        if not found:
            return "its layers have no linear maps in a feed-forward; take --method full or bias"
        if given.form == "bias" and not any(one.bias is not None for _, one in found):
            return (
                f"the feed-forward of {encoder.config.model_type} has no biases, and zeros in their place would never "
                "get a gradient; pass --hiwi.form weights"
            )
        sizes = ((name, one.out_features // parts) for name, one, _, parts in read(skeleton, given))
        where, least = min(sizes, key=lambda found: found[1])
        if given.rank > least:
            return f"--hiwi.rank {given.rank} is more than the {least} values of {where}; lower it"
        return None if encoder.is_random else _zeros(encoder.plain(), given)

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Put the adapters on; they add nothing at first."""
        if problem := _zeros(model, protocol.of_method):
            raise UserError(f"--method hiwi: {problem}")
        return _adapted(model, protocol.of_method)

    def fitted(self, model: Any, prepared: Prepared) -> Any:
        """Do the same; of the biases of a model that was never trained, which are zeros, nothing can be made."""
        given = prepared.protocol.of_method
        if prepared.encoder.is_random and _zeros(model, given):
            _say_once(prepared.encoder.name)
            freeze_encoder(model)
            return model
        return self.prepared(model, prepared.protocol)

    def merged(self, model: Any) -> Any:
        """Put the new biases or matrices where the old ones were."""
        from latemask.evaluation.methods.parametrizations import settle

        return settle(model)

    def stored_bytes(self, model: Any) -> int:
        """Return what the new tensors take, or the adapters, of which they follow: for matrices that is less."""
        from latemask.evaluation.methods.parametrizations import parametrized

        found = [(getattr(module, name), adapter) for module, name, adapter in parametrized(model)]
        return sum(
            new.element_size() * min(new.numel(), adapter.down.numel() + adapter.up.numel()) for new, adapter in found
        )


def feed_forward(model: Any) -> list[tuple[str, Any]]:
    """Return the linear maps of the feed-forward, by name."""
    return [(name, one) for name, one in linears_of(model) if not is_attention(name)]


def read(model: Any, given: Adapters) -> list[tuple[str, Any, str, int]]:
    """Return what adapters read: the name of a linear map, the map, bias or weight, and of how many parts that is.

    Two parts has a map to twice the width within, whose halves are two things, as in GeGLU: what is gated, and gates.
    """
    found = feed_forward(model)
    has_biases = [one.bias is not None for _, one in found]
    is_bias = given.form == "bias" or (given.form == "auto" and all(has_biases))
    kind, inner = "bias" if is_bias else "weight", found[-1][1].in_features
    return [
        (name, one, kind, 2 if one.out_features == 2 * inner else 1)
        for (name, one), has_bias in zip(found, has_biases, strict=True)
        if has_bias or not is_bias
    ]


def _adapted(model: Any, given: Adapters) -> Any:
    from torch.nn.utils import parametrize

    from latemask.evaluation.methods.parametrizations import Adapted

    freeze_encoder(model)
    found = read(model, given)
    assert found, "problem was not asked"
    for _, one, name, parts in found:
        adapter = Adapted(getattr(one, name), given.rank, given.function, parts)
        parametrize.register_parametrization(one, name, adapter)
    return model


def _zeros(model: Any, given: Adapters) -> str | None:
    """Say which parameters an adapter would read nothing from: f(0·D) is 0, and so is every gradient, forever."""
    found = read(model, given)
    nothing = [
        name for name, one, kind, parts in found if any(not part.any() for part in getattr(one, kind).chunk(parts))
    ]
    if not nothing:
        return None
    kind = found[0][2]
    remedy = "pass --hiwi.form weights" if kind == "bias" else "take --method lora"
    return (
        f"{len(nothing)} of {len(found)} {kind} tensors are all zeros, {nothing[0]} for one, and an adapter that reads "
        f"zeros learns nothing; {remedy}"
    )


@cache
def _say_once(name: str) -> None:
    say(f"{printable(name)}: hiwi has nothing to read in biases that nobody trained (zeros); its head alone is trained")
