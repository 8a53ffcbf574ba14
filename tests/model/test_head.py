"""The head: the chunked loss and all its gradients are those of the plain form."""

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from latemask.model import head as head_module
from latemask.model.head import HalfPrecisionLoss, PredictionHead


def test_the_chunked_loss_and_its_gradients_equal_the_plain_ones(monkeypatch):
    monkeypatch.setattr(head_module, "CHUNK_ROWS", 7)
    torch.manual_seed(0)
    head = PredictionHead(16, 50)
    torch.nn.init.normal_(head.bias)
    states = torch.randn(3, 11, 16, requires_grad=True)
    words = torch.randn(50, 16, requires_grad=True)
    labels = torch.randint(0, 50, (3, 11))
    inputs = (states, words, *head.parameters())

    chunked = head.loss(states, words, labels)
    plain = F.cross_entropy(head.logits(states, words).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(chunked, plain)
    for ours, theirs in zip(torch.autograd.grad(chunked, inputs), torch.autograd.grad(plain, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def largest_allocation(head, states, words, labels) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        head.loss(states, words, labels).backward()
    return max(event.self_cpu_memory_usage for event in watched.events())


def test_all_logits_are_never_in_memory_at_once(monkeypatch):
    monkeypatch.setattr(head_module, "CHUNK_ROWS", 64)
    head, words = PredictionHead(16, 1000), torch.randn(1000, 16, requires_grad=True)
    states, labels = torch.randn(8, 128, 16, requires_grad=True), torch.zeros(8, 128, dtype=torch.long)
    all_logits = states.shape[0] * states.shape[1] * 1000 * 4
    assert largest_allocation(head, states, words, labels) <= all_logits / 8
    monkeypatch.setattr(head_module, "CHUNK_ROWS", 1024)  # the measure itself can see them
    assert largest_allocation(head, states, words, labels) >= all_logits


def test_in_mixed_precision_the_loss_and_its_gradients_stay_close():
    torch.manual_seed(0)
    head = PredictionHead(64, 500)
    states, words = torch.randn(4, 32, 64, requires_grad=True), (0.1 * torch.randn(500, 64)).requires_grad_()
    labels = torch.randint(0, 500, (4, 32))
    exact = head.loss(states, words, labels)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head.loss(states, words, labels)
    assert mixed.dtype == torch.float32  # in bf16 a loss of 6 would have two digits
    torch.testing.assert_close(mixed, exact, rtol=1e-3, atol=0)
    ours, theirs = (torch.autograd.grad(loss, words)[0] for loss in (mixed, exact))
    assert ours.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.99


def half_precision_parts():
    torch.manual_seed(0)
    features, words, bias = torch.randn(1300, 64), torch.randn(3000, 64) * 0.5, torch.randn(3000) * 0.1
    rounded = (features.bfloat16(), words.bfloat16(), bias)
    return [part.float().requires_grad_() for part in rounded], torch.randint(3000, (1300,))


def test_in_half_precision_the_loss_is_exact_though_the_products_are_not():
    (features, words, bias), labels = half_precision_parts()
    products = F.linear(features.bfloat16(), words.bfloat16())
    exact = F.cross_entropy(products.double() + bias.double(), labels)
    ours = HalfPrecisionLoss.apply(features, words, bias, labels, torch.bfloat16)
    assert ours.dtype is torch.float32
    assert ours.item() == pytest.approx(exact.item(), abs=1e-4)
    narrow = [part.bfloat16() for part in (features, words, bias)]
    torchs = F.linear_cross_entropy(
        *narrow[:2],
        labels,
        linear_bias=narrow[2],
        options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=512),
    )
    assert abs(torchs.item() - exact.item()) > 1e-3  # or ours is not needed any more


@pytest.mark.parametrize("piece", [700, 8192])  # of 3,000 words: in uneven pieces, or at once
def test_in_half_precision_the_gradients_are_those_of_the_plain_loss(piece, monkeypatch):
    monkeypatch.setattr(head_module, "PIECE_WORDS", piece)
    (features, words, bias), labels = half_precision_parts()
    plain = [part.detach().float().requires_grad_() for part in (features, words, bias)]
    (3 * F.cross_entropy(F.linear(*plain), labels)).backward()
    (3 * HalfPrecisionLoss.apply(features, words, bias, labels, torch.bfloat16)).backward()
    for ours, theirs in zip((features, words, bias), plain, strict=True):
        assert ours.grad.dtype is torch.float32
        assert (ours.grad.float() - theirs.grad).norm() < 0.01 * theirs.grad.norm()


def test_in_half_precision_a_label_that_seems_impossible_has_a_finite_loss():
    features, words = torch.ones(1, 8), torch.zeros(3, 8)
    bias = torch.tensor([0.0, 300.0, 1.0])
    loss = HalfPrecisionLoss.apply(features, words, bias, torch.tensor([0]), torch.bfloat16)
    assert loss.item() == pytest.approx(300.0)


def test_in_half_precision_nobody_goes_back_twice_and_gets_something_else():
    (features, words, bias), labels = half_precision_parts()
    loss = HalfPrecisionLoss.apply(features, words, bias, labels, torch.bfloat16)
    (3 * loss).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def mixed_precision_loss(learns: bool) -> tuple[float, float, float]:
    """The head's loss in bf16, and what it is exactly with products in bf16 and in fp32."""
    torch.manual_seed(0)
    head, words = PredictionHead(32, 500), torch.randn(500, 32)
    torch.nn.init.normal_(head.bias, std=5)
    states, labels = torch.randn(8, 40, 32), torch.randint(500, (8, 40))
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(learns):
        ours = head.loss(states, words, labels)
        features = head.features(states)
    assert ours.dtype is torch.float32
    products = [F.linear(features.to(number), words.to(number)).double() for number in (torch.bfloat16, torch.float32)]
    exact = [F.cross_entropy((part + head.bias).flatten(0, 1), labels.flatten()).item() for part in products]
    return ours.item(), *exact


def test_while_learning_the_loss_is_that_of_its_products_to_four_digits():
    ours, in_half, _ = mixed_precision_loss(learns=True)
    assert ours == pytest.approx(in_half, abs=1e-4)


def test_what_is_only_looked_at_is_computed_in_fp32_whatever_the_precision():
    ours, in_half, exact = mixed_precision_loss(learns=False)
    assert ours == pytest.approx(exact, abs=1e-5)
    assert abs(in_half - exact) > 1e-4  # or it would make no difference
