"""fill: predictions for each mask, from late and early models."""

import json
from dataclasses import replace

import pytest
import torch

from latemask import UserError, fill, pretrain
from latemask.cli import main
from latemask.filling import Filler
from latemask.recipe import BudgetRecipe
from tests.conftest import tiny_recipe


@pytest.fixture(scope="module", params=["late", "early"])
def run(request, data, tmp_path_factory):
    recipe = replace(tiny_recipe(), objective=request.param, budget=BudgetRecipe(steps=2))
    return pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("runs") / "run")


def test_each_mask_gets_its_top_predictions_in_order(run, capsys):
    found = fill(run.path, "Return <mask> if the <mask> is empty.", top=3)
    assert [len(predictions) for predictions in found] == [3, 3]
    for predictions in found:
        values = [p.probability for p in predictions]
        assert values == sorted(values, reverse=True)
    assert "mask 2" in capsys.readouterr().out


def test_the_predictions_are_the_models(run):
    """Against the model's own logits, computed by hand for a single mask at position 2."""
    filler = Filler(run.path)
    torch.manual_seed(0)
    with torch.no_grad():  # two steps of training make no opinions; these make some
        for weight in filler.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.5)
    ids = filler.tokenizer("Return <mask> now", return_tensors="pt").input_ids
    (where,) = (ids[0] == 4).nonzero()[0].tolist()
    positions = torch.arange(ids.shape[1])[None]
    others = positions[:, positions[0] != where]
    with torch.no_grad():
        if hasattr(filler.model, "mask_vector"):
            logits = filler.model(ids[:, others[0]], others, torch.tensor([[where]])).logits
        else:
            logits = filler.model(ids, positions, torch.tensor([[where]])).logits
    best = logits[0, 0].softmax(-1).topk(5)
    found = filler.predict("Return <mask> now", 5)[0]
    assert best.values[0] > 0.05
    assert [p.probability for p in found] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert [p.token for p in found] == [filler.tokenizer.decode([i]).strip() for i in best.indices]


def test_json_on_the_command_line(run, capsys):
    assert main(["fill", str(run.path), "A <mask>.", "--json", "--top", "2"]) == 0
    (predictions,) = json.loads(capsys.readouterr().out)
    assert set(predictions[0]) == {"token", "probability"}


def test_texts_that_cannot_be_filled_are_refused(run):
    with pytest.raises(UserError, match="no <mask>"):
        fill(run.path, "nothing here")
    with pytest.raises(UserError, match="takes 32 at most"):
        fill(run.path, "<mask> " * 40)
    with pytest.raises(UserError, match="--top 0"):
        fill(run.path, "<mask>", top=0)


def test_an_exported_encoder_has_no_head_to_fill_with(run):
    with pytest.raises(UserError, match="a 'modernbert' model; a latemask run"):
        fill(run.encoder, "<mask>")
