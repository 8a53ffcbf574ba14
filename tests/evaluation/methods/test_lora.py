"""LoRA and DoRA: nothing at first, a stock model in the end, or an adapter that peft itself opens."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from transformers import AlbertConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification, GPT2Config

from latemask import UserError, predict
from latemask.cli import main
from latemask.evaluation.encoders import open_encoders
from latemask.evaluation.methods import METHODS, in_body
from latemask.evaluation.methods.places import is_attention, linears_of
from latemask.evaluation.predictor import Predictor
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results
from tests.evaluation.conftest import make_task
from tests.evaluation.methods.oracles import (
    FAMILIES,
    changed,
    logits,
    opened_alone,
    problem,
    stock_and_prepared,
    trained,
)  # fmt: skip

BOTH = pytest.mark.parametrize("method", ["lora", "dora"])


@BOTH
@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_step_it_is_the_stock_model_bit_for_bit(stock, family, method):
    before, model = stock_and_prepared(stock(family), method)
    assert torch.equal(logits(before), logits(model))
    adapted = [name for name, one in model.named_modules() if isinstance(one, LoraLayer)]
    assert adapted == [name for name, _ in linears_of(before)]
    trains = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name for name in trains if in_body(model, name)} == {name for name in trains if "lora_" in name}
    assert {name for name, _ in before.named_parameters() if not in_body(before, name)} <= trains


@BOTH
@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_a_merged_folder_is_stock_and_says_the_same(stock, family, method, tmp_path):
    encoder = stock(family)
    _, model = trained(encoder, method)
    before, said = encoder.with_head(make_task(), 0), logits(model)
    assert METHODS[method].save(model, tmp_path, Protocol(method=method))
    after = opened_alone(tmp_path)
    assert changed(before, after) == {f"{name}.weight" for name, _ in linears_of(before)}
    torch.testing.assert_close(logits(after), said, rtol=0, atol=1e-6)
    assert not torch.allclose(said, logits(before), atol=1e-3)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert not any(word in (tmp_path / "config.json").read_text().lower() for word in ("peft", "lora", "adapter"))
    assert not hasattr(model, "peft_config")


def test_what_is_merged_is_the_product_scaled_by_alpha_and_rank(stock):
    encoder = stock("modernbert")
    _, model = trained(encoder, "lora", rank=3, alpha=5.0, dropout=0.25)
    before, name = encoder.with_head(make_task(), 0), "model.layers.1.mlp.Wi"
    one = model.get_submodule(name)
    thin, wide = one.lora_A["default"].weight, one.lora_B["default"].weight
    assert thin.shape == (3, 32)
    assert one.lora_dropout["default"].p == 0.25
    expected = before.get_submodule(name).weight + 5 / 3 * wide @ thin
    torch.testing.assert_close(METHODS["lora"].merged(model).get_submodule(name).weight, expected)


def test_attention_alone_may_be_its_target(stock):
    encoder = stock("bert")
    _, model = trained(encoder, "lora", targets="attention")
    before = encoder.with_head(make_task(), 0)
    names = {f"{name}.weight" for name, _ in linears_of(before) if is_attention(name)}
    assert len(names) == 12
    assert changed(before, METHODS["lora"].merged(model)) == names


def test_dora_trains_the_lengths_of_rows_and_stores_them(stock):
    encoder = stock("roberta")
    (lora, _), (dora, model) = trained(encoder, "lora"), trained(encoder, "dora")
    found = [one for _, one in model.named_modules() if isinstance(one, LoraLayer)]
    for one in found:
        lengths = one.get_base_layer().weight.norm(dim=1)
        assert not torch.isclose(one.lora_magnitude_vector["default"].weight, lengths, rtol=1e-4).all()
    assert dora.trained_weights == lora.trained_weights + sum(one.out_features for one in found)
    assert dora.stored_bytes == 4 * dora.trained_weights
    assert lora.trained_weights == sum(8 * sum(one.weight.shape) for _, one in linears_of(encoder.plain()))


@pytest.mark.parametrize(("method", "family", "task"), [("lora", "modernbert", "rte"), ("dora", "bert", "stsb")])
def test_a_kept_adapter_is_opened_by_peft_as_its_card_says_and_by_predict(
    stock, tuned, glue_folder, method, family, task
):
    out = tuned(stock(family), method, options={"keep_adapter": True}, task=task)
    folder = out / "model"
    assert not (folder / "model.safetensors").exists()
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found = {}
    exec(code.replace("path/to/this/folder", str(folder)), found)
    assert isinstance(found["model"], PeftModel)
    said = logits(Predictor(folder).model)
    assert torch.equal(logits(found["model"]), said)
    torch.testing.assert_close(logits(found["model"].merge_and_unload()), said, rtol=0, atol=1e-6)
    (trial,) = Results.read(out / "results.json").trials
    stored = load_file(folder / "adapter_model.safetensors")
    assert trial.stored_bytes == sum(value.nbytes for name, value in stored.items() if "lora_" in name)
    (row, *_) = predict(folder, glue_folder / {"rte": "RTE", "stsb": "STS-B"}[task] / "dev.tsv", out=out / "p.tsv")
    assert ("value" in row) == (task == "stsb")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kept_adapter_of_any_family_and_a_tagger_has_all_that_was_trained(stock, family, tmp_path):
    encoder = stock(family)
    kinds = {"tagging": AutoModelForTokenClassification, "multilabel": AutoModelForSequenceClassification}
    kind = list(kinds)[FAMILIES.index(family) % 2]
    _, model = trained(encoder, "lora", kind, epochs=1, keep_adapter=True)
    METHODS["lora"].save(model, tmp_path, Protocol(method="lora", options={"keep_adapter": True}))
    again = METHODS["lora"].opened(tmp_path, kinds[kind], None)
    assert torch.equal(logits(again), logits(model))
    heads = {"bert": ["bert.pooler", "classifier"], "modernbert": ["classifier", "head"], "esm": ["classifier"]}
    if family in heads:
        assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] == heads[family]


def test_the_same_seed_gives_the_same_adapter_bit_for_bit(stock, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        _, model = trained(stock("bert"), "dora", keep_adapter=True, dropout=0.1)
        METHODS["dora"].save(model, tmp_path / name, Protocol(method="dora", options={"keep_adapter": True}))
    targets = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)  # a set would be in another order in another process
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_checkpointing_changes_nothing_and_bf16_learns(stock):
    encoder, method = stock("modernbert"), "dora"
    (plain, _), (saving, _) = trained(encoder, method), trained(encoder, method, checkpointing=True)
    assert plain.loss == saving.loss
    assert saving.step_bytes < plain.step_bytes
    low, _ = trained(encoder, method, precision="bf16")
    assert low.precision == "bf16"
    assert low.loss != plain.loss
    assert low.loss[-1][1] == pytest.approx(plain.loss[-1][1], abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "--lora.rank 0: 1 at least"),
        ({"rank": 33}, r"--lora.rank 33 is more than the 32 of layers.0.attn.Wqkv, its smallest matrix; lower it"),
        ({"alpha": -1.0}, "--lora.alpha -1: more than 0"),
        ({"dropout": 1.0}, "--lora.dropout 1: 0 at least and below 1"),
    ],
)
def test_options_that_mean_nothing_are_a_line_and_leave_nothing(stock, tuned, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        tuned(stock("modernbert"), "lora", options=options)
    assert not (tmp_path / "o").exists()
    assert problem(stock("modernbert"), "lora", rank=32) is None


def test_without_peft_a_line_says_how_to_get_it(stock, tuned, monkeypatch):
    folder = tuned(stock("bert"), "lora", options={"keep_adapter": True}, epochs=1) / "model"
    monkeypatch.setitem(sys.modules, "peft", None)
    assert problem(stock("bert"), "dora") == "the package peft is missing; install it: pip install peft"
    with pytest.raises(UserError, match="is an adapter, and the package peft is missing; install it"):
        Predictor(folder)


@pytest.mark.parametrize("method", ["lora", "dora", "hiwi", "pafi"])
@pytest.mark.parametrize("config", [GPT2Config(n_embd=32, n_layer=2, n_head=2), AlbertConfig(hidden_size=64)])
def test_an_encoder_without_linear_maps_in_a_list_of_layers_is_refused(stock, method, config):
    said = problem(replace(stock("bert"), config=config), method)
    assert "its layers have no linear maps" in said
    assert "take --method full or bias" in said


def test_a_kept_adapter_needs_an_encoder_that_stays(stock, tmp_path):
    encoder = stock("bert")
    assert problem(encoder, "lora", keep_adapter=True) is None
    assert problem(replace(encoder, name="somebody/encoder"), "lora", keep_adapter=True) is None  # of the Hub
    aside = replace(encoder, name=str(tmp_path))  # a run that is exported elsewhere
    assert "run latemask export on it and give that folder, or drop --dora.keep-adapter" in problem(
        aside, "dora", keep_adapter=True
    )
    assert problem(encoder.untrained(), "lora") is None
    assert "drop --lora.keep-adapter" in problem(encoder.untrained(), "lora", keep_adapter=True)


def test_a_damaged_adapter_is_a_line_and_a_pickle_is_never_opened(stock, tuned):
    folder = tuned(stock("bert"), "lora", options={"keep_adapter": True}, epochs=1) / "model"
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"^the adapter in .* is damaged .*; fine-tune again$"):
        Predictor(folder)
    weights.unlink()
    torch.save({}, folder / "adapter_model.bin")  # what peft would take instead
    with pytest.raises(UserError, match=r"adapter_model.safetensors is missing; fine-tune again"):
        Predictor(folder)


def test_a_base_that_is_gone_or_another_one_is_said(stock, tuned, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(stock("bert").folder, home)
    folder = tuned(open_encoders([str(home)])[0], "lora", options={"keep_adapter": True}, epochs=1) / "model"
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(home)
    said = logits(Predictor(folder).model)
    home.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"which is gone; write where it is now into adapter_config.json, base_model_"):
        Predictor(folder)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(home), str(tmp_path / "moved")))
    assert torch.equal(logits(Predictor(folder).model), said)
    config.write_text(config.read_text().replace(str(tmp_path / "moved"), str(stock("roberta").folder)))
    with pytest.raises(UserError, match="what is there now is another encoder; put the first one back"):
        Predictor(folder)


@pytest.mark.parametrize(
    "given",
    [["lora", "--lora.rank", "2", "--lora.keep-adapter"], ["hiwi", "--hiwi.rank", "3"]],
    ids=lambda given: given[0],
)
def test_commands_work_go_on_and_have_a_control_beside_them(stock, glue_folder, tmp_path, given, capsys):
    out = tmp_path / "o"
    words = ["finetune", stock("bert").folder, "--task", "rte", "--data", glue_folder, "--out", out, "--epochs", 1]
    words = [str(word) for word in [*words, "--method", *given]]
    assert main([*words, "--seeds", "1"]) == 0
    assert main([*words, "--seeds", "2"]) == 0
    assert "2 runs are done already, 2 to go" in capsys.readouterr().err
    assert main(["predict", str(out), str(glue_folder / "RTE" / "dev.tsv"), "--out", str(tmp_path / "p.tsv")]) == 0
    assert len((tmp_path / "p.tsv").read_text().splitlines()) >= 10
