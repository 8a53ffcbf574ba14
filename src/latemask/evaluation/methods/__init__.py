"""How a model is fine-tuned: which weights train, what is added, and how it is a stock model again in the end.

    @METHODS.register("head-only")
    class HeadOnly(Method):
        def prepared(self, model, protocol): ...

`--method head-only` then takes it, and its options are `--head-only.NAME`. A method loads torch inside its functions:
the table is read for help and mistakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latemask.ground.registry import Registry

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.protocol import Protocol
    from latemask.evaluation.trials import Prepared

# Peak learning rates by the encoder's width: RoBERTa's middle ones for base and large; smaller encoders want more
# (google-research/bert's miniatures and ELECTRA-small: 1e-4 to 3e-4; ours were tried, docs/results.md).
_LEARNING_RATES = ((320, 3e-4), (640, 1e-4), (896, 3e-5), (math.inf, 1e-5))


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none."""


class Method:
    """A way to fine-tune. As it stands here it changes nothing: all weights train."""

    words: str = ""
    """What tables call it, where its name does not say enough."""
    Options: type = NoOptions
    """Its options: a frozen dataclass, with a default and a line of help for each."""
    checkpoints = True
    """Whether `--checkpointing` can go with it."""

    def learning_rate(self, width: int) -> float:
        """Return the peak learning rate that suits an encoder's width."""
        return next(rate for limit, rate in _LEARNING_RATES if width < limit)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Say why an encoder cannot be fine-tuned so, and what to do instead; it is asked before anything is written.

        The options are `protocol.of_method`.
        """
        return None

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Return the model that is trained, made of the stock model with the task's head; the seed is set."""
        return model

    def fitted(self, model: Any, prepared: Prepared) -> Any:
        """Return the same for a method that reads the task's rows, too, before it trains on them.

        What takes long tells `prepared.observer` so, which may end it.
        """
        return self.prepared(model, prepared.protocol)

    def merged(self, model: Any) -> Any:
        """Return a trained model as a stock one, with nothing left of the method; None where it cannot be one.

        It is called once, on the weights of the reported epoch, and may use the model up. Without a stock model there
        are scores, and nothing to keep, unless the method has a `save` of its own.
        """
        return model

    def save(self, model: Any, folder: Path, protocol: Protocol) -> bool:
        """Write a trained model into an empty folder; say whether there was anything to write.

        What is no stock model keeps its weights under another name than model.safetensors: nobody shall open it as one.
        """
        stock = self.merged(model)
        if stock is not None:
            stock.save_pretrained(str(folder))
        return stock is not None

    def card(self, model: Any) -> str:
        """Return what the card of a trained model says of the method, as Markdown; `save` comes after."""
        return ""

    def opened(self, folder: Path, auto_class: Any, options: Any) -> Any:
        """Return the model that `save` wrote, ready to answer; None where it is a stock folder."""
        return None

    def stored_bytes(self, model: Any) -> int:
        """Return what has to be stored of a trained model by whoever has the encoder; the task's head is apart."""
        return sum(weight.numel() * weight.element_size() for _, weight in trained_weights(model))


def trained_weights(model: Any) -> list[tuple[str, Any]]:
    """Return the encoder's weights that are trained, each once; the task's head is apart."""
    return [
        (name, weight) for name, weight in model.named_parameters() if weight.requires_grad and in_body(model, name)
    ]


def in_body(model: Any, name: str) -> bool:
    """Whether a weight, by its name, is the encoder's; all else, a pooler included, belongs to the task's head."""
    return name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name


def freeze_encoder(model: Any) -> None:
    """Let only the task's head be trained."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(not in_body(model, name))


def save_config(model: Any, folder: Path) -> None:
    """Write the config of a stock model that is saved in a way of its own, with the class that it belongs to."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(str(folder))


METHODS: Registry[Method] = Registry("fine-tuning method")

# Each enters itself into the table; their order is that of the help.
# Each enters itself into the table; their order is that of the help.
for _name in ("full", "bias", "lora", "hiwi", "pafi", "meft", "apiq"):
    import_module(f"{__name__}.{_name}")
