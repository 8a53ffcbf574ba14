"""bf16 where the machine has it, and attention kernels that are fast in it."""

import pytest
import torch
from torch.nn import functional as F

from latemask.ground.errors import UserError
from latemask.ground.precision import attention_kernels, mixed_precision, precision_name

CPU = torch.device("cpu")


@pytest.fixture
def cpu(monkeypatch):
    """Return a function that says what the CPU has."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return lambda **found: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)


@pytest.mark.parametrize(("has", "kind", "name"), [(True, torch.bfloat16, "bf16"), (False, None, "fp32")])
def test_auto_takes_bf16_where_the_cpu_has_instructions_for_it(cpu, has, kind, name):
    cpu(avx512_bf16=has)
    assert mixed_precision("auto") is kind
    assert precision_name("auto") == name
    assert precision_name("fp32") == "fp32"
    assert precision_name("bf16") == "bf16"


def test_a_cpu_that_torch_knows_nothing_of_computes_in_fp32(cpu):
    cpu()
    assert mixed_precision("auto") is None


def test_fp16_needs_a_gpu(cpu):
    cpu(avx512_bf16=True)
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        mixed_precision("fp16")


def backward_of_attention(context) -> str:
    """Return the name of the backward pass of attention in bf16."""
    states = torch.randn(2, 3, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    with context:
        return F.scaled_dot_product_attention(states, states, states).grad_fn.name()


@pytest.mark.parametrize(
    ("device", "kind", "length", "plain"),
    [
        ("cpu", torch.bfloat16, 128, True),
        ("cpu", torch.bfloat16, 512, False),  # too many scores
        ("cpu", None, 128, False),
        ("cuda", torch.bfloat16, 128, False),
    ],
)
def test_short_rows_in_bf16_on_a_cpu_attend_by_plain_products(device, kind, length, plain):
    name = backward_of_attention(attention_kernels(torch.device(device), kind, length))
    assert ("Flash" not in name) == plain
    assert "Flash" in backward_of_attention(attention_kernels(CPU, None, 128))  # and nothing is left behind


def test_plain_products_stay_in_bf16_and_close_to_the_fused_kernel():
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, 3, 64, 32, dtype=torch.bfloat16) for _ in range(3))
    fused = F.scaled_dot_product_attention(queries, keys, values)
    with attention_kernels(CPU, torch.bfloat16, 64):
        assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
        plain = F.scaled_dot_product_attention(queries, keys, values)
    torch.testing.assert_close(plain, fused, atol=0.02, rtol=0.02)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before
