"""A quantised map trains what is beside it, keeps its codes, and keeps no unpacked weights for the way back."""

import math

import pytest
import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

from latemask import UserError
from latemask.evaluation.methods.places import linears_of
from latemask.evaluation.methods.quantized import QuantizedLinear, Shape, half, load_quantized
from tests.evaluation.methods.test_fake_quantized import fitted, weights


def made(bits=2, columns=32, rows=6):
    one = fitted(weights(rows=rows, columns=columns), bits).frozen()
    torch.nn.init.normal_(one.up)
    return one


def test_gradients_are_those_of_the_unpacked_weights():
    one, x = made(), torch.randn(5, 32, requires_grad=True)
    plain = x.detach().clone().requires_grad_()
    weight = one.weight + (half(one.up) @ half(one.down)).detach()
    (one(x) ** 2).sum().backward()
    (torch.nn.functional.linear(plain, weight, one.bias) ** 2).sum().backward()
    assert torch.allclose(x.grad, plain.grad, rtol=1e-4, atol=1e-4)
    assert one.up.grad.abs().sum() > 0
    assert one.down.grad.abs().sum() > 0
    assert one.bias.grad is None


def test_nothing_as_large_as_the_weights_is_kept_for_the_way_back():
    one, sizes = made(rows=200, columns=256), []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t)
    with keep:
        one(torch.randn(3, 256, requires_grad=True)).sum().backward()
    assert sizes
    assert max(sizes) < 200 * 256 / 8


def test_bf16_training_gives_gradients_in_the_types_of_what_they_are_for():
    one, x = made(), torch.randn(5, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = one(x)
        assert y.dtype == torch.bfloat16
        (y.float() ** 2).sum().backward()
    assert x.grad.dtype == one.up.grad.dtype == torch.float32
    plain = x.detach().clone().requires_grad_()
    (one(plain) ** 2).sum().backward()
    assert (x.grad - plain.grad).norm() < 0.02 * plain.grad.norm()


def test_what_counts_of_the_low_rank_part_is_what_fp16_can_say_of_it():
    one, x = made(), torch.randn(5, 32)
    with torch.no_grad():
        one.up.mul_(1.0001)
        before = one(x)
        one.up.copy_(one.up.half())
        one.down.copy_(one.down.half())
        assert torch.equal(one(x), before)


@pytest.mark.parametrize("value", [0.0, 1e-9, 4e-8, 6e-8, 0.1, 1 / 3, 2049.0, -60000.1])
def test_rounding_to_half_is_exact_and_passes_the_gradient(value):
    given = torch.tensor([value, -value], requires_grad=True)
    found = half(given)
    assert torch.equal(found, given.detach().half().float())
    found.sum().backward()
    assert given.grad.tolist() == [1, 1]


def stored_share(model, bits, rank):
    """The bytes of a model's quantised maps, of those in fp16."""
    found = whole = 0
    for _, stock in linears_of(model):
        with torch.device("meta"):
            one = QuantizedLinear(stock.in_features, stock.out_features, True, Shape(bits, 64, rank, 1.0))
        tensors = {name: value for name, value in one.state_dict().items() if name != "bias"}
        size = {name: 2 if name in ("up", "down") else value.element_size() for name, value in tensors.items()}
        assert one.stored_bytes() == sum(size[name] * value.numel() for name, value in tensors.items())
        found, whole = found + one.stored_bytes(), whole + 2 * stock.weight.numel()
    return found / whole


def test_at_two_bits_a_small_roberta_takes_a_fifth_of_its_matrices_in_fp16():
    config = RobertaConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    with torch.device("meta"):
        model = RobertaForSequenceClassification(config)
    by_hand = (2 + (16 + 8) / 64 + 16 * 4 * (4 * 2 * 192 + 2 * 960) / (12 * 192 * 192)) / 16
    assert stored_share(model, 2, 4) == pytest.approx(by_hand)
    assert stored_share(model, 2, 4) <= 0.2
    assert math.isclose(stored_share(model, 4, 4) - stored_share(model, 2, 4), 2 / 16)


def test_a_folder_without_the_file_is_a_line(tmp_path):
    with pytest.raises(UserError, match=r"has no quantized\.safetensors: it is no model of apiq"):
        load_quantized(tmp_path)
