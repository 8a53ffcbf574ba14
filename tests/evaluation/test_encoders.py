"""What a user may call an encoder, and what is said of what is none."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import RobertaTokenizer

from latemask import UserError, pretrain
from latemask.evaluation.encoders import Encoder, controls_for, longest_input, open_encoders
from latemask.model import build_model, complete_recipe
from latemask.model.stock import stock_config
from latemask.recipe import FAMILIES as TABLE
from latemask.recipe import BudgetRecipe
from latemask.text.tokenizer import load_tokenizer
from tests.conftest import FAMILIES, tiny_recipe
from tests.evaluation.conftest import make_task


def opened(given, tokenizer=None):
    return open_encoders([str(given)], tokenizer)[0]


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    recipe = tiny_recipe(budget=BudgetRecipe(steps=2))
    return pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_run_and_its_exported_folder_are_the_same_encoder(run):
    assert opened(run.path).checksum == opened(run.encoder).checksum
    assert opened(run.path).longest == 32


def test_a_stopped_run_gives_its_last_checkpoint(run, tmp_path):
    """What a run is before its end: checkpoints, and no model."""
    stopped = tmp_path / "stopped"
    shutil.copytree(run.path, stopped)
    shutil.rmtree(stopped / "encoder")
    (stopped / "model").rename(stopped / "checkpoints" / "checkpoint-1")
    (stopped / "checkpoints" / "checkpoint-1" / "trainer_state.json").write_text('{"global_step": 1}')
    for folder in (stopped / "checkpoints").glob("checkpoint-2"):
        shutil.rmtree(folder)
    record = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps({**record, "status": "stopped"}))
    encoder = opened(stopped)
    assert encoder.folder is not None
    assert encoder.checksum == opened(run.path).checksum
    assert not (stopped / "encoder").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_a_head_with_the_task_s_labels(family, data, tmp_path):
    recipe = tiny_recipe(encoder=replace(tiny_recipe().encoder, family=family))
    (tmp_path / "recipe.yaml").write_text(json.dumps({"length": 32, "encoder": {
        "family": family, "layers": 2, "width": 32, "heads": 2}}))  # fmt: skip
    encoder = opened(f"random:{tmp_path / 'recipe.yaml'}", str(data.folder))
    model = encoder.with_head(make_task(), 0)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert encoder.longest == recipe.length
    ids = torch.ones(1, encoder.longest, dtype=torch.long) * 7
    assert model(input_ids=ids).logits.shape == (1, 2)
    assert encoder.with_head(make_task("tagging"), 0)(input_ids=ids).logits.shape == (1, 32, 2)
    assert encoder.with_head(make_task("regression"), 0)(input_ids=ids).logits.shape == (1, 1)


def test_a_random_encoder_takes_the_tokenizer_it_belongs_to(run, encoder_folder, data):
    vocabulary = load_tokenizer(data.tokenizer_folder).get_vocab()
    for name in (run.path, run.recipe_file, run.encoder):
        encoder = opened(f"random:{name}")
        assert encoder.is_random
        assert encoder.tokenizer.get_vocab() == vocabulary
    trained, random = open_encoders([str(encoder_folder), "random:demo"])
    assert random.tokenizer is trained.tokenizer
    assert opened("random:demo", str(run.path)).tokenizer.get_vocab() == vocabulary


def test_a_random_encoder_alone_gets_a_tokenizer_of_the_builtin_text(monkeypatch, capsys):
    from latemask.text.builtin import BuiltinReader

    whole = BuiltinReader.run

    def limited(self):
        self.characters_left = 100_000
        return whole(self)

    monkeypatch.setattr(BuiltinReader, "run", limited)
    encoder = opened("random:demo")
    assert 300 < len(encoder.tokenizer) <= encoder.config.vocab_size
    assert "--tokenizer ENCODER" in capsys.readouterr().err


def test_weights_of_strangers_are_never_unpickled(encoder_folder, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(encoder_folder, folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no safetensors in it; latemask opens no pickled weights"):
        opened(folder)


def test_weights_of_another_model_are_not_replaced_by_random_ones(encoder_folder, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(encoder_folder, folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: value for name, value in weights.items() if "layers.1" not in name}, folder / "model.safetensors")
    for build in (lambda encoder: encoder.plain(), lambda encoder: encoder.with_head(make_task(), 0)):
        with pytest.raises(UserError, match=r"do not fit its config: \d+ are missing, .*layers.1"):
            build(opened(folder))


def test_a_folder_without_a_tokenizer_is_refused(encoder_folder, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(encoder_folder / name, folder)
    for given in (folder, f"random:{folder}"):
        with pytest.raises(UserError, match="no tokenizer"):
            opened(given)


def test_a_tokenizer_larger_than_the_word_table_is_refused(encoder_folder, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(encoder_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    for given in (folder, f"random:{folder}"):
        with pytest.raises(UserError, match=r"has 1,024 pieces and its encoder only 100"):
            opened(given)


@pytest.mark.parametrize("model_type", ["t5", "vit", "clip"])
def test_other_kinds_of_models_are_no_text_encoders(encoder_folder, tmp_path, model_type):
    folder = tmp_path / model_type
    shutil.copytree(encoder_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    for given in (folder, f"random:{folder}"):
        with pytest.raises(UserError, match=f"holds a '{model_type}' model, which is no text encoder"):
            opened(given)


def test_a_fine_tuned_model_is_no_encoder(encoder, tmp_path):
    model = encoder.with_head(make_task(), 0)
    model.save_pretrained(str(tmp_path / "out" / "model"))
    with pytest.raises(UserError, match="holds a fine-tuned ModernBertForSequenceClassification"):
        opened(tmp_path / "out" / "model")
    with pytest.raises(UserError, match="holds a fine-tuned model; give the encoder"):
        opened(tmp_path / "out")


def test_a_tagger_s_words_are_words_inside_a_text(encoder_folder, tmp_path):
    """RoBERTa's tokenizer, as it is saved, would take each word for the start of a text."""
    folder = tmp_path / "roberta"
    shutil.copytree(encoder_folder, folder)
    RobertaTokenizer.from_pretrained(encoder_folder, add_prefix_space=False).save_pretrained(folder)
    encoder = opened(folder)
    assert not encoder.tokenizer.tokenize("be")[0].startswith("Ġ")
    encoded = encoder.tokenizer_for("tagging")(["be", "be"], is_split_into_words=True)
    pieces, words = encoded.tokens(), encoded.word_ids()
    assert [pieces[words.index(word)][0] for word in (0, 1)] == ["Ġ", "Ġ"]


def test_a_slash_at_the_end_names_the_same_encoder(encoder_folder):
    assert opened(f"{encoder_folder}/").name == str(encoder_folder)


def test_a_damaged_file_is_said(encoder_folder, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(encoder_folder, folder)
    (folder / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="cannot be loaded"):
        opened(folder).with_head(make_task(), 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere/at-all", "no encoder at 'nowhere/at-all': not a folder here, and not to be had from the Hub"),
        ("random:nothing", "no recipe at 'nothing'"),
        ("random:", "random: needs a name"),
    ],
)
def test_what_is_no_encoder(given, message):
    with pytest.raises(UserError, match=message):
        opened(given)


def test_options_that_mean_nothing_are_refused(encoder_folder, tmp_path):
    with pytest.raises(UserError, match="--tokenizer is for random: encoders"):
        opened(encoder_folder, "x")
    with pytest.raises(UserError, match="is given twice"):
        open_encoders([str(encoder_folder)] * 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        opened(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the folder holds neither a run nor an encoder"):
        opened(f"random:{tmp_path / 'empty'}")
    with pytest.raises(UserError, match=r"config.json is missing: no model there|is not a latemask run"):
        opened(tmp_path / "empty")


def test_roberta_s_table_has_two_rows_that_no_position_uses(encoder):
    from transformers import RobertaConfig

    assert longest_input(RobertaConfig(max_position_embeddings=34, pad_token_id=1), encoder.tokenizer) == 32


def test_each_trained_architecture_has_one_control_unless_it_was_given(encoder, encoder_folder):
    same = replace(encoder, name="again", checksum="other weights")
    (control,) = controls_for([encoder, same])
    assert (control.name, control.is_random) == (f"random:{encoder.name}", True)
    (given,) = open_encoders([f"random:{encoder_folder}"])
    given.tokenizer("a text", truncation=True, max_length=8)  # which the tokenizer remembers
    assert given.checksum == encoder.untrained().checksum
    assert given.checksum == control.checksum  # the same whoever asks for it
    assert controls_for([encoder, same, given]) == []
    wider = copy.deepcopy(encoder.config)
    wider.intermediate_size *= 2
    other = replace(encoder, name="wider", config=wider)
    assert [one.name for one in controls_for([encoder, other, given])] == ["random:wider"]
    assert controls_for([given]) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_an_architecture_is_known_from_its_recipe_and_from_its_files(family, data, tmp_path):
    recipe = tiny_recipe()
    recipe = complete_recipe(replace(recipe, encoder=replace(recipe.encoder, family=family)), data.vocabulary)
    build_model(recipe, data.vocabulary).encoder.save_pretrained(str(tmp_path))
    made = Encoder("made", None, TABLE[family].config(recipe.encoder, data.vocabulary), None, "")
    assert made.architecture == Encoder("read", None, stock_config(str(tmp_path)), None, "").architecture


def test_a_skeleton_has_the_encoders_names_and_shapes_and_no_weights(encoder):
    bones, model = encoder.skeleton(), encoder.plain()
    assert {name: one.shape for name, one in bones.named_parameters()} == {
        name: one.shape for name, one in model.named_parameters()
    }
    assert all(one.is_meta for one in bones.parameters())


def test_what_an_encoder_is_opened_by_later_is_its_folder_its_id_or_nothing(encoder, tmp_path):
    assert encoder.lasting_name == str(encoder.folder.resolve())
    assert replace(encoder, name="somebody/encoder").lasting_name == "somebody/encoder"
    assert replace(encoder, name=str(encoder.folder.parent)).lasting_name == str(encoder.folder.resolve())  # of a run
    assert replace(encoder, name=str(tmp_path)).lasting_name is None  # a run that was exported aside
    assert encoder.untrained().lasting_name is None
