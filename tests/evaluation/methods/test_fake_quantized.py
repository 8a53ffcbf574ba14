"""The grid's arithmetic, against the formulas written out."""

import math

import numpy as np
import pytest
import torch

from latemask.evaluation.methods.fake_quantized import Fitted, fake_quantized, loftq
from latemask.evaluation.methods.quantized import Shape


def weights(seed=0, rows=6, columns=32):
    """A matrix with a few large entries, as trained ones have."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, columns, generator=generator) * 0.1
    found[torch.rand(rows, columns, generator=generator) < 0.02] *= 6
    return found


def linear(weight, bias=True):
    stock = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    stock.weight.data = weight.clone()
    return stock.requires_grad_(False)


def fitted(weight, bits=2, group=8, rank=2, scale=1.0, seed=0, **given):
    return Fitted(linear(weight), Shape(bits, group, rank, scale), torch.Generator().manual_seed(seed), **given)


def test_many_bits_and_nothing_beside_change_nothing():
    weight = 10 * weights()
    x = torch.randn(5, 32)
    one = fitted(weight, bits=16, clip=math.inf)
    off = (one(x) - torch.nn.functional.linear(x, weight, one.bias)).abs().max()
    assert off < 2e-3 * weight.abs().max()  # a scale has 11 bits
    assert not torch.equal(one.on_grid()[0].flatten(1), weight)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_before_learning_the_codes_are_those_of_the_formula_at_a_clip_of_sigma_4(bits):
    weight = weights()
    found, codes, scales, zeros = (one.detach().numpy() for one in fitted(weight, bits).on_grid())
    clip, most = 1 / (1 + math.exp(-4)), 2**bits - 1
    for row in range(6):
        for group in range(4):
            part = weight[row, 8 * group : 8 * group + 8].numpy().astype(np.float64)
            top, bottom = clip * max(part.max(), 0), clip * min(part.min(), 0)
            step = np.float64(np.float16(np.clip((top - bottom) / most, 1e-5, 1e4)))
            zero = round(-bottom / step)
            code = np.clip(np.round(part / step) + zero, 0, most)
            assert scales[row, group, 0] == step
            assert zeros[row, group, 0] == zero
            assert np.array_equal(codes[row, group], code)
            assert np.allclose(found[row, group], (code - zero) * step, atol=1e-6)


def test_ranges_learn_through_the_scale_as_the_hand_says():
    groups = weights().unflatten(1, (4, 8))
    high, low = (torch.full((6, 4, 1), value, requires_grad=True) for value in (2.0, 1.5))
    found, codes, scales, zeros = fake_quantized(groups, high.sigmoid(), low.sigmoid(), 3)
    weigh = torch.randn_like(found)
    (weigh * found).sum().backward()
    steps = groups / scales
    inside = (steps.round() + zeros == codes).detach()
    assert 0 < (~inside).sum() < inside.sum()
    by_scale = torch.where(inside, steps.round() - steps, codes - zeros)  # dŵ/ds; of w/s the rounding passes, of z none
    of_scale = (weigh * by_scale).sum(-1, keepdim=True).detach()
    slope_high, slope_low = (value.sigmoid() * (1 - value.sigmoid()) for value in (high.detach(), low.detach()))
    wanted_high = of_scale * groups.amax(-1, keepdim=True) * slope_high / 7
    wanted_low = -of_scale * groups.amin(-1, keepdim=True) * slope_low / 7
    assert torch.allclose(high.grad, wanted_high, rtol=1e-4, atol=1e-7)
    assert torch.allclose(low.grad, wanted_low, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("sign", [1, -1])
def test_weights_of_one_sign_keep_a_zero_point_that_is_a_code(sign):
    weight = sign * (weights().abs() + 0.5)
    found, codes, scales, zeros = fitted(weight).on_grid()
    assert ((found.flatten(1) - weight).abs() <= 0.6 * scales.max()).all()
    assert set(zeros.flatten().tolist()) == ({0.0} if sign > 0 else {3.0})
    assert codes.min() >= 0
    assert codes.max() <= 3
    assert (sign * found >= 0).all()


def test_a_group_of_zeros_stays_zero():
    assert not fitted(torch.zeros(2, 16)).on_grid()[0].any()


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("columns", [24, 32, 40])
def test_the_packed_map_does_what_the_fake_one_did(bits, columns):
    one = fitted(weights(columns=columns), bits, scale=0.5)
    with torch.no_grad():
        one.up.add_(torch.randn_like(one.up))
        one.high.add_(torch.randn_like(one.high))
        one.low.sub_(torch.randn_like(one.low))
    x = torch.randn(3, 7, columns)
    packed = one.frozen()
    assert torch.equal(packed.weight, one.on_grid()[0].flatten(1))
    assert (packed(x) - one(x)).abs().max() < 1e-5


def test_what_loftq_puts_beside_is_what_the_codes_leave():
    weight = weights(rows=24)
    for scale in (1.0, 0.25):
        stock, shape = linear(weight), Shape(2, 8, 4, scale)
        found = loftq(stock, shape, torch.Generator()).frozen()
        nearest = fitted(weight, rank=4, clip=math.inf).frozen()
        left = weight - found.weight
        beside = scale * found.up.detach() @ found.down.detach()
        values = torch.linalg.svdvals(left)
        assert (left - beside).norm() == pytest.approx(float(values[4:].norm()), rel=1e-3)  # the best of that rank
        assert (left - beside).norm() < (weight - nearest.weight).norm()
