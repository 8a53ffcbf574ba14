"""The memory of a step: what autograd really keeps, and what a process really takes."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from latemask.budget import memory
from latemask.budget.memory import HEAD_ROWS, step_memory
from latemask.ground import precision
from latemask.model import complete_recipe
from latemask.model.head import CHUNK_ROWS
from latemask.objectives.late import Join
from latemask.recipe import OBJECTIVES, EncoderRecipe, MaskRecipe
from tests.conftest import FAMILIES, KINDS, VOCABULARY, make_batch, make_model, tiny_recipe

MASKS = [MaskRecipe(rate=0.5), MaskRecipe(rate=0.3, random=0.1, keep=0.1, drop=0.25)]
JOINS = [Join(kind, layers) for kind in KINDS for layers in (1, 3)] + [Join("cross", positions="absolute")]


WHOLE = ("modernbert", "bert", "deberta-v2")  # the others differ from one of these by a number or two
FEW = [Join("inside", 3), Join("self", 1), None]
CASES = [
    pytest.param(family, join, mask, id=f"{family}-{join}-{'corrupting' if mask.random else 'plain'}")
    for family in FAMILIES
    for join in [*JOINS, None]
    for mask in MASKS
    if family in WHOLE or (join in FEW and mask.random)
]


def bytes_kept(recipe) -> float:
    """Bytes a row keeps, by torch's own hooks: every storage once, weights left out."""
    model, batch = make_model(recipe).train(), make_batch(recipe)
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor, so that its place is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**batch)
    return sum(size for size, _ in kept.values()) / len(batch["labels"])


@pytest.mark.parametrize(("family", "join", "mask"), CASES)
def test_what_a_row_keeps_is_what_autograd_keeps(family, join, mask):
    assert_kept(EncoderRecipe(family=family, layers=4, width=64, heads=2), join, mask)


def assert_kept(encoder, join, mask):
    if encoder.family == "deberta-v2":
        encoder = replace(encoder, buckets=32)
    recipe = tiny_recipe(length=64, mask=mask, encoder=encoder, train=replace(tiny_recipe().train, batch_size=4))
    recipe = replace(recipe, options=join) if join else replace(recipe, objective="early")
    counted = OBJECTIVES[recipe.objective].kept_numbers(complete_recipe(recipe, VOCABULARY), scores=False)
    assert 4 * counted == pytest.approx(bytes_kept(recipe), rel=0.06)


def test_what_the_arithmetic_knows_of_the_program_is_true():
    assert HEAD_ROWS == CHUNK_ROWS  # written down twice, because the arithmetic needs no torch
    assert memory.SHORT_ROWS == precision.SHORT_ROWS


def test_accumulated_gradients_stay_while_the_next_rows_are_computed():
    recipe = complete_recipe(tiny_recipe(), VOCABULARY)
    plain, accumulating = (step_memory(recipe, 8, accumulates) for accumulates in (False, True))
    assert accumulating.peak > plain.peak
    assert accumulating.peak <= plain.peak + plain.gradients


_PEAK = """
import json, resource, sys
from latemask.recipe import load_recipe, spelled_out
from latemask.training.calibration import RandomSteps
from latemask.budget.memory import step_memory
from latemask.ground.allocator import keep_freed_memory
import torch

keep_freed_memory()  # as pretrain does
name, rows, overrides = json.loads(sys.argv[1])
recipe = spelled_out(load_recipe(name, overrides), 8192)
steps = RandomSteps(recipe, rows, torch.device("cpu"))
for _ in range(2):
    steps.seconds()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([step_memory(recipe, rows, half=steps.loop.dtype is not None).peak, peak]))
"""

SHAPES = [
    ("late-base", 4, {"length": 128, "encoder": {"layers": 6, "vocab_size": 20000}}),
    ("small", 16, {"length": 256, "encoder": {"layers": 8}}),
]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}, {shape[1]} rows")
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_the_peak_is_within_a_fifth_of_a_real_process(shape, kind):
    if kind == "bf16" and not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this CPU has no bf16, and torch's imitation would take minutes")
    name, rows, overrides = shape
    given = json.dumps([name, rows, {**overrides, "train": {"precision": kind}}])
    done = subprocess.run([sys.executable, "-c", _PEAK, given], capture_output=True, text=True, check=True)
    estimated, real = json.loads(done.stdout.splitlines()[-1])
    assert estimated == pytest.approx(real, rel=0.2)
