"""Tiny encoders of every family that a method may meet, and a fine-tuning by it from the command's function."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from latemask import finetune
from latemask.evaluation.encoders import Encoder, open_encoders
from latemask.evaluation.protocol import Protocol
from latemask.model import build_model, complete_recipe
from latemask.text import PreparedData
from latemask.text.tokenizer import copy_tokenizer
from tests.conftest import tiny_recipe


@pytest.fixture(scope="session")
def stock(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Encoder]:
    """Make an encoder of a family, as large as asked for, in a state where every weight matters; each only once."""

    @cache
    def make(family: str, layers: int = 3, width: int = 32) -> Encoder:
        torch.manual_seed(20)
        recipe = tiny_recipe()
        shape = replace(recipe.encoder, family=family, layers=layers, width=width)
        model = build_model(complete_recipe(replace(recipe, encoder=shape), data.vocabulary), data.vocabulary)
        with torch.no_grad():  # biases that are nothing would hide much
            for weight in model.encoder.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        folder = tmp_path_factory.mktemp("stock") / f"{family}-{layers}-{width}"
        model.encoder.save_pretrained(str(folder))
        copy_tokenizer(data.tokenizer_folder, folder, 32)
        return open_encoders([str(folder)])[0]

    return make


@pytest.fixture
def tuned(glue_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Fine-tune an encoder on a task of GLUE by a method and its options; return the results' folder."""

    def run(encoder: Encoder, method: str, *, lr: float = 1e-2, **given: Any) -> Path:
        names = ("epochs", "precision", "batch_size", "checkpointing", "weight_decay")
        shared = {"epochs": 2, "precision": "fp32", "batch_size": 8} | {k: given.pop(k) for k in names if k in given}
        out = given.pop("out", tmp_path / "o")
        protocol = Protocol(method=method, options=given.pop("options", None), **shared)
        given = {"task": "rte", "data": glue_folder, "seeds": 1, "no_control": True, **given}
        finetune(str(encoder.folder), out=out, lrs=[lr], protocol=protocol, **given)
        return out

    return run
