"""What training steps compute in on this machine, and with which of torch's attention kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from latemask.ground.errors import UserError

# The fused attention for CPUs has a slow backward pass in bf16. Plain products are faster, but keep a score for every
# pair of positions: rows of up to so many take them.
SHORT_ROWS = 256


def mixed_precision(asked: str) -> torch.dtype | None:
    """Return what the steps compute in, if that is not fp32."""
    if asked == "fp16" and not torch.cuda.is_available():
        raise UserError("train.precision fp16 needs a GPU; use auto, fp32 or bf16")
    if asked == "fp16":
        return torch.float16
    if asked == "bf16" or (asked == "auto" and _has_bf16()):
        return torch.bfloat16
    return None


def precision_name(asked: str) -> str:
    """Return what the steps compute in, as a recipe calls it."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16", None: "fp32"}[mixed_precision(asked)]


def _has_bf16() -> bool:
    """Whether the device has instructions for bf16: without them a CPU is slower in it than in fp32."""
    if torch.accelerator.is_available():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return what autocast computes products in, if it is on; torch's meta device, which only counts, has none."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which what is in fp32 stays in it."""
    is_there = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if is_there else nullcontext()


def attention_kernels(device: torch.device, dtype: torch.dtype | None, length: int) -> AbstractContextManager[None]:
    """Return a context in which attention over rows of `length` is as fast as it can be."""
    if device.type == "cpu" and dtype is torch.bfloat16 and length <= SHORT_ROWS:
        return _plain_products()
    return nullcontext()


@contextmanager
def _plain_products() -> Iterator[None]:
    """Attend by plain matrix products, in bf16 as the rest; by default torch would go back to fp32 for them."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # not about CUDA alone
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
