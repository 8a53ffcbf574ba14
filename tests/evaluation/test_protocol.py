"""The protocol: what means nothing is refused in a line; every option has its help; defaults suit task and encoder."""

import ast
import inspect
import math
from dataclasses import fields
from itertools import pairwise

import pytest

from latemask import UserError
from latemask.evaluation.protocol import ROBERTA, Protocol


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "--epochs 0: one at least"),
        ({"batch_size": 0}, "--batch-size 0: one at least"),
        ({"select": "first"}, "--select first: best or last"),
        ({"precision": "fp16"}, "--precision fp16: auto, fp32 or bf16"),
        ({"class_weights": "even"}, "--class-weights even: none or balanced"),
        ({"max_length": 2}, "--max-length 2: a text needs 8 tokens at least"),
        ({"warmup": 1.0}, "--warmup 1.0: 0 at least and below 1"),
        ({"adam_beta2": 1.5}, "--adam-beta2 1.5: 0 at least and below 1"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1: 0 at least"),
        ({"adam_epsilon": math.inf}, "--adam-epsilon inf: 0 at least"),
        ({"clip": math.nan}, "--clip nan: 0 at least"),
        ({"method": "fll"}, "unknown fine-tuning method 'fll' (did you mean 'full'?)"),
    ],
)
def test_what_means_nothing_is_refused(given, message):
    ROBERTA.check()
    with pytest.raises(UserError) as caught:
        Protocol(**given).check()
    assert str(caught.value) == message


def test_every_option_has_its_help():
    """As a command line reads it: a text right below each field."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(Protocol)).body if isinstance(node, ast.ClassDef)]
    helped = {
        field.target.id
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    assert helped == {field.name for field in fields(Protocol)}


def test_batches_suit_the_training_set():
    assert Protocol().batch_for(3_668) == 16
    assert Protocol().batch_for(67_349) == 32
    assert Protocol(batch_size=8).batch_for(67_349) == 8


def test_learning_rates_suit_the_size():
    rates = [Protocol().rates(None, width) for width in (192, 512, 768, 1024)]
    assert rates == [[3e-4], [1e-4], [3e-5], [1e-5]]
    assert Protocol().rates([1e-4, 1e-4, 2e-4], 192) == [1e-4, 2e-4]
    with pytest.raises(UserError, match="--lrs -1"):
        Protocol().rates([-1.0], 192)


def test_options_in_words_leave_out_what_is_left_open():
    assert Protocol(method="full").options_in_words == ""
    assert Protocol(method="pafi", options={"share": 0.25}).options_in_words == "share 0.25"
    assert "rank" not in Protocol(method="apiq").options_in_words
    assert "bits 4, group 64" in Protocol(method="apiq", options={"rank": 3}).options_in_words
