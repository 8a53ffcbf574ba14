"""Linear maps of few bits with a low-rank part beside them, and the folder of a model that has them.

    from latemask.evaluation.methods.quantized import load_quantized

    model = load_quantized("finetuned/o/model")

A group of weights of a row shares a scale s (fp16) and a zero point z (a code, and not that minus one, as AutoGPTQ had
it: 0 must have its place): a weight is (code − z)·s. Weights stay packed in memory; those of a map are unpacked when it
is run, and forgotten: for training, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from latemask.evaluation.methods import in_body
from latemask.evaluation.methods.packing import packed, unpacked, words_for
from latemask.ground.console import one_line, printable
from latemask.ground.errors import UserError

QUANTIZED = "quantized.safetensors"
_SHAPE = "quantized"  # in the file's metadata


@dataclass(frozen=True)
class Shape:
    """What all quantised maps of a model have in common."""

    bits: int
    group: int
    rank: int
    scale: float
    """Of the low-rank part: alpha / rank."""


def half(value: Tensor) -> Tensor:
    """Round to what fp16 can say; the gradient passes. The difference has no error of its own, so neither has the sum.

    fp32 goes in and comes out.
    """
    return value + (value.half().float() - value).detach()


class QuantizedLinear(nn.Module):
    """y = x·Ŵᵀ + bias + scale·(x·downᵀ)·upᵀ: packed Ŵ and bias are frozen, the two thin matrices are trained."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor

    def __init__(self, columns: int, rows: int, has_bias: bool, shape: Shape):
        super().__init__()
        self.in_features, self.out_features, self.shape = columns, rows, shape
        words, groups = words_for(columns, shape.bits), columns // shape.group
        self.register_buffer("codes", torch.zeros(rows, words, dtype=torch.int32))
        self.register_buffer("scales", torch.zeros(rows, groups, dtype=torch.float16))
        self.register_buffer("zeros", torch.zeros(rows, groups, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(rows), requires_grad=False) if has_bias else None
        self.down = nn.Parameter(torch.zeros(shape.rank, columns))
        self.up = nn.Parameter(torch.zeros(rows, shape.rank))

    def fill(self, codes: Tensor, scales: Tensor, zeros: Tensor) -> None:
        """Take the codes [rows, columns] of the weights, and what each group of them shares [rows, groups]."""
        self.codes, self.scales = packed(codes, self.shape.bits), scales.half()
        self.zeros = zeros.to(torch.uint8)

    @property
    def weight(self) -> Tensor:
        """Ŵ in fp32, made anew; without the low-rank part."""
        codes = unpacked(self.codes, self.shape.bits, self.in_features).unflatten(1, (-1, self.shape.group))
        return ((codes - self.zeros[..., None].float()) * self.scales[..., None].float()).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """[…, columns] → […, rows]. What is stored of the thin matrices, fp16, is what counts in training already."""
        beside = linear(linear(x, half(self.down)), half(self.up) * self.shape.scale, self.bias)
        return _FrozenMap.apply(x, self) + beside

    def stored_bytes(self) -> int:
        """Return what a file keeps of it, without the bias, which was there before."""
        low_rank = 2 * (self.down.numel() + self.up.numel())
        return low_rank + sum(one.numel() * one.element_size() for one in (self.codes, self.scales, self.zeros))


class _FrozenMap(torch.autograd.Function):
    """x·Ŵᵀ that keeps no Ŵ for the way back: it is unpacked there once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: QuantizedLinear) -> Tensor:
        ctx.module, ctx.dtype = module, x.dtype
        return linear(x, module.weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (of_y,) = gradients  # in bf16 where autocast made y so
        return (of_y @ ctx.module.weight.to(of_y.dtype)).to(ctx.dtype), None


def quantized_in(model: Any) -> dict[str, QuantizedLinear]:
    """Return the quantised maps of a model, by name."""
    return {name: one for name, one in model.named_modules() if isinstance(one, QuantizedLinear)}


def round_frozen(model: Any) -> None:
    """Round to fp16 what stays as it is: embeddings, norms, biases. Training and scores then see what is stored."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if in_body(model, name) and not weight.requires_grad:
                weight.copy_(weight.half())


def state_of(model: Any) -> dict[str, Tensor]:
    """Return what is stored of a model: of the encoder all numbers in fp16 beside the codes, the head as it is."""
    weights = dict(model.named_parameters())
    kept = {}
    for name, value in model.state_dict().items():
        is_half = name in weights and in_body(model, name)
        kept[name] = (value.half() if is_half else value.clone()).cpu().contiguous()
    return kept


def serialized(model: Any) -> bytes:
    """Return the file of a model with quantised maps."""
    from safetensors.torch import save

    shape = next(iter(quantized_in(model).values())).shape
    return save(state_of(model), metadata={"format": "pt", _SHAPE: json.dumps(asdict(shape))})


def load_quantized(folder: str | Path) -> Any:
    """Open the folder of a fine-tuned model with quantised maps, ready to answer; nothing is unpacked to stay."""
    from latemask.model.stock import stock_config

    path = Path(folder) / QUANTIZED
    if not path.is_file():
        raise UserError(f"{printable(str(folder))} has no {QUANTIZED}: it is no model of apiq, or not all of it")
    config = stock_config(str(folder))
    try:
        return _loaded(config, path)
    except Exception as error:  # safetensors, json and load_state_dict raise many kinds for a damaged file
        reason = f"it does not fit config.json, or is damaged ({one_line(error)})"
        raise UserError(f"{printable(str(path))} cannot be opened: {reason}; fine-tune again") from None


def _loaded(config: Any, path: Path) -> Any:
    from accelerate import init_empty_weights
    from safetensors import safe_open
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    with safe_open(path, "pt") as file:
        shape = Shape(**json.loads(file.metadata()[_SHAPE]))
    state = load_file(path)
    is_tagger = config.architectures[0].endswith("ForTokenClassification")
    auto_class = AutoModelForTokenClassification if is_tagger else AutoModelForSequenceClassification
    with init_empty_weights(include_buffers=False):  # the stock weights, which go, never take memory
        model = auto_class.from_config(config, dtype=torch.float32)
        for name in [key.removesuffix(".codes") for key in state if key.endswith(".codes")]:
            stock = model.get_submodule(name)
            shell = QuantizedLinear(stock.in_features, stock.out_features, stock.bias is not None, shape)
            model.set_submodule(name, shell)
    weights = {name for name, _ in model.named_parameters()}
    whole = {name: value.float() if name in weights else value for name, value in state.items()}
    model.load_state_dict(whole, assign=True)
    return model.eval()
