"""`--method apiq` from the command to the folder: what was scored is what is stored, and what is stored is small."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from latemask import Results, UserError, predict
from latemask.cli import main
from latemask.evaluation.encoders import controls_for
from latemask.evaluation.features import logits_of, make_collator
from latemask.evaluation.grid import refuse_settings
from latemask.evaluation.methods import METHODS, in_body
from latemask.evaluation.methods.apiq import Options
from latemask.evaluation.methods.places import linears_of
from latemask.evaluation.methods.quantized import QUANTIZED, load_quantized, quantized_in
from latemask.evaluation.predictor import Predictor
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import Observer, prepare_task, run_trial
from tests.evaluation.conftest import make_task

SMALL = {"group": 16, "rank": 2, "samples": 8, "epochs": 1}
FAMILIES = ["bert", "roberta", "modernbert"]


def prepared_for(encoder, kind="classification", options=None, **changes):
    given = {"epochs": 2, "batch_size": 8, "precision": "fp32", **changes}
    return prepare_task(
        encoder, make_task(kind), Protocol(method="apiq", options={**SMALL, **(options or {})}, **given)
    )


def logits(model, prepared):
    collator = make_collator(prepared.task.kind, prepared.encoder.tokenizer)
    return [torch.from_numpy(row) for row in logits_of(model, prepared.splits["dev"].rows, collator)]


@pytest.fixture(autouse=True)
def nothing_fitted_before(monkeypatch):
    monkeypatch.setattr(METHODS["apiq"], "made", {})


@pytest.mark.parametrize(
    ("family", "kind", "options", "changes"),
    [
        ("bert", "classification", {"bits": 2}, {}),
        ("roberta", "multilabel", {"bits": 3, "fit": "layer"}, {"checkpointing": True}),
        ("modernbert", "tagging", {"bits": 4, "alpha": 8}, {"precision": "bf16"}),
        ("deberta-v2", "regression", {"bits": 2, "fit": "loftq"}, {}),
        ("distilbert", "classification", {"bits": 3, "fit": "nearest"}, {"precision": "bf16", "checkpointing": True}),
        ("nomic_bert", "regression", {"bits": 4}, {}),
    ],
)
def test_a_reloaded_folder_says_to_the_bit_what_was_scored(stock, tmp_path, family, kind, options, changes):
    prepared = prepared_for(stock(family, layers=2), kind, options, **changes)
    trial, model = run_trial(prepared, 1e-2, seed=0, keep=True)
    wanted = logits(model, prepared)
    assert METHODS["apiq"].save(model, tmp_path, prepared.protocol)
    opened = load_quantized(tmp_path)
    assert all(torch.equal(is_, was) for is_, was in zip(logits(opened, prepared), wanted, strict=True))
    assert not opened.training
    assert trial.loss[-1][1] is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_low_rank_parts_and_head_learn_and_all_else_keeps_its_bits(stock, family):
    prepared = prepared_for(stock(family, layers=2))
    start = METHODS["apiq"].fitted(prepared.encoder.with_head(prepared.task, 0), prepared)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    trial, model = run_trial(prepared, 1e-2, seed=0, keep=True)
    after = model.state_dict()
    thin = {f"{name}.{part}" for name in quantized_in(model) for part in ("up", "down")}
    heads = {name for name in after if not in_body(model, name)}
    learned = {name for name in after if not torch.equal(after[name], before[name])}
    assert thin <= learned <= thin | heads
    assert learned & heads
    assert trial.trained_weights == sum(after[name].numel() for name in thin)
    stock_weights = prepared.encoder.with_head(prepared.task, 0).state_dict()
    kept = [name for name in stock_weights if name in after and in_body(model, name)]
    assert all(torch.equal(after[name], stock_weights[name].half().float()) for name in kept)
    assert len(kept) > 5


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_what_is_reported_as_stored_is_in_the_file(stock, tmp_path, bits):
    prepared = prepared_for(stock("roberta", layers=2), options={"bits": bits}, epochs=1)
    trial, model = run_trial(prepared, 1e-2, seed=0, keep=True)
    METHODS["apiq"].save(model, tmp_path, prepared.protocol)
    maps = tuple(quantized_in(model))
    found = {name: value for name, value in load_file(tmp_path / QUANTIZED).items() if name.startswith(maps)}
    assert trial.stored_bytes == sum(
        value.numel() * value.element_size() for name, value in found.items() if not name.endswith("bias")
    )
    assert {str(value.dtype) for value in found.values()} == {"torch.int32", "torch.float16", "torch.uint8"}


def test_a_fit_is_done_once_and_gives_what_a_fresh_one_gives(stock, monkeypatch):
    count, method = [], METHODS["apiq"]
    monkeypatch.setattr(Observer, "before_training", lambda self, words: count.append(words))
    prepared = prepared_for(stock("bert", layers=2), epochs=1)
    first, one = run_trial(prepared, 1e-2, seed=0, keep=True)
    steps = len(count)
    assert steps == 4
    again, other = run_trial(prepared, 1e-2, seed=0, keep=True)
    run_trial(prepared, 1e-3, seed=1)  # a BERT without a pooler gets another one with every seed
    assert (len(count), len(method.made)) == (steps, 1)
    assert (first.score, first.loss) == (again.score, again.loss)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    run_trial(replace(prepared, protocol=replace(prepared.protocol, options={**SMALL, "bits": 2})), 1e-2, seed=0)
    assert (len(count), len(method.made)) == (2 * steps, 2)
    assert quantized_in(method.fitted(prepared.encoder.with_head(prepared.task, 0), prepared))
    assert len(method.made) == 2  # what was trained changed nothing of what is kept


def test_a_never_trained_control_is_fitted_for_every_seed_and_few_are_kept(stock):
    (control,) = controls_for([stock("bert", layers=2)])
    prepared = prepared_for(control, epochs=1)
    for seed in range(6):
        METHODS["apiq"].fitted(control.with_head(prepared.task, seed), prepared)
    assert len(METHODS["apiq"].made) == 4


def test_texts_of_a_file_are_fitted_on_instead(stock, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"a text about {number}" for number in range(9)))
    scales = []
    for calibration in (None, str(file)):
        prepared = prepared_for(stock("bert", layers=2), options={"calibration": calibration})
        model = METHODS["apiq"].fitted(prepared.encoder.with_head(prepared.task, 0), prepared)
        scales.append(next(iter(quantized_in(model).values())).scales)
    assert not torch.equal(*scales)


def test_by_default_the_rank_is_a_48th_of_the_width(stock):
    assert METHODS["apiq"].learning_rate(768) == pytest.approx(3e-4)
    for width, rank in ((32, 1), (96, 2)):
        prepared = prepared_for(stock("bert", layers=1, width=width), options={"rank": None, "fit": "nearest"})
        model = METHODS["apiq"].fitted(prepared.encoder.with_head(prepared.task, 0), prepared)
        assert {one.shape.rank for one in quantized_in(model).values()} == {rank}
        assert {one.shape.scale for one in quantized_in(model).values()} == {1.0}


def test_from_the_command_to_predictions(stock, glue_folder, tmp_path, capsys):
    encoder, dev = stock("modernbert", layers=2), glue_folder / "SST-2" / "dev.tsv"
    words = ["finetune", encoder.folder, "--task", "sst2", "--data", glue_folder, "--out", tmp_path / "o", "--seeds", 1]
    words += ["--epochs", 1, "--method", "apiq", "--no-control", "--precision", "fp32", "--apiq.bits", 3]
    words += [part for name, value in SMALL.items() for part in (f"--apiq.{name}", value)]
    assert main([str(word) for word in words]) == 0
    assert Results.read(tmp_path / "o" / "results.json").protocol.of_method == Options(bits=3, **SMALL)
    (trial,) = json.loads((tmp_path / "o" / "results.json").read_text())["cells"]
    rows = [line.rpartition("\t") for line in dev.read_text().splitlines()[1:]]
    found = [row["label"] for row in predict(tmp_path / "o", dev)]
    names = {"0": "negative", "1": "positive"}
    right = [names.get(label, label) == is_ or label == is_ for (_, _, label), is_ in zip(rows, found, strict=True)]
    assert sum(right) / len(right) == trial["score"]
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0  # nothing left to do
    assert "1 runs are done already, 0 to go" in capsys.readouterr().err
    assert "quantised matrices" in (tmp_path / "o" / "results.md").read_text()


def test_a_folder_says_what_it_holds_and_how_it_is_opened(stock, tuned):
    folder = tuned(stock("bert", layers=2), "apiq", options={**SMALL, "bits": 2}, epochs=1) / "model"
    card = " ".join((folder / "README.md").read_text().split())
    assert "The 12 matrices inside the encoder's layers are kept in 2 bits; 16 weights of a row share" in card
    assert "rank 2" in card
    assert re.search(r"made by `block`: untrained, what the last layer made of 8 texts was off by \d+\.\d%", card)
    here, whole, times = re.search(
        r"has ([\d,]+) bytes; the stock .* has ([\d,]+) in fp32, ([\d.]+) times", card
    ).groups()
    here, whole = int(here.replace(",", "")), int(whole.replace(",", ""))
    assert (folder / QUANTIZED).stat().st_size == here
    stock_folder = folder.parent / "stock"
    Predictor(folder).model.config.save_pretrained(stock_folder)
    plain = AutoModelForSequenceClassification.from_config(Predictor(folder).model.config)
    plain.save_pretrained(stock_folder)
    assert (stock_folder / "model.safetensors").stat().st_size == pytest.approx(whole, rel=0.03)  # names take some
    assert float(times) == pytest.approx(whole / here, abs=0.05)
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found = {}
    exec(code.replace("path/to/this/folder", str(folder)), found)
    assert type(found["model"]).__name__ == "BertForSequenceClassification"
    with pytest.raises(OSError, match=r"model\.safetensors"):  # nobody takes it for a stock model
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_opened_matrices_stay_packed(stock, tuned):
    folder = tuned(stock("bert", layers=2), "apiq", options=SMALL, epochs=1)
    model = Predictor(folder).model
    assert not linears_of(model)
    assert not any(value.is_meta for value in model.state_dict().values())
    inside = [value for one in quantized_in(model).values() for value in one.state_dict().values()]
    assert max(value.numel() * value.element_size() for value in inside) <= 32 * 128 * 4 / 8


@pytest.fixture
def saved(stock, tmp_path):
    """A folder that nothing was trained for."""
    prepared = prepared_for(stock("bert", layers=1), options={"fit": "nearest"})
    model = METHODS["apiq"].fitted(prepared.encoder.with_head(prepared.task, 0), prepared)
    METHODS["apiq"].save(model, tmp_path, prepared.protocol)
    return tmp_path


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "shape", "missing", "other"])
def test_a_damaged_folder_is_a_line(saved, damage):
    file = saved / QUANTIZED
    whole, state = file.read_bytes(), load_file(file)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    key = next(name for name in state if name.endswith("codes"))
    assert load_quantized(saved)
    if damage == "gone":
        file.unlink()
    elif damage in ("cut", "empty"):
        file.write_bytes(whole[:5000] if damage == "cut" else b"")
    elif damage == "other":
        save_file(state, file)  # without what says how it is packed
    elif damage == "shape":
        save_file({**state, key: state[key][:, :-1].contiguous()}, file, metadata)
    else:
        save_file({name: value for name, value in state.items() if name != key}, file, metadata)
    with pytest.raises(UserError, match=r"quantized\.safetensors") as error:
        load_quantized(saved)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "--apiq.bits 5: 2, 3 or 4"),
        ({"group": 0}, "--apiq.group 0: 1 at least"),
        ({"group": 64}, r"--apiq.group 64 does not divide the widths of its matrices \(32, 128\); 8 or 16 or 32 does"),
        ({"group": 24}, r"\(32, 128\); .*16 or 32.* does"),
        ({"rank": 33}, "--apiq.rank 33 is more than its smallest matrix can have; 32 at most"),
        ({"rank": 0}, "--apiq.rank 0: 1 at least"),
        ({"samples": 0}, "--apiq.samples 0: 1 at least"),
        ({"epochs": -1}, "--apiq.epochs -1: 0 at least"),
        ({"rate": 0.0}, "--apiq.rate 0.0: a positive number"),
        ({"alpha": -1.0}, "--apiq.alpha -1.0: a positive number"),
        ({"calibration": "/no/such/file"}, "--apiq.calibration /no/such/file cannot be read"),
        ({"fit": "blocks"}, "apiq.fit must be one of 'block', 'layer', 'loftq', 'nearest', not 'blocks'"),
    ],
)
def test_what_cannot_be_is_a_line_and_leaves_nothing(stock, tuned, tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        tuned(stock("bert", layers=2), "apiq", options={**SMALL, **options})
    assert len(str(error.value).splitlines()) <= 2
    assert not (tmp_path / "o").exists()


def test_layers_that_share_weights_or_have_no_linear_maps_are_refused(stock):
    from transformers import AlbertConfig

    encoder = stock("bert", layers=2)
    config = AlbertConfig(vocab_size=1100, hidden_size=32, num_attention_heads=2, intermediate_size=64)
    with pytest.raises(UserError, match="its layers have no linear maps of their own to quantise; --method full"):
        refuse_settings(Protocol(method="apiq", options=SMALL), [replace(encoder, config=config)], None)


def test_an_interrupted_fit_is_a_stopped_grid_and_goes_on(stock, tuned, monkeypatch):
    from latemask.evaluation.grid import GridProgress
    from latemask.ground.errors import Interrupted

    encoder, said, tell = stock("bert", layers=2), [], GridProgress.before_training

    def stop(self, words):
        said.append(words)
        self.stop.received = 2 if len(said) == 3 else None
        tell(self, words)

    with monkeypatch.context() as patch:
        patch.setattr(GridProgress, "before_training", stop)
        with pytest.raises(Interrupted, match="The same command goes on from there"):
            tuned(encoder, "apiq", options=SMALL, epochs=1)
    assert said == ["quantising layer 1 of 2"] * 2 + ["quantising layer 2 of 2"]
    folder = tuned(encoder, "apiq", options=SMALL, epochs=1)
    assert len(Results.read(folder / "results.json").trials) == 1
