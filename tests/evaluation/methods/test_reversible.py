"""What went into a layer is computed from what came out: exactly, with the same dropout, and little is kept."""

import pytest
import torch
from torch import nn

from latemask.evaluation.methods.reversible import Between, Coupling, back, forgetting, forth, random_state, storing

ROWS, LENGTH, WIDTH = 3, 5, 16


def half(seed, rate=0.0):
    """A function of states that changes them as much as a layer does, and its weights."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(rate))
    return layers.double()


def couplings(count, scales=(0.1, 1.0), swaps=True, rate=0.0):
    pairs = [(half(2 * number, rate), half(2 * number + 1, rate)) for number in range(count)]
    return [
        Coupling(first, second, tuple(first.parameters()), tuple(second.parameters()), *scales, swaps)
        for first, second in pairs
    ]


def states(seed=9, dtype=torch.float64):
    return torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def weights_of(layers):
    return [weight for layer in layers for weight in (*layer.first_weights, *layer.second_weights)]


def gradients(streams, layers, given, seed=5):
    """The gradients of all weights, and of what goes in, of one number that both streams matter for."""
    torch.manual_seed(seed)
    given = given.clone().requires_grad_()
    first, second = streams(layers, given)
    loss = (first.sin() * states(1)).sum() + (second * states(2)).sum()
    return torch.autograd.grad(loss, [given, *weights_of(layers)])


def same(ours, exact, tolerance):
    return all((one - other).norm() <= tolerance * other.norm() for one, other in zip(ours, exact, strict=True))


def through(anchors):
    return lambda layers, given: forgetting(layers, given, anchors)


SHAPES = [((0.1, 1.0), True), ((1.0, 0.1), True), ((0.1, 0.1), False)]


@pytest.mark.parametrize(("scales", "swaps"), SHAPES)
def test_a_layer_is_inverted_to_twelve_digits(scales, swaps):
    (layer,) = couplings(1, scales, swaps)
    with torch.no_grad():
        after = forth(layer, states(3), states(4), torch.float64)
    at = Between(states(5), states(6))
    at.first, at.second = after
    back(layer, at, torch.float64, random_state(at.first.device), random_state(at.first.device))
    assert (at.first - states(3)).abs().max() <= 1e-12
    assert (at.second - states(4)).abs().max() <= 1e-12


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("anchors", [1, 2, 4, 5, 9])
@pytest.mark.parametrize(("scales", "swaps"), SHAPES)
def test_gradients_are_autograds_wherever_the_anchors_are(scales, swaps, anchors, rate):
    layers = couplings(5, scales, swaps, rate)
    assert same(gradients(through(anchors), layers, states()), gradients(storing, layers, states()), 1e-6)


def test_both_ways_say_the_same_to_the_bit():
    layers = couplings(4, rate=0.3)
    found = []
    for way in (storing, through(2)):
        torch.manual_seed(3)
        found.append(way(layers, states()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_two_forward_passes_before_one_backward_have_their_own_dropout():
    layers = couplings(4, rate=0.3)

    def siamese(way):
        torch.manual_seed(8)
        anchor, positive = way(layers, states(6)), way(layers, states(7))
        loss = sum((one * other).sum() for one, other in zip(anchor, positive, strict=True))
        return torch.autograd.grad(loss, weights_of(layers))

    assert same(siamese(through(3)), siamese(storing), 1e-6)


def test_backward_leaves_random_numbers_as_it_found_them():
    layers = couplings(3, rate=0.3)
    drawn = []
    for way in (storing, through(2)):
        gradients(way, layers, states())
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


def saved_bytes(way, layers):
    """The bytes that are kept for the backward pass, each storage once; weights apart."""
    own = {weight.untyped_storage().data_ptr() for weight in weights_of(layers)}
    found = {}

    def pack(tensor):
        if (at := tensor.untyped_storage().data_ptr()) not in own:
            found[at] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = way(layers, states())
    del kept
    return sum(found.values())


def test_what_is_kept_grows_with_anchors_and_not_with_depth():
    ours = [saved_bytes(through(8), couplings(count)) for count in (2, 4, 8)]
    plain = [saved_bytes(storing, couplings(count)) for count in (2, 4, 8)]
    two_streams = 2 * states().nbytes
    assert ours == [two_streams] * 3
    assert plain[2] - plain[1] == 2 * (plain[1] - plain[0]) > 0
    assert saved_bytes(through(2), couplings(8)) == 4 * two_streams


def test_frozen_input_needs_no_gradient_and_frozen_weights_get_none():
    layers = couplings(2)
    first, second = forgetting(layers, states(), 1)
    (first + second).sum().backward()
    assert all(weight.grad is not None for weight in weights_of(layers))


def test_streams_in_fp32_would_be_too_inexact_and_ours_are_not(monkeypatch):
    """Eight layers at λ = 0.1 between fp32 states: the reason why streams are in fp64."""
    layers = couplings(8)
    for layer in layers:
        layer.first.float()
        layer.second.float()
    given = states(dtype=torch.float32)

    def error():
        exact, ours = gradients(storing, layers, given), gradients(through(8), layers, given)
        return max((one - other).norm() / other.norm() for one, other in zip(ours, exact, strict=True))

    assert error() <= 1e-4
    monkeypatch.setattr("latemask.evaluation.methods.reversible._wide", lambda given: torch.float32)
    assert error() > 1e-2


@pytest.mark.parametrize("anchors", [1, 4])
def test_mixed_precision_is_replayed_outside_of_it(anchors):
    layers = couplings(4, rate=0.2)
    for layer in layers:
        layer.first.float()
        layer.second.float()
    given = states(dtype=torch.float32)

    def mixed(way):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            first, second = way(layers, given)
        return torch.autograd.grad((first * second).sum(), weights_of(layers))

    assert same(mixed(through(anchors)), mixed(storing), 1e-2)


def test_no_weight_that_was_cast_without_gradients_is_remembered():
    layers = couplings(2)
    for layer in layers:
        layer.first.float()
        layer.second.float()
    with torch.autocast("cpu", torch.bfloat16):
        forgetting(layers, states(dtype=torch.float32), 1)
        first, second = storing(layers, states(dtype=torch.float32))
    (first * second).sum().backward()
    assert all(weight.grad is not None for weight in weights_of(layers))
