"""What a step takes is counted in bytes of tensors that are alive at once: no allocator's habits, no other process."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from latemask.evaluation.memory import PeakMemory
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import prepare_task, run_trial
from tests.evaluation.conftest import make_task

CPU = torch.device("cpu")
SIDE, FLOAT = 64, 4
MATRIX = SIDE * SIDE * FLOAT


def deep(weight, layers, through=lambda layer, states: layer(states)):
    states = torch.ones(SIDE, SIDE, requires_grad=True)
    for _ in range(layers):
        states = through(lambda before: (before @ weight).tanh(), states)
    return states.sum()


def test_it_is_the_most_that_was_alive_at_once_views_and_weights_apart():
    weight = torch.ones(SIDE, SIDE)
    with PeakMemory(CPU) as memory:
        first = weight + 1
        assert memory.peak == MATRIX
        second = (first + weight).view(-1)[None]
        del first
        third = second * 2
    assert memory.peak == 2 * MATRIX
    assert third.sum() == 6 * SIDE * SIDE


def test_what_is_written_in_place_was_there_before():
    weight = torch.ones(SIDE, SIDE)
    with PeakMemory(CPU) as memory:
        weight.add_(1).mul_(2)
    assert memory.peak == 0


def test_a_backward_pass_needs_what_every_layer_made_and_checkpointing_needs_less():
    weight = torch.ones(SIDE, SIDE, requires_grad=True)
    peaks = {}
    for name, layers, through in [
        ("4 layers", 4, lambda layer, states: layer(states)),
        ("12 layers", 12, lambda layer, states: layer(states)),
        ("12 layers again", 12, lambda layer, states: checkpoint(layer, states, use_reentrant=False)),
    ]:
        weight.grad = None
        with PeakMemory(CPU) as memory:
            deep(weight, layers, through).backward()
        peaks[name] = memory.peak
    assert peaks["12 layers"] - peaks["4 layers"] == 8 * MATRIX
    assert peaks["12 layers again"] <= peaks["12 layers"] + 3 * MATRIX  # one product and its gradient more, at most


def test_measuring_changes_nothing():
    weight = torch.rand(SIDE, SIDE, requires_grad=True)
    deep(weight, 3).backward()
    plain, weight.grad = weight.grad, None
    with PeakMemory(CPU):
        deep(weight, 3).backward()
    assert torch.equal(plain, weight.grad)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["full", "bias"])
def test_checkpointing_changes_memory_and_nothing_else(encoder, method, precision):
    """A trial with dropout in it, so that what is computed again must draw the same."""
    encoder.config.hidden_dropout_prob = encoder.config.mlp_dropout = 0.1
    task, found = make_task(), {}
    for checkpointing in (False, True):
        protocol = Protocol(epochs=1, batch_size=16, precision=precision, method=method, checkpointing=checkpointing)
        found[checkpointing] = run_trial(prepare_task(encoder, task, protocol), 1e-2, seed=0)[0]
    assert found[True].loss == found[False].loss
    assert found[True].score == found[False].score
    assert 0 < found[True].step_bytes < found[False].step_bytes


def test_a_record_says_what_was_trained_and_what_is_stored(encoder):
    protocol = Protocol(epochs=1, batch_size=16, precision="fp32")
    full = run_trial(prepare_task(encoder, make_task(), protocol), 1e-3, seed=0)[0]
    assert full.trained_weights == encoder.plain().num_parameters()
    assert full.stored_bytes == FLOAT * full.trained_weights
    bias = Protocol(epochs=1, batch_size=16, precision="fp32", method="bias")
    few = run_trial(prepare_task(encoder, make_task(), bias), 1e-3, seed=0)[0]
    flat = sum(weight.numel() for weight in encoder.plain().parameters() if weight.dim() == 1)
    assert (few.trained_weights, few.stored_bytes) == (flat, FLOAT * flat)
