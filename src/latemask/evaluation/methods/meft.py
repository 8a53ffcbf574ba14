"""`--method meft`: adapters on a frozen encoder that two streams go through, reversibly: no activations are stored.

Liao, Tan and Monz, "Make Pre-trained Model Reversible" (NeurIPS 2023). What is trained stays a model of two streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latemask.evaluation.methods import METHODS, Method, freeze_encoder, save_config
from latemask.ground.console import one_line, printable
from latemask.ground.errors import UserError

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.protocol import Protocol
    from latemask.evaluation.trials import Prepared

_WEIGHTS = "meft.safetensors"
# λ, β (the authors') and the layers between anchors. Those were tried in bf16 with 12 layers of 192 and of 768: the
# cosines below were 0.9999 at least; with six layers they fall to 0.991 and less.
_BY_VARIANT = {1: (0.1, 1.0, 4), 2: (1.0, 0.1, 3), 3: (0.1, 0.1, 3)}
_LEAST_COSINE = 0.99
_CHECKED_ROWS = 4
_INSTEAD = "--method lora or full with --checkpointing also needs little memory"


@dataclass(frozen=True)
class MeftOptions:
    """Reversible streams and adapters."""

    variant: int = 1
    """MEFT1, 2 or 3: which half of a layer the stock one is in."""
    rank: int = 8
    """Width of the adapters, two a layer."""
    first_scale: float | None = None
    """λ, what the first stream keeps of itself in a layer; 0.1, 1, 0.1 by variant."""
    second_scale: float | None = None
    """β, what the second one keeps; 1, 0.1, 0.1 by variant."""
    anchors: int | None = None
    """The streams are kept every so many layers, so that they stay exact; 4, 3, 3 by variant."""

    def __post_init__(self) -> None:
        """Spell out what follows from the variant, so that records and notes say what was done."""
        spelled = dict(zip(("first_scale", "second_scale", "anchors"), _BY_VARIANT.get(self.variant, ()), strict=False))
        for name, value in spelled.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


@METHODS.register("meft")
class Meft(Method):
    """Trains two adapters a layer, and computes what went into a layer from what came out."""

    words = "MEFT"
    Options = MeftOptions
    checkpoints = False

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights: the authors took 3e-4 to 8e-4 for base."""
        return 10 * super().learning_rate(width)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Refuse options that mean nothing, and layers of families that were never looked at."""
        from latemask.evaluation.methods.streams import HALVES

        options: MeftOptions = protocol.of_method
        if options.variant not in _BY_VARIANT:
            return f"--meft.variant {options.variant}: 1, 2 or 3"
        if not 1 <= options.rank <= encoder.width:
            return f"--meft.rank {options.rank}: 1 to {encoder.width}, the encoder's width"
        if options.anchors is not None and options.anchors < 1:
            return f"--meft.anchors {options.anchors}: one at least"
        for name in ("first_scale", "second_scale"):
            if (scale := getattr(options, name)) is not None and not 0 < scale <= 1:
                return f"--meft.{name.replace('_', '-')} {scale:g}: above 0, and 1 at most: a layer divides by it"
        if (kind := encoder.config.model_type) not in HALVES:
            return f"it knows nothing of the layers of '{kind}'; {_INSTEAD}"
        if getattr(encoder.config, "conv_kernel_size", 0) > 0:
            return f"this encoder has a convolution between its layers; {_INSTEAD}"
        return None

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Freeze the encoder, and put the streams and adapters in."""
        freeze_encoder(model)
        return _with_streams(model, protocol.of_method)

    def fitted(self, model: Any, prepared: Prepared) -> Any:
        """Make sure, before it is trained, that its gradients are those of plain autograd."""
        model = self.prepared(model, prepared.protocol)
        _refuse_inexact(model, prepared)
        return model

    def merged(self, model: Any) -> Any:
        """Two streams are no stock model."""
        return None

    def save(self, model: Any, folder: Path, protocol: Protocol) -> bool:
        """Write all weights, so that the folder needs no other."""
        from safetensors.torch import save_file

        save_config(model, folder)
        save_file({name: weight.contiguous() for name, weight in model.state_dict().items()}, folder / _WEIGHTS)
        return True

    def opened(self, folder: Path, auto_class: Any, options: Any) -> Any:
        """Build the same from the config, and load all of it."""
        import torch
        from safetensors.torch import load_file
        from transformers import AutoConfig

        try:
            model = auto_class.from_config(AutoConfig.from_pretrained(str(folder)), dtype=torch.float32)
            model = _with_streams(model, options)
            model.load_state_dict(load_file(folder / _WEIGHTS))
        except Exception as error:  # safetensors and transformers raise many kinds for a damaged file
            file = printable(str(folder / _WEIGHTS))
            raise UserError(f"{file} is missing or damaged, fine-tune again: {one_line(error, 120)}") from None
        return model.eval()

    def card(self, model: Any) -> str:
        """Say that it stays as it is."""
        return (
            "Two streams go through its layers, in training and in use, so it is no stock model: transformers does not "
            f"open it, latemask does. All weights are in `{_WEIGHTS}`, those of the encoder as they were."
        )


def _with_streams(model: Any, options: MeftOptions) -> Any:
    from latemask.evaluation.methods.streams import with_streams

    first, second, anchors = options.first_scale, options.second_scale, options.anchors
    assert first is not None  # the variant is one of three
    assert second is not None
    assert anchors is not None
    return with_streams(model, options.variant, options.rank, (first, second), anchors)


def _refuse_inexact(model: Any, prepared: Prepared) -> None:
    """Compare gradients on a few rows of the task; refuse to train where a layer's point elsewhere."""
    import torch

    from latemask.evaluation.features import make_collator
    from latemask.evaluation.methods.streams import gradient_cosines
    from latemask.evaluation.trials import computing
    from latemask.ground.precision import mixed_precision

    if torch.accelerator.is_available():  # where it will be trained
        model.to(torch.accelerator.current_accelerator())
    kind, protocol = prepared.task.kind, prepared.protocol
    collator = make_collator(kind, prepared.encoder.tokenizer_for(kind))
    batch = collator(prepared.splits["train"].rows[:_CHECKED_ROWS])
    batch = {name: value.to(model.device) for name, value in batch.items()}
    with computing(mixed_precision(protocol.precision), batch["input_ids"]):
        cosines = gradient_cosines(model.train(), lambda: model(**batch).loss)
    for number, cosine in enumerate(cosines):
        if not cosine >= _LEAST_COSINE:
            raise UserError(_too_inexact(number, cosine, protocol))


def _too_inexact(layer: int, cosine: float, protocol: Protocol) -> str:
    from latemask.ground.precision import precision_name

    options: MeftOptions = protocol.of_method
    name = min(("first_scale", "second_scale"), key=lambda one: getattr(options, one))
    or_else = " or pass --precision fp32" if precision_name(protocol.precision) != "fp32" else ""
    return (
        f"--method meft: layer {layer} has not the gradient that plain autograd gives it (cosine {cosine:.3f}): its "
        f"input comes out wrong;\nlower --meft.anchors (now {options.anchors}), raise "
        f"--meft.{name.replace('_', '-')} (now {getattr(options, name):g}){or_else}"
    )
