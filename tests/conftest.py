"""Everything the tests need is made on the spot: no network, no file from outside."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["OMP_NUM_THREADS"] = "1"  # tiny matrices: a second thread costs more than it brings; subprocesses inherit it

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latemask.masking.batches import Collator
from latemask.model import build_model, complete_recipe
from latemask.objectives.late import KINDS, Join
from latemask.recipe import EncoderRecipe, MaskRecipe, Recipe, TrainRecipe
from latemask.text import PreparedData, Vocabulary, prepare
from latemask.text.builtin import BuiltinReader

FAMILIES = (
    "modernbert",
    "roberta",
    "roberta-prelayernorm",
    "bert",
    "xlm-roberta",
    "camembert",
    "electra",
    "distilbert",
    "mpnet",
    "deberta-v2",
    "eurobert",
    "nomic_bert",
    "gte",
    "esm",
)
__all__ = ["KINDS"]
VOCABULARY = Vocabulary(size=300, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small part of the builtin text as a .txt file: one document for each source file."""
    path = tmp_path_factory.mktemp("corpus") / "docs.txt"
    documents = BuiltinReader(limit=400_000).run()
    path.write_text("\n\n".join(doc.text.replace("\n\n", "\n") for doc in documents), "utf-8")
    return path


@pytest.fixture(scope="session")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The corpus, prepared with a small vocabulary."""
    return prepare([corpus], out=tmp_path_factory.mktemp("prepared") / "data", vocab_size=1000, validation=0.1)


_LONG = (
    "test_architecture.py::test_mypy",
    "faults/",
    "training/test_processes",
    "budget/test_memory",
    "test_readme",
    "text/test_preparing",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every process begin with its share of what takes long: each is given an equal stretch of the list."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.nodeid.startswith(tuple(f"tests/{name}" for name in _LONG))]
    short = [item for item in items if item not in long]
    ordered: list[pytest.Item] = []
    for number in range(processes):
        share = long[number::processes]
        fill = len(items) // processes - len(share)
        ordered += [*share, *short[:fill]]
        short = short[fill:]
    items[:] = [*ordered, *short]


@pytest.fixture(autouse=True)
def nothing_that_takes_longer_than_a_tiny_run(request, monkeypatch):
    """No measuring of the machine's peak before runs, and no drawing after them; tests of the page have it."""
    monkeypatch.setattr("latemask.training.running.measured_peak", lambda device, dtype: 1e11)
    if "reporting" not in request.node.nodeid and "demonstrating" not in request.node.nodeid:
        monkeypatch.setattr("latemask.training.running.write_page", lambda run: run)


def tiny_recipe(**changes: Any) -> Recipe:
    """A recipe that trains in a blink, in fp32 whatever the machine; sections are given whole."""
    base = Recipe(
        length=32,
        encoder=EncoderRecipe(layers=3, width=32, heads=2),
        mask=MaskRecipe(rate=0.4),
        train=TrainRecipe(
            batch_size=8, log_every=1, eval_every=1000, save_every=1000, learning_rate=3e-3, precision="fp32"
        ),
    )
    return replace(base, **changes)


def joining(kind: Any, **changes: Any) -> Recipe:
    """A tiny late recipe of one kind."""
    return tiny_recipe(options=Join(kind=kind, **changes))


def make_model(recipe: Recipe, vocabulary: Vocabulary = VOCABULARY):
    """Build the recipe's model, the same one every time, in a state where every weight matters."""
    torch.manual_seed(0)
    model = build_model(complete_recipe(recipe, vocabulary), vocabulary).eval()
    with torch.no_grad():  # larger than a fresh start, so that a wrong term shows
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return model


def make_rows(count: int = 4, length: int = 32, seed: int = 0) -> np.ndarray:
    """Rows of random words behind <s>."""
    rows = np.random.default_rng(seed).integers(5, VOCABULARY.size, (count, length))
    rows[:, 0] = VOCABULARY.bos
    return rows


def make_batch(recipe: Recipe, rows: np.ndarray | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    """Samples 0, 1, 2… over the given rows, as the recipe's model takes them."""
    rows = make_rows(length=recipe.length) if rows is None else rows
    samples = [{"ids": row, "index": index} for index, row in enumerate(rows)]
    how = {"objective": recipe.objective, "options": recipe.options}
    return Collator(recipe.counts, VOCABULARY, seed, **how)(samples)


def loss_after_fitting_one_batch(recipe: Recipe) -> float:
    """Train on one small batch alone; a model that can learn ends near zero."""
    model, batch = make_model(recipe).train(), make_batch(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(150):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    return loss.item()
