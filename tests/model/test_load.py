"""Models are opened again, also those of earlier states of the package."""

import json

import torch

from latemask.model import load_model
from tests.conftest import make_batch, make_model, tiny_recipe


def test_a_model_is_opened_with_its_objective(tmp_path):
    for objective in ("late", "early"):
        recipe = tiny_recipe(objective=objective)
        model, batch = make_model(recipe), make_batch(recipe)
        model.save_pretrained(tmp_path / objective)
        assert torch.equal(load_model(tmp_path / objective)(**batch).loss, model(**batch).loss)


def test_an_early_model_from_before_objectives_had_a_table_is_still_one(tmp_path):
    recipe = tiny_recipe(objective="early")
    model, batch = make_model(recipe), make_batch(recipe)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("objective") == "early"
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "earlymask"}))
    assert torch.equal(load_model(tmp_path)(**batch).loss, model(**batch).loss)
