"""A way to fine-tune is one class, from anywhere: driven through finetune and predict, it leaves a stock model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parametrize
from transformers import AutoModelForSequenceClassification

from latemask import Results, UserError, finetune, predict
from latemask.evaluation.methods import METHODS, Method
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import prepare_task, run_trial
from tests.evaluation.conftest import make_task

BODY = "model."  # of a ModernBERT; all else is the task's head
DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"


class Doubled(torch.nn.Module):
    """A weight that something was added to, as low-rank methods do."""

    def __init__(self, weight):
        super().__init__()
        self.added = torch.nn.Parameter(torch.zeros_like(weight))

    def forward(self, weight):
        return weight + 2 * self.added


class Added(Method):
    """Something trains beside a frozen weight and is put into it in the end."""

    words = "a sum"

    def learning_rate(self, width):
        return 0.25 / width

    def prepared(self, model, protocol):
        model.base_model.requires_grad_(False)
        parametrize.register_parametrization(self.layer(model), "weight", Doubled(self.layer(model).weight))
        return model

    def merged(self, model):
        parametrize.remove_parametrizations(self.layer(model), "weight", leave_parametrized=True)
        return model

    def layer(self, model):
        return model.base_model.layers[1].mlp.Wo


class Scored(Method):
    """Never a stock model again."""

    def merged(self, model):
        return None


@pytest.fixture(autouse=True)
def table(monkeypatch):
    for name in ("head-only", "added", "scored"):
        monkeypatch.setitem(METHODS, name, None)  # so that it is taken out again
    METHODS.register("added")(Added)
    METHODS.register("scored")(Scored)
    exec(DOCS.read_text("utf-8").split("```python\n")[1].split("```")[0], {})  # head-only, as the docs write it


@pytest.fixture
def tuned(glue_folder, encoder_folder, tmp_path):
    """Fine-tune by a method; return the results' folder."""

    def run(method, **changes):
        protocol = Protocol(epochs=2, batch_size=8, method=method, precision="fp32")
        given = {"seeds": 1, "lrs": [1e-2], "out": tmp_path / "o", "protocol": protocol, "no_control": True, **changes}
        finetune(str(encoder_folder), task="rte", data=glue_folder, **given)
        return tmp_path / "o"

    return run


def changed(encoder, folder):
    """The names of the weights that fine-tuning changed, in the model that it left."""
    model, info = AutoModelForSequenceClassification.from_pretrained(folder / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before = encoder.with_head(make_task(), seed=0).state_dict()
    after = model.state_dict()
    assert set(after) == set(before)
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_frozen_weights_keep_their_bits_and_the_head_learns(tuned, encoder, glue_folder):
    folder = tuned("head-only")
    names = changed(encoder, folder)
    assert "classifier.weight" in names
    assert not any(name.startswith(BODY) for name in names)
    assert json.loads((folder / "results.json").read_text())["protocol"]["method"] == "head-only"
    assert "fine-tuned by head-only" in (folder / "results.md").read_text()
    rows = predict(folder, glue_folder / "RTE" / "dev.tsv")
    assert {row["label"] for row in rows} <= {"entailment", "not_entailment"}
    assert len(rows) == 10


def test_what_was_added_is_merged_and_gives_the_scores_that_were_reported(tuned, encoder, glue_folder):
    folder = tuned("added")
    names = changed(encoder, folder)
    assert {name for name in names if name.startswith(BODY)} == {"model.layers.1.mlp.Wo.weight"}
    (trial,) = json.loads((folder / "results.json").read_text())["cells"]
    found = [row["label"] for row in predict(folder, glue_folder / "RTE" / "dev.tsv")]
    lines = (glue_folder / "RTE" / "dev.tsv").read_text().splitlines()[1:]
    right = [label == line.split("\t")[-1] for label, line in zip(found, lines, strict=True)]
    assert sum(right) / len(right) == trial["score"]
    assert "fine-tuned by a sum" in (folder / "results.md").read_text()


def test_a_method_without_a_stock_model_leaves_scores_alone(tuned):
    folder = tuned("scored")
    assert len(Results.read(folder / "results.json").trials) == 1
    assert not (folder / "model").exists()


def test_a_method_has_a_learning_rate_of_its_own(tuned):
    folder = tuned("added", lrs=None)
    assert Results.read(folder / "results.json").trials[0].learning_rate == 0.25 / 32
    assert METHODS["full"].learning_rate(32) == 3e-4


def test_full_is_the_default_and_trains_everything(encoder):
    prepared = prepare_task(encoder, make_task(), Protocol(epochs=1, batch_size=8, precision="fp32"))
    assert prepared.protocol.method == "full"
    _, model = run_trial(prepared, 1e-2, seed=0, keep=True)
    before = encoder.with_head(prepared.task, 0).state_dict()
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert not same


def test_an_unknown_method_is_refused_before_anything_is_written(tuned, tmp_path):
    with pytest.raises(UserError, match=r"unknown fine-tuning method 'ful' \(did you mean 'full'\?\)"):
        tuned("ful")
    assert not (tmp_path / "o").exists()


def test_another_method_is_another_protocol_and_an_old_record_means_full(tuned, tmp_path):
    path = tuned("full") / "results.json"
    record = json.loads(path.read_text())
    del record["protocol"]["method"]
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"another protocol \(method: full -> head-only\)"):
        tuned("head-only")
    assert len(Results.read(tuned("full") / "results.json").trials) == 1
    assert Protocol().differences({"epochs": 10}) == []
    assert Protocol(method="added").differences({"epochs": 9}) == ["epochs: 9 -> 10", "method: full -> added"]


def test_the_table_needs_no_torch():
    code = "import sys, latemask.evaluation.methods as m; assert 'full' in m.METHODS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
