"""The step and the loop: what is no number is never applied, and a loss does not depend on how rows are grouped."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.parallel import DataParallel, DistributedDataParallel

from latemask.ground.processes import idle_devices
from latemask.masking.batches import Batch
from latemask.model import build_model, complete_recipe
from latemask.recipe import EncoderRecipe
from latemask.training import loop as loop_module
from latemask.training.job import can_compile
from latemask.training.loop import Loop, NonFinite
from latemask.training.optimizers import decay_groups
from tests.conftest import FAMILIES, VOCABULARY, joining, make_batch, make_rows, tiny_recipe

CPU = torch.device("cpu")


def make_loop(steps: int = 10, **changes) -> Loop:
    recipe = complete_recipe(tiny_recipe(**changes), VOCABULARY)
    torch.manual_seed(0)
    return Loop(recipe, steps, build_model(recipe, VOCABULARY), CPU)


def batch(rows: int = 4, seed: int = 0) -> Batch:
    return make_batch(tiny_recipe(), make_rows(rows, seed=seed))


def poisoned(loop: Loop, at: int) -> None:
    """Make the gradient of one step no number."""
    loss = loop.model.predict

    def predict(states, labels):
        output = loss(states, labels)
        output.loss = output.loss * (math.nan if loop.done == at else 1.0)
        return output

    loop.model.predict = predict


def test_a_gradient_that_is_no_number_is_named_and_touches_no_weight():
    loop = make_loop()
    poisoned(loop, at=2)
    loop.step([batch()])
    loop.step([batch()])
    before = [weight.clone() for weight in loop.model.parameters()]
    with pytest.raises(NonFinite, match="the gradient is nan at step 3"):
        loop.step([batch()])
    assert all(torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))


def test_where_nobody_looks_at_once_neither_it_nor_what_follows_is_applied(monkeypatch):
    """As on a GPU, which is not asked after every step."""
    loop = make_loop()
    monkeypatch.setattr(loop, "device", torch.device("meta"))  # no CPU, as far as looking goes
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    monkeypatch.setattr(loop, "computing", lambda: torch.autocast("cpu", enabled=False))
    poisoned(loop, at=2)
    loop.step([batch()])
    loop.step([batch()])
    before = [weight.clone() for weight in loop.model.parameters()]
    for _ in range(3):
        loop.step([batch()])
    assert all(torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))
    with pytest.raises(NonFinite, match="the gradient is nan at step 3") as found:
        loop.logged()
    assert found.value.step == 3


def test_a_gpu_is_asked_now_and_then_all_the_same(monkeypatch):
    loop = make_loop(steps=100)
    monkeypatch.setattr(loop_module, "LOOK_EVERY", 5)
    monkeypatch.setattr(loop, "device", torch.device("meta"))
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    monkeypatch.setattr(loop, "computing", lambda: torch.autocast("cpu", enabled=False))
    poisoned(loop, at=1)
    for _ in range(5):
        loop.step([batch()])
    with pytest.raises(NonFinite, match="at step 2"):
        loop.step([batch()])


def test_an_optimizer_that_cannot_look_for_itself_is_looked_after(monkeypatch):
    monkeypatch.setitem(
        loop_module.OPTIMIZERS, "plain", lambda model, train: torch.optim.SGD(model.parameters(), lr=1.0)
    )
    loop = make_loop(train=replace(tiny_recipe().train, optimizer="plain"))
    monkeypatch.setattr(loop, "device", torch.device("meta"))
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    monkeypatch.setattr(loop, "computing", lambda: torch.autocast("cpu", enabled=False))
    poisoned(loop, at=0)
    before = [weight.clone() for weight in loop.model.parameters()]
    with pytest.raises(NonFinite):
        loop.step([batch()])
    assert all(torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True))


def test_a_validation_loss_does_not_depend_on_how_its_rows_are_grouped():
    loop, rows = make_loop(), make_rows(7)
    parts = [slice(0, 3), slice(3, 5), slice(5, 7)]
    whole = loop.validate([(make_batch(tiny_recipe(), rows), 7)])
    every = make_batch(tiny_recipe(), rows)
    pieces = [(Batch({name: value[part] for name, value in every.items()}), part.stop - part.start) for part in parts]
    assert loop.validate(pieces) == pytest.approx(whole, abs=1e-6)
    assert loop.validate([*pieces, (batch(3, seed=9), 0)]) == pytest.approx(whole, abs=1e-6)


def test_accumulated_rows_are_one_batch():
    one, two = make_loop(), make_loop()
    every = batch(8)
    for _ in range(3):
        one.step([every])
        two.step([Batch({name: value[part] for name, value in every.items()}) for part in (slice(0, 4), slice(4, 8))])
    assert two.logged()["loss"] == pytest.approx(one.logged()["loss"], rel=1e-5)


@pytest.mark.skipif(not can_compile(), reason="there is no C++ compiler here")
@pytest.mark.parametrize(("objective", "backend"), [("late", "aot_eager"), ("early", "inductor")])
def test_compiled_in_one_graph_once_it_learns_what_it_does_uncompiled(objective, backend, monkeypatch):
    """The graph is ours to keep whole. The C++ that becomes of it is torch's: one case of it, since it takes long."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    changes = {"objective": objective, "encoder": EncoderRecipe(layers=2, width=16, heads=2)}
    train = tiny_recipe().train
    plain, compiled = (make_loop(20, **changes, train=replace(train, compile=given)) for given in (False, True))
    counters.clear()
    for step in range(20):
        rows = make_batch(plain.recipe, make_rows(8, seed=step))
        for loop in (plain, compiled):
            loop.step([Batch(rows)])
        assert compiled.logged()["loss"] == pytest.approx(plain.logged()["loss"], abs=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_and_norms_do_not_decay(family):
    recipe = joining("cross", positions="relative")
    recipe = complete_recipe(replace(recipe, encoder=replace(recipe.encoder, family=family)), VOCABULARY)
    model = build_model(recipe, VOCABULARY)
    decayed, others = ({id(weight) for weight in group["params"]} for group in decay_groups(model, 0.1))
    for name, weight in model.named_parameters():
        is_matrix = weight.ndim == 2 and "bias" not in name
        if not weight.requires_grad:
            continue
        assert (id(weight) in decayed) == (is_matrix or name == "mask_vector"), name
        assert (id(weight) in others) != (id(weight) in decayed)


def test_one_process_uses_one_device_however_many_there_are(monkeypatch):
    """The Trainer would have wrapped DataParallel around the model, and taken a batch for each."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    loop = make_loop()
    assert not isinstance(loop.wrapped, (DataParallel, DistributedDataParallel))


@pytest.mark.parametrize(("processes", "idle"), [(1, 7), (8, 0)])
def test_gpus_that_are_left_unused_are_counted(monkeypatch, processes, idle):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert idle_devices() == idle
