"""export: a folder that any Hugging Face program opens, with no code of ours."""

import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from latemask import UserError, export, fill, pretrain
from latemask.families import FAMILIES as FAMILY_TABLE
from latemask.ground.errors import TimeIsUp
from latemask.model import load_model
from latemask.recipe import BudgetRecipe, EncoderRecipe
from tests.conftest import tiny_recipe


@pytest.fixture(scope="module", params=["modernbert", "bert", "eurobert"])  # all: families/test_checkpoints.py
def run(request, data, tmp_path_factory):
    encoder = EncoderRecipe(family=request.param, layers=3, width=32, heads=2)
    recipe = replace(tiny_recipe(), encoder=encoder, budget=BudgetRecipe(steps=2))
    return pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("runs") / "a-<run>")


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    return export(run.path, out=tmp_path_factory.mktemp("exported") / "encoder")


def test_reloaded_hidden_states_are_identical(run, folder):
    ours = load_model(run.model)
    stock = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["Return a list of strings.", "None"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = ours.encoder(**batch).last_hidden_state
        assert torch.equal(stock(**batch).last_hidden_state, expected)


def test_the_end_of_a_run_exports_the_same(run, folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }
    for name in names - {"README.md"}:
        assert (run.encoder / name).read_bytes() == (folder / name).read_bytes()


def test_with_fewer_layers_it_returns_what_the_whole_one_computes_there(run, folder, tmp_path):
    short = export(run.path, out=tmp_path / "short", layers=2)
    whole = AutoModel.from_pretrained(folder).eval()
    stock, loading = AutoModel.from_pretrained(short, output_loading_info=True)
    assert stock.config.num_hidden_layers == 2
    assert not loading["unexpected_keys"]
    assert all("pooler" in name for name in loading["missing_keys"])
    batch = AutoTokenizer.from_pretrained(short)(["Return a list of strings.", "x"], padding=True, return_tensors="pt")
    with torch.no_grad():
        inside = whole(**batch, output_hidden_states=True).hidden_states[2]
        expected = FAMILY_TABLE[whole.config.model_type].final_norm(whole, inside)
        assert torch.equal(stock.eval()(**batch).last_hidden_state, expected)
    AutoModelForSequenceClassification.from_pretrained(short)
    assert "trained with 3 layers, of which the last 1 are left out" in (short / "README.md").read_text().replace(
        "\n", " "
    )
    for layers in (0, 4):
        with pytest.raises(UserError, match=f"--layers {layers}: the encoder has 3"):
            export(run.path, out=tmp_path / "x", layers=layers)


def test_a_classifier_is_built_on_it(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model(**tokenizer("a text", return_tensors="pt")).logits.shape == (1, 3)


def test_the_tokenizer_knows_the_longest_input(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 32
    longest = tokenizer("word " * 500, truncation=True, return_tensors="pt")
    assert longest.input_ids.shape[1] == 32
    AutoModel.from_pretrained(folder)(**longest)


def test_sentence_transformers_loads_it(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert model.encode(["one", "two"]).shape == (2, 32)


def test_the_card_says_what_data_recipe_compute_and_how_to_load(run, folder):
    card = (folder / "README.md").read_text()
    assert "# a-&#60;run&#62;" in card  # a name is never markup
    for word in (
        "AutoModel.from_pretrained",
        "FLOPs",
        "docs.txt",
        "rate: 0.4",
        "validation loss",
        "fill-mask",
    ):
        assert word in card


def test_what_is_there_is_not_overwritten_unasked(run, folder, tmp_path):
    with pytest.raises(UserError, match="already holds an encoder"):
        export(run.path, out=folder)
    assert export(run.path, out=folder, overwrite=True) == folder
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match="holds no encoder"):
        export(run.path, out=tmp_path, overwrite=True)
    with pytest.raises(UserError, match="not a latemask run"):
        export(tmp_path, out=tmp_path / "x")


def test_a_stopped_run_exports_its_last_checkpoint(run, tmp_path, capsys):
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    export(tmp_path / "run", out=tmp_path / "encoder")
    assert "checkpoint-2" in capsys.readouterr().err
    assert (tmp_path / "encoder" / "model.safetensors").read_bytes() == (run.encoder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("harm", ["garbage", "cut", "missing"])
def test_a_damaged_model_is_said_and_nothing_is_left_behind(run, tmp_path, name, harm):
    shutil.copytree(run.path, tmp_path / "run")
    path = tmp_path / "run" / "model" / name
    content = path.read_bytes()
    path.write_bytes({"garbage": b"\x93garbage", "cut": content[: len(content) // 2], "missing": b""}[harm])
    if harm == "missing":
        path.unlink()
    for use in (lambda: export(tmp_path / "run", out=tmp_path / "out"), lambda: fill(tmp_path / "run", "<mask>")):
        with pytest.raises(UserError) as caught:
            use()
        assert "model" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("torn", ['{"status": "fin', '{"precision": 16}', '{"left_out_batches": 3}'])
def test_a_run_with_a_torn_record_is_said(run, tmp_path, torn):
    shutil.copytree(run.path, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(torn)
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        export(tmp_path / "run", out=tmp_path / "out")


def test_a_pre_training_model_is_not_overwritten_by_an_encoder(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    with pytest.raises(UserError, match="holds a pre-training model"):
        export(tmp_path / "run", out=tmp_path / "run" / "model", overwrite=True)


def test_a_stopped_run_on_a_mixture_exports_from_anywhere(data, tmp_path, monkeypatch):
    """Its tokenizer is with the data, which were named relative to another folder."""
    shutil.copytree(data.folder, tmp_path / "a")
    shutil.copytree(data.folder, tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    recipe = replace(tiny_recipe(), budget=BudgetRecipe(steps=4))
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=["a:0.5", "b:0.5"], out="run", stop_after="0s")
    monkeypatch.chdir("/")
    folder = export(tmp_path / "run", out=tmp_path / "encoder")
    assert AutoTokenizer.from_pretrained(folder).mask_token == "<mask>"
