"""What is wrong with an encoder is said by us, in a line: transformers' words are many, and about other things."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM

from latemask import UserError, prepare, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.model.stock import open_stock, stock_config, tokenizer_of
from latemask.recipe import BudgetRecipe, EncoderRecipe
from tests.conftest import tiny_recipe
from tests.text.kinds_of_tokenizers import make, save


@pytest.fixture
def folder(tmp_path) -> Path:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48}
    config = AutoConfig.for_model("bert", vocab_size=len(make("bert")), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "stock")
    save("bert", tmp_path / "stock")
    return tmp_path / "stock"


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def other_shapes(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"] = torch.zeros(7, 32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def says(**changes):
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (without_weights, r"cannot be read: there are no weights \(model\.safetensors\)$"),
        (cut_weights, "cut short or damaged; copy the file again$"),
        (other_shapes, r"word_embeddings\.weight is \[7, 32\] there, and \[\d+, 32\] by the config$"),
        (pickled, "are a pickle, which may run code and is never read"),
        (without_config, r"holds no config\.json$"),
        (says(model_type="bort"), "does not know, 'bort'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_with_a_folder_is_said(folder, harm, message):
    harm(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_stock(str(folder))
    assert "\n" not in str(caught.value)


def test_a_file_in_the_place_of_its_folder_is_said(folder):
    with pytest.raises(UserError, match="is a file: give the folder with config"):
        stock_config(str(folder / "config.json"))


def test_a_checkpoint_of_a_run_is_an_encoder_with_the_tokenizer_of_the_data(data, tmp_path):
    recipe = tiny_recipe(budget=BudgetRecipe(steps=2))
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-1"
    assert tokenizer_of(str(checkpoint)) == str(data.tokenizer_folder)
    further = tiny_recipe(budget=BudgetRecipe(steps=1), encoder=EncoderRecipe(init=str(checkpoint)))
    assert pretrain(further, data=data.folder, out=tmp_path / "further").is_finished()


def test_weights_that_are_no_numbers_are_said_before_the_first_step(folder, corpus, tmp_path):
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.LayerNorm.weight"].fill_(math.nan)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    data = prepare([corpus], out=tmp_path / "data", tokenizer=folder, validation=0.1)
    recipe = tiny_recipe(budget=BudgetRecipe(steps=1), encoder=EncoderRecipe(init=str(folder)))
    with pytest.raises(UserError, match="before the first step the loss is nan: the weights at"):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")
