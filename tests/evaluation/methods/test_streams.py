"""Two streams go through the stock layers of every family: gradients are autograd's, and the start is the encoder's."""

import pytest
import torch
from torch import nn
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from latemask.evaluation.memory import PeakMemory
from latemask.evaluation.methods import freeze_encoder
from latemask.evaluation.methods.places import layers_of
from latemask.evaluation.methods.streams import PRE_NORM, StreamLayer, gradient_cosines, with_streams
from tests.evaluation.conftest import make_task

SCALES = {1: (0.1, 1.0), 2: (1.0, 0.1), 3: (0.1, 0.1)}
FAMILIES = [
    "modernbert", "bert", "roberta", "roberta-prelayernorm", "electra", "distilbert", "mpnet", "deberta-v2", "esm",
    "eurobert", "nomic_bert", "gte",
]  # fmt: skip
ROWS, LENGTH = 3, 12


def batch(seed=1):
    ids = torch.randint(5, 300, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    seen = torch.ones_like(ids)
    seen[0, LENGTH // 2 :] = 0
    return {"input_ids": ids, "attention_mask": seen, "labels": torch.arange(ROWS) % 2}


def with_dropout(model, rate):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in ("attention_dropout", "dropout"):  # some families keep a number for their attention
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)
    return model


@pytest.fixture
def streamed(stock):
    """Make a family's model of two streams, in training; the stock one beside it is in eval mode."""

    def make(family, variant=1, layers=3, anchors=2, scales=None, dropout=0.1, dtype=torch.float64):
        model = stock(family, layers).with_head(make_task(), 0)
        freeze_encoder(model)
        torch.manual_seed(4)
        model = with_streams(model, variant, 4, scales or SCALES[variant], anchors)
        with torch.no_grad():  # as after some training
            for layer in layers_of(model):
                for weight in layer.weights:
                    weight.add_(torch.randn_like(weight) * 0.05)
            if family in PRE_NORM:
                layers_of(model)[-1].alpha.fill_(0.3)
        return with_dropout(model, dropout).to(dtype).train()

    return make


def passage_of(model):
    return layers_of(model)[0].passage


def gradients(model, is_storing, loss=None, seed=6):
    """The gradients of all that is trained."""
    torch.manual_seed(seed)
    passage_of(model).is_storing = is_storing
    value = loss() if loss else model(**batch()).loss
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.autograd.grad(value, weights)


def worst(ours, exact):
    return max(
        float((one - other).norm() / other.norm().clamp_min(1e-30)) for one, other in zip(ours, exact, strict=True)
    )


@pytest.mark.parametrize("variant", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_autograds_with_dropout(streamed, family, variant):
    model = streamed(family, variant)
    exact = gradients(model, True)
    assert all(gradient.any() for gradient in exact)
    assert worst(gradients(model, False), exact) <= 1e-6


@pytest.mark.parametrize("variant", [1, 2, 3])
@pytest.mark.parametrize("family", ["modernbert", "roberta"])
def test_six_layers_in_fp64_and_two_in_fp32_are_as_exact_as_promised(streamed, family, variant):
    model = streamed(family, variant, layers=6, anchors={1: 6, 2: 6, 3: 3}[variant], dropout=0.0)
    assert worst(gradients(model, False), gradients(model, True)) <= 1e-6
    model = streamed(family, variant, layers=2, anchors=2, dropout=0.0, dtype=torch.float32)
    assert worst(gradients(model, False), gradients(model, True)) <= 1e-3


@pytest.mark.parametrize("family", ["modernbert", "roberta"])
def test_in_bf16_layers_are_given_the_very_bits_again(streamed, family):
    model = streamed(family, layers=4, anchors=4, dtype=torch.float32)
    seen = [[] for _ in layers_of(model)]
    for layer, notes in zip(layers_of(model), seen, strict=True):
        layer.beside.down.register_forward_pre_hook(lambda module, args, notes=notes: notes.append(args[0].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch()).loss
    loss.backward()
    for forward, again in seen:
        assert (forward.bfloat16() == again.bfloat16()).float().mean() >= 0.999
    assert min(gradient_cosines(model, lambda: in_bf16(model))) >= 0.999


def in_bf16(model):
    with torch.autocast("cpu", torch.bfloat16):
        return model(**batch()).loss


def test_anchor_and_positive_go_through_before_one_backward(streamed):
    model = streamed("roberta")

    def siamese():
        one, other = (model(**batch(seed)).logits for seed in (1, 2))
        return (one * other).sum()

    assert worst(gradients(model, False, siamese), gradients(model, True, siamese)) <= 1e-6


def following(model, monkeypatch):
    """The last state of the stream that follows the stock model, whatever is made of it behind the layers."""
    seen = []
    joined = StreamLayer._joined

    def noted(self, first, second):
        seen.append(first if self.passage.variant == 2 else second)
        return joined(self, first, second)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(StreamLayer, "_joined", noted)
        model(**batch())
    return seen[0]


@pytest.mark.parametrize("variant", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_adapters_a_stream_is_as_near_to_the_stock_model_as_the_scale_is_small(
    streamed, stock, family, variant, monkeypatch
):
    plain = stock(family).with_head(make_task(), 0).double().eval()
    seen = []
    layers_of(plain)[-1].register_forward_hook(lambda module, args, out: seen.append(out))
    plain(**batch())
    exact = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    errors = []
    for scale in (1e-3, 1e-4):
        model = streamed(family, variant, scales={1: (scale, 1), 2: (1, scale), 3: (scale, scale)}[variant]).eval()
        for layer in layers_of(model):
            for weight in layer.weights:
                weight.data.zero_()
        errors.append(float((following(model, monkeypatch) - exact.detach()).norm() / exact.detach().norm()))
    assert 0 < errors[0] < 0.05
    assert 5 < errors[0] / errors[1] < 20


def test_layers_keep_their_own_windows_and_rotations(monkeypatch):
    """A ModernBERT whose layers see windows of different kinds: what the layers are given is what stock hands them."""
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = ModernBertConfig(**sizes, intermediate_size=48, local_attention=4, global_attn_every_n_layers=2,
                              pad_token_id=1, global_rope_theta=1e4, local_rope_theta=1e2)  # fmt: skip
    torch.manual_seed(0)
    plain = ModernBertForSequenceClassification(config).double().eval()
    seen = []
    layers_of(plain)[-1].register_forward_hook(lambda module, args, out: seen.append(out))
    plain(**batch())
    freeze_encoder(plain)
    model = with_streams(plain, 1, 4, (1e-6, 1.0), 2).double()
    for layer in layers_of(model):
        for weight in layer.weights:
            weight.data.zero_()
    assert len({str(layer.attention_type) for layer in layers_of(model)}) == 2
    assert (following(model.eval(), monkeypatch) - seen[0]).norm() <= 1e-4 * seen[0].norm()


@pytest.mark.parametrize("variant", [1, 2, 3])
def test_before_a_final_norm_training_starts_from_the_stock_model_and_else_from_a_mean(
    streamed, stock, variant, monkeypatch
):
    scales = {1: (1e-6, 1), 2: (1, 1e-6), 3: (1e-6, 1e-6)}[variant]
    model = streamed("modernbert", variant, scales=scales).eval()
    for layer in layers_of(model):
        for weight in layer.weights:
            weight.data.zero_()
    layers_of(model)[-1].alpha.data.zero_()
    plain = stock("modernbert").with_head(make_task(), 0).double().eval()
    assert (model(**batch()).logits - plain(**batch()).logits).abs().max() <= 1e-4
    last = layers_of(streamed("roberta", variant))[-1]
    assert last._joined(torch.tensor(1.0), torch.tensor(4.0)) == 2.5


def test_adapters_stand_beside_the_feed_forward_and_behind_the_attention(streamed, stock):
    """By hand, from the pieces of stock layers that nothing was put into."""
    states = torch.randn(2, 5, 32, dtype=torch.float64)
    plain = layers_of(stock("roberta").with_head(make_task(), 0))[1].double().eval()
    ours = layers_of(streamed("roberta", 3, dropout=0.0))[1].eval()
    call = ours._coupling((), {})
    attended = plain.attention.output.dense(plain.attention.self(states)[0])
    by_hand = plain.attention.output.LayerNorm(attended + ours.other(attended) + states)
    assert torch.allclose(call.first(states), by_hand, atol=1e-12)
    wide = plain.output.dense(plain.intermediate(states))
    by_hand = plain.output.LayerNorm(wide + ours.beside(states) + states)
    assert torch.allclose(call.second(states), by_hand, atol=1e-12)
    plain = layers_of(stock("modernbert").with_head(make_task(), 0))[1].double().eval()
    ours = layers_of(streamed("modernbert", 3, dropout=0.0))[1].eval()
    normed = plain.mlp_norm(states)
    by_hand = states + plain.mlp(normed) + ours.beside(normed)
    turn = torch.ones(1, 5, 16, dtype=torch.float64), torch.zeros(1, 5, 16, dtype=torch.float64)
    call = ours._coupling((), {"position_embeddings": turn})
    assert torch.allclose(call.second(states), by_hand, atol=1e-12)
    attended, _ = plain.attn(plain.attn_norm(states), position_embeddings=turn)
    assert torch.allclose(call.first(states), states + attended + ours.other(attended), atol=1e-12)


def test_evaluation_says_the_same_and_keeps_nothing(streamed):
    model = streamed("modernbert", dropout=0.0)
    trained = model(**batch()).logits
    with torch.no_grad():
        plain = model.eval()(**batch()).logits
    assert torch.equal(trained, plain)
    assert trained.requires_grad
    assert not plain.requires_grad
    assert passage_of(model).couplings == []
    peaks = []
    for layers in (3, 9):
        model = streamed("modernbert", layers=layers, anchors=1).eval()
        with torch.no_grad(), PeakMemory(model.device) as memory:
            model(**batch())
        peaks.append(memory.peak)
    assert peaks[0] == peaks[1]


def test_a_pass_that_broke_off_leaves_nothing_behind(streamed):
    model = streamed("roberta")
    exact = gradients(model, True)
    layer = layers_of(model)[1]
    layer.passage.couplings.append(layer._coupling((), {}))  # as if the layers above had never been reached
    assert worst(gradients(model, False), exact) <= 1e-6


@pytest.mark.parametrize("family", ["modernbert", "roberta"])
def test_cosines_are_by_layer_and_tell_a_wrong_one(streamed, family):
    model = streamed(family, layers=4, anchors=4, dtype=torch.float32)
    assert gradient_cosines(model, lambda: model(**batch()).loss) == pytest.approx([1.0] * 4, abs=1e-3)
    for layer in layers_of(model):
        layer.scales = (1e-7, 1.0)  # too little of a stream is left
    cosines = gradient_cosines(model, lambda: model(**batch()).loss)
    assert cosines[-1] > 0.99
    assert cosines[0] < 0.9


def test_only_adapters_have_gradients_and_the_stock_weights_are_the_stock_ones(streamed, stock):
    model = streamed("roberta", dtype=torch.float32)
    model(**batch()).loss.backward()
    stock_weights = stock("roberta").with_head(make_task(), 0).state_dict()
    for name, weight in model.named_parameters():
        plain = name.replace(".stock.", ".")
        is_encoders = plain in stock_weights and plain.startswith("roberta.")
        assert (weight.grad is None) == is_encoders
        assert plain not in stock_weights or torch.equal(weight, stock_weights[plain])
