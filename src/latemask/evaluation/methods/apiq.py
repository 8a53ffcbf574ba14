"""`--method apiq`: the encoder's matrices in 2, 3 or 4 bits, with a low-rank part beside each that is trained."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latemask.evaluation.methods import METHODS, Method, freeze_encoder, in_body, save_config
from latemask.evaluation.methods.calibration import Texts, batches_of, texts_in
from latemask.evaluation.methods.places import linears_of

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.methods.fitting import Recipe
    from latemask.evaluation.methods.quantized import QuantizedLinear
    from latemask.evaluation.protocol import Protocol
    from latemask.evaluation.trials import Prepared

_BITS = (2, 3, 4)
_WIDTH_PER_RANK = 48
_KEPT = 4  # fitted encoders: the never-trained one has other weights for every seed
_CARD = """\
The {count} matrices inside the encoder's layers are kept in {bits} bits; {group} weights of a row share a scale and a
zero point. Beside each is a low-rank part of rank {rank}, which was trained. They were made by `{fit}`: untrained,
what the last layer made of {texts} texts was off by {error:.1%}. All else of the encoder is rounded to fp16.

`{file}` has {here:,} bytes; the stock model has {stock:,} in fp32, {times:.1f} times as many. In memory the
matrices stay packed. latemask alone opens the folder:

```python
from latemask.evaluation.methods.quantized import load_quantized

model = load_quantized("path/to/this/folder")
```"""


@dataclass(frozen=True)
class Options:
    """matrices in few bits, fitted on texts, and a low-rank part that is trained."""

    bits: int = 4
    """Bits of a weight: 2, 3 or 4."""
    group: int = 64
    """Weights that share a scale; it must divide the widths."""
    fit: Literal["block", "layer", "loftq", "nearest"] = "block"
    """Fitted on texts by whole layers or by single matrices; or without texts, as LoftQ or to the nearest codes."""
    rank: int | None = None
    """Rank of the trained part; by default a 48th of the encoder's width."""
    alpha: float | None = None
    """The trained part counts alpha / rank; by default once."""
    calibration: str | None = None
    """File with texts to fit on, one a line; by default the task's training texts."""
    samples: int = 128
    """How many texts to fit on."""
    epochs: int = 10
    """Passes over them."""
    rate: float = 3e-3
    """Learning rate of the low-rank part in fitting."""
    clip_rate: float = 3e-2
    """Learning rate of the ranges in fitting."""


@METHODS.register("apiq")
class ApiQ(Method):
    """Quantised matrices stay as they are; what was fitted beside them, and the head, are trained."""

    words = "a low-rank part beside quantised matrices"
    Options = Options

    def __init__(self) -> None:
        self.made: dict[str, Made] = {}

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights, as for other low-rank parts: 3e-4 for base is the authors' own."""
        return 10 * super().learning_rate(width)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Refuse numbers that mean nothing, shapes that do not fit, and texts that are not there."""
        options: Options = protocol.of_method
        if options.bits not in _BITS:
            return f"--apiq.bits {options.bits}: 2, 3 or 4"
        least = {"group": 1, "rank": 1, "samples": 1, "epochs": 0}
        for name, limit in least.items():
            if (value := getattr(options, name)) is not None and value < limit:
                return f"--apiq.{name} {value}: {limit} at least"
        for name in ("alpha", "rate", "clip_rate"):
            if (value := getattr(options, name)) is not None and not 0 < value < math.inf:
                return f"--apiq.{name} {value}: a positive number"
        if options.calibration is not None:
            texts_in(Path(options.calibration), options.samples)
        matrices = [tuple(one.weight.shape) for _, one in linears_of(encoder.skeleton())]
        return _misfit(options, matrices, _rank(options, encoder.width))

    def fitted(self, model: Any, prepared: Prepared) -> Any:
        """Quantise, or take what was made of the same weights and texts before."""
        from latemask.evaluation.methods.quantized import round_frozen

        freeze_encoder(model)
        options: Options = prepared.protocol.of_method
        recipe, texts = (
            _recipe(options, prepared.encoder.width),
            batches_of(prepared, options.calibration, options.samples),
        )
        key = _digest(model, recipe, texts)
        if key not in self.made:
            count = prepared.encoder.config.num_hidden_layers
            tell = prepared.observer.before_training
            made = _quantized(model, recipe, texts, lambda at: tell(f"quantising layer {at + 1} of {count}"))
            self.made = dict([*self.made.items(), (key, made)][-_KEPT:])
        self.made[key].put_into(model)
        round_frozen(model)
        model.quantization = self.made[key]
        return model

    def merged(self, model: Any) -> Any:
        """Return None: the sum of codes and the low-rank part is on no grid."""
        return None

    def save(self, model: Any, folder: Path, protocol: Protocol) -> bool:
        """Write the weights under a name of their own."""
        from latemask.evaluation.methods.quantized import QUANTIZED, serialized

        save_config(model, folder)
        (folder / QUANTIZED).write_bytes(serialized(model))
        return True

    def opened(self, folder: Path, auto_class: Any, options: Any) -> Any:
        """Return the model with its matrices packed; each is unpacked when it is run."""
        from latemask.evaluation.methods.quantized import load_quantized

        return load_quantized(folder)

    def stored_bytes(self, model: Any) -> int:
        """Return the bytes of codes, scales, zero points and low-rank parts."""
        from latemask.evaluation.methods.quantized import quantized_in

        return sum(one.stored_bytes() for one in quantized_in(model).values())

    def card(self, model: Any) -> str:
        """Say what the folder holds, how much smaller it is, and how to open it."""
        from latemask.evaluation.methods.quantized import QUANTIZED, quantized_in, serialized

        maps, made = quantized_in(model), model.quantization
        here, stock = len(serialized(model)), 4 * _stock_weights(model)
        shape = asdict(made.recipe.shape) | {"fit": made.recipe.fit, "texts": made.texts, "error": made.error}
        return _CARD.format(count=len(maps), file=QUANTIZED, here=here, stock=stock, times=stock / here, **shape)


@dataclass(frozen=True)
class Made:
    """The quantised matrices of an encoder, before training."""

    maps: dict[str, QuantizedLinear]
    recipe: Recipe
    texts: int
    """How many it was fitted on, and measured."""
    error: float
    """Of what the last layer makes of them."""

    def put_into(self, model: Any) -> None:
        """Give a model copies of them."""
        for name, one in self.maps.items():
            model.set_submodule(name, copy.deepcopy(one))


def _quantized(model: Any, recipe: Recipe, texts: Sequence[Texts], report: Callable[[int], None]) -> Made:
    """Quantise a model in place, on the accelerator if there is one, and return what was made."""
    import torch

    from latemask.evaluation.methods.fitting import quantize
    from latemask.evaluation.methods.quantized import quantized_in

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    error = quantize(model.to(device), [one.to(device) for one in texts], recipe, report)
    maps = {name: copy.deepcopy(one) for name, one in quantized_in(model.cpu()).items()}
    return Made(maps, recipe, sum(len(one) for one in texts), error)


def _recipe(options: Options, width: int) -> Recipe:
    from latemask.evaluation.methods.fitting import Recipe
    from latemask.evaluation.methods.quantized import Shape

    rank = _rank(options, width)
    shape = Shape(options.bits, options.group, rank, 1.0 if options.alpha is None else options.alpha / rank)
    return Recipe(shape, options.fit, options.epochs, options.rate, options.clip_rate)


def _rank(options: Options, width: int) -> int:
    return options.rank or max(1, width // _WIDTH_PER_RANK)


def _digest(model: Any, recipe: Recipe, texts: Sequence[Texts]) -> str:
    """Return what tells one fit from another: the encoder's weights, how they are quantised and on what."""
    digest = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode())
    inside = [(name, value) for name, value in model.state_dict().items() if in_body(model, name)]
    for name, value in [*inside, *((name, value) for one in texts for name, value in one.inputs.items())]:
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _misfit(options: Options, matrices: list[tuple[int, int]], rank: int) -> str | None:
    """Say why these matrices cannot be quantised so."""
    if not matrices:
        return "its layers have no linear maps of their own to quantise; --method full and bias take any encoder"
    widths = sorted({columns for _, columns in matrices})
    if any(width % options.group for width in widths):
        common = math.gcd(*widths)
        fitting = [size for size in range(1, common + 1) if common % size == 0]
        best = sorted(sorted(fitting, key=lambda size: abs(math.log(size / options.group)))[:3])
        shown, given = ", ".join(map(str, widths)), " or ".join(map(str, best))
        return f"--apiq.group {options.group} does not divide the widths of its matrices ({shown}); {given} does"
    if rank > (least := min(min(shape) for shape in matrices)):
        return f"--apiq.rank {rank} is more than its smallest matrix can have; {least} at most, and few is the point"
    return None


def _stock_weights(model: Any) -> int:
    """Return how many weights the stock model has."""
    from latemask.evaluation.methods.quantized import quantized_in

    maps = quantized_in(model).values()
    added = sum(one.down.numel() + one.up.numel() for one in maps)
    packed = sum(one.in_features * one.out_features for one in maps)
    return packed - added + sum(weight.numel() for weight in model.parameters())
