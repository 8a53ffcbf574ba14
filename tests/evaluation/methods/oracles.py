"""What the tests of methods compare with, whatever the method: the stock model, and what changed of it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from latemask.evaluation.encoders import Encoder
from latemask.evaluation.methods import METHODS, in_body
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import prepare_task, run_trial
from tests.evaluation.conftest import make_task

FAMILIES = (
    "modernbert",
    "bert",
    "roberta",
    "distilbert",
    "deberta-v2",
    "mpnet",
    "esm",
    "eurobert",
    "nomic_bert",
    "gte",
)
IDS = torch.randint(5, 300, (3, 20), generator=torch.Generator().manual_seed(0))


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    """What a model says of random tokens."""
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def stock_and_prepared(encoder: Encoder, method: str, kind: str = "classification", **options: Any) -> tuple[Any, Any]:
    """The stock model with a task's head, and the same one as a method trains it."""
    stock, model = (encoder.with_head(make_task(kind), 0) for _ in range(2))
    return stock, METHODS[method].prepared(model, Protocol(method=method, options=options))


def trained(encoder: Encoder, method: str, kind: str = "classification", **given: Any) -> tuple[Any, Any]:
    """The record and the model of a short fine-tuning; what is no setting of the protocol is an option."""
    shared = {"epochs": 1, "batch_size": 8, "precision": "fp32"}
    shared |= {name: given.pop(name) for name in list(given) if name in Protocol.__dataclass_fields__}
    seed, lr = given.pop("seed", 0), given.pop("lr", 1e-2)
    protocol = Protocol(method=method, options=given, **shared)
    return run_trial(prepare_task(encoder, make_task(kind), protocol), lr, seed, keep=True)


def changed(before: Any, after: Any) -> set[str]:
    """The names of the encoder's weights that two stock models do not share, of all that they should both have."""
    old, new = before.state_dict(), after.state_dict()
    assert set(old) == set(new)
    return {name for name in old if in_body(before, name) and not torch.equal(old[name], new[name])}


def opened_alone(folder: Path, auto_class: Any = AutoModelForSequenceClassification) -> Any:
    """A stock folder, by transformers without anything of ours."""
    model, info = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model


def problem(encoder: Encoder, method: str, **options: Any) -> str | None:
    """What a method says against an encoder."""
    return METHODS[method].problem(encoder, Protocol(method=method, options=options))
