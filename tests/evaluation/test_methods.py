"""A way to fine-tune is one class, from anywhere: driven through finetune and predict, it leaves a stock model."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrize
from transformers import AutoConfig, AutoModelForSequenceClassification

from latemask import Results, UserError, finetune, predict
from latemask.cli import main
from latemask.evaluation.methods import METHODS, Method, save_config
from latemask.evaluation.predictor import Predictor
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import TASK_FILE
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


@dataclass(frozen=True)
class Noise:
    """How loud."""

    strength: float = 0.5
    """Standard deviation of the noise."""
    everywhere: bool = False
    """In all layers."""


class Noisy(Method):
    """The encoder is what it was and noise; what is kept is no stock folder."""

    Options = Noise

    def problem(self, encoder, protocol):
        return "strength is too much; lower it" if protocol.of_method.strength > 9 else None

    def fitted(self, model, prepared):
        model.read = len(prepared.splits["train"])
        model.strength = prepared.protocol.of_method.strength
        return model

    def save(self, model, folder, protocol):
        save_config(model, folder)
        save_file(model.state_dict(), folder / "noisy.safetensors")
        return True

    def opened(self, folder, auto_class, options):
        model = auto_class.from_config(AutoConfig.from_pretrained(folder))
        model.load_state_dict(load_file(folder / "noisy.safetensors"))
        model.strength = options.strength
        return model.eval()

    def card(self, model):
        return f"Of {model.read} rows, with {model.strength} of noise."


@pytest.fixture(autouse=True)
def table(monkeypatch):
    for name in ("head-only", "added", "scored", "noisy"):
        monkeypatch.setitem(METHODS, name, None)  # so that it is taken out again
    METHODS.register("added")(Added)
    METHODS.register("scored")(Scored)
    METHODS.register("noisy")(Noisy)
    exec(DOCS.read_text("utf-8").split("```python\n")[1].split("```")[0], {})  # head-only, as the docs write it


@pytest.fixture
def tuned(glue_folder, encoder_folder, tmp_path):
    """Fine-tune by a method; return the results' folder."""

    def run(method, **changes):
        protocol = Protocol(epochs=2, batch_size=8, method=method, precision="fp32")
        given = {"seeds": 1, "lrs": [1e-2], "out": tmp_path / "o", "protocol": protocol, "no_control": True, **changes}
        finetune(str(encoder_folder), task="rte", data=glue_folder, **given)
        return given["out"]

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


def test_a_method_may_keep_what_is_no_stock_model_and_open_it_again(tuned, glue_folder):
    folder = tuned("noisy", protocol=Protocol(epochs=1, batch_size=8, method="noisy", options={"strength": 2}))
    stock = tuned("full", protocol=Protocol(epochs=1, batch_size=8), out=folder.parent / "stock")  # it trains the same
    dev = glue_folder / "RTE" / "dev.tsv"
    assert predict(folder, dev) == predict(stock, dev)
    assert Predictor(folder).model.strength == 2.0
    with pytest.raises(OSError, match=r"model\.safetensors"):  # nobody takes it for a stock model
        AutoModelForSequenceClassification.from_pretrained(folder / "model")


def test_a_folder_says_how_it_was_made(tuned):
    folder = tuned("noisy", protocol=Protocol(epochs=1, batch_size=8, method="noisy", options={"strength": 2}))
    note = json.loads((folder / "model" / TASK_FILE).read_text())
    assert (note["method"], note["options"]) == ("noisy", {"strength": 2.0, "everywhere": False})
    card = (folder / "model" / "README.md").read_text()
    assert "by `noisy` (strength 2.0, everywhere False)" in card
    assert "Of 24 rows, with 2.0 of noise." in card
    assert "Predictor(" in card
    assert (
        "AutoModelForSequenceClassification" in (tuned("full", out=folder.parent / "f") / "model/README.md").read_text()
    )
    assert "fine-tuned by noisy (strength 2.0, everywhere False)" in (folder / "results.md").read_text()


def test_a_card_shows_how_a_folder_is_opened_and_that_works(tuned, monkeypatch):
    folder = tuned("full") / "model"
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found = {}
    exec(code.replace("path/to/this/folder", str(folder)), found)
    assert type(found["model"]).__name__ == "ModernBertForSequenceClassification"


def test_options_stand_on_the_command_line_under_the_methods_name(encoder_folder, glue_folder, tmp_path, capsys):
    words = ["finetune", encoder_folder, "--task", "rte", "--data", glue_folder, "--out", tmp_path / "o", "--seeds", 1]
    words += ["--no-control", "--epochs", 1, "--method", "noisy", "--noisy.strength", "1e-1", "--noisy.everywhere"]
    assert main([str(word) for word in words]) == 0
    protocol = Results.read(tmp_path / "o" / "results.json").protocol
    assert protocol.of_method == Noise(strength=0.1, everywhere=True)
    capsys.readouterr()
    assert main(["finetune", "--help"]) == 0
    assert "--noisy" not in capsys.readouterr().out  # the options of all methods at once would hide the others
    assert main(["finetune", "--help", "--method=noisy"]) == 0
    out = capsys.readouterr().out
    assert "--method noisy: How loud" in out
    assert "Standard deviation of the noise. (default: 0.5)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--noisy.strength", "1"], "--noisy.strength is for --method noisy, and this is full"),
        (["--method", "noisy", "--noisy.strenght", "1"], r"unknown option '--noisy.strenght' \(did you mean"),
        (["--method", "noisy", "--noisy.strength", "x"], "noisy.strength must be float, not 'x'"),
        (["--method", "noisy", "--noisy.strength", "10"], "--method noisy: strength is too much; lower it"),
        (["--method", "bais"], r"unknown fine-tuning method 'bais' \(did you mean 'bias'\?\)"),
    ],
)
def test_wrong_options_are_a_line_and_leave_nothing(words, message, encoder_folder, glue_folder, tmp_path, capsys):
    given = ["finetune", encoder_folder, "--task", "rte", "--data", glue_folder, "--out", tmp_path / "o", *words]
    assert main([str(word) for word in given]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "o").exists()


def test_other_options_are_another_protocol(tuned):
    tuned("noisy")
    with pytest.raises(UserError, match=r"another protocol \(noisy.strength: 0.5 -> 2.0\)"):
        tuned("noisy", protocol=Protocol(epochs=2, batch_size=8, method="noisy", precision="fp32", options=Noise(2.0)))
    with pytest.raises(UserError, match=r"unknown key 'noisy.loud'"):
        tuned("noisy", protocol=Protocol(method="noisy", options={"loud": 1}))


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
