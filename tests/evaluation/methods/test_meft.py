"""MEFT from the command: trains little, stores few activations, is refused where it is inexact, and opens again."""

import json
import re
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from latemask import Results, UserError, predict
from latemask.cli import main
from latemask.evaluation import grid
from latemask.evaluation.features import logits_of, make_collator
from latemask.evaluation.methods import METHODS, trained_weights
from latemask.evaluation.predictor import Predictor
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import TASK_FILE
from latemask.evaluation.trials import prepare_task, run_trial
from tests.evaluation.conftest import make_task

WIDTH, RANK, FLOAT = 32, 4, 4
WEIGHTS = "meft.safetensors"
KINDS = ["classification", "regression", "multilabel", "tagging"]
MEFT = METHODS["meft"]


def protocol(**options):
    return Protocol(epochs=2, batch_size=8, precision="fp32", method="meft", options={"rank": RANK, **options})


def trial_of(encoder, how, kind="classification", lr=1e-2, keep=True):
    prepared = prepare_task(encoder, make_task(kind), how)
    return prepared, *run_trial(prepared, lr, seed=0, keep=keep)


def said(model, prepared):
    collator = make_collator(prepared.task.kind, prepared.encoder.tokenizer_for(prepared.task.kind))
    return logits_of(model, prepared.splits["dev"].rows, collator, lambda done: None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "variant"), [("modernbert", 1), ("roberta", 2), ("bert", 3)])
def test_a_saved_model_gives_the_same_logits_for_all_kinds_of_task(stock, tmp_path, family, variant, kind):
    how = protocol(variant=variant)
    prepared, _, model = trial_of(stock(family), how, kind)
    assert MEFT.save(model, tmp_path, how)
    auto = AutoModelForTokenClassification if kind == "tagging" else AutoModelForSequenceClassification
    opened = MEFT.opened(tmp_path, auto, how.of_method)
    for one, other in zip(said(model, prepared), said(opened, prepared), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize(("family", "alphas"), [("roberta", 0), ("modernbert", 1)])
def test_only_adapters_and_head_are_trained_and_stored(stock, family, alphas):
    encoder = stock(family)
    prepared, trial, model = trial_of(encoder, protocol())
    adapter = WIDTH * RANK + RANK + RANK * WIDTH + WIDTH
    assert trial.trained_weights == 3 * 2 * adapter + alphas
    assert trial.stored_bytes == FLOAT * trial.trained_weights
    assert all(".stock." not in name for name, _ in trained_weights(model))
    before = encoder.with_head(prepared.task, 0).state_dict()
    changed = {
        name.split(".")[0]
        for name, value in model.state_dict().items()
        if (plain := name.replace(".stock.", ".")) in before and not torch.equal(value, before[plain])
    }
    assert "classifier" in changed
    assert model.base_model_prefix not in changed


def test_a_task_is_learnt_and_the_same_seed_gives_the_same_bits(stock):
    how = replace(protocol(), epochs=6)
    found = [trial_of(stock("modernbert"), how)[1:] for _ in range(2)]
    assert found[0][0].score == 1.0
    assert found[0][0].loss == found[1][0].loss
    one, other = (model.state_dict() for _, model in found)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_takes_half_of_fulls_memory_or_less(stock, precision):
    encoder, found = stock("roberta", layers=12), {}
    for method in ("full", "meft"):
        how = Protocol(epochs=1, batch_size=16, precision=precision, method=method)
        _, trial, _ = trial_of(encoder, how, keep=False)
        found[method] = trial.step_bytes
        assert trial.precision == precision
    assert found["meft"] <= 0.5 * found["full"]


def test_streams_that_cannot_be_computed_back_are_refused_with_the_layer_and_the_remedy(stock):
    encoder = stock("roberta", layers=12)
    with pytest.raises(UserError) as caught:
        trial_of(encoder, protocol(anchors=12, first_scale=0.01))
    assert re.fullmatch(
        r"--method meft: layer \d+ has not the gradient that plain autograd gives it \(cosine -?\d\.\d+\).*\n"
        r"lower --meft.anchors \(now 12\), raise --meft.first-scale \(now 0.01\)",
        str(caught.value),
    )
    with pytest.raises(UserError, match=r"or pass --precision fp32"):
        trial_of(encoder, replace(protocol(variant=2, anchors=12, second_scale=0.01), precision="bf16"))
    trial_of(encoder, replace(protocol(anchors=1, first_scale=0.01), epochs=1), keep=False)  # the remedy is one


def test_the_check_changes_nothing_of_what_is_trained(stock, monkeypatch):
    checked = trial_of(stock("roberta"), protocol())[1]
    monkeypatch.setattr("latemask.evaluation.methods.meft._refuse_inexact", lambda model, prepared: None)
    assert trial_of(stock("roberta"), protocol())[1].loss == checked.loss


def test_from_the_command_to_predictions(stock, tuned, glue_folder):
    folder = tuned(stock("modernbert"), "meft", options={"rank": RANK, "variant": 3})
    (trial,) = Results.read(folder / "results.json").trials
    dev = glue_folder / "RTE" / "dev.tsv"
    found = [row["label"] for row in predict(folder, dev)]
    lines = dev.read_text().splitlines()[1:]
    right = [label == line.split("\t")[-1] for label, line in zip(found, lines, strict=True)]
    assert sum(right) / len(right) == trial.score
    assert json.loads((folder / "model" / TASK_FILE).read_text())["options"] == {
        "variant": 3, "rank": RANK, "first_scale": 0.1, "second_scale": 0.1, "anchors": 3,
    }  # fmt: skip
    card = (folder / "model" / "README.md").read_text()
    assert "by `meft`" in card
    assert "Two streams" in card
    assert "Predictor(" in card
    assert "fine-tuned by MEFT" in (folder / "results.md").read_text()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AutoModelForSequenceClassification.from_pretrained(folder / "model")


@pytest.mark.parametrize("damage", ["missing", "cut", "another shape"])
def test_a_damaged_folder_is_one_line(stock, tuned, damage):
    folder = tuned(stock("roberta"), "meft", epochs=1, options={"rank": RANK})
    file = folder / "model" / WEIGHTS
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    else:
        note = folder / "model" / TASK_FILE
        record = json.loads(note.read_text())
        record["options"]["rank"] = 2
        note.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"meft\.safetensors is missing or damaged, fine-tune again: ") as caught:
        Predictor(folder)
    assert "\n" not in str(caught.value)


def test_an_interrupted_grid_goes_on_and_ends_like_one_that_was_not(stock, tuned, tmp_path, monkeypatch):
    encoder, given = stock("roberta"), {"options": {"rank": RANK}, "epochs": 1, "seeds": 2}
    whole = tuned(encoder, "meft", out=tmp_path / "whole", **given)
    once, run = [], grid.run_trial

    def interrupted(*args, **kwargs):
        if once:
            raise KeyboardInterrupt
        once.append(1)
        return run(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(grid, "run_trial", interrupted)
        with pytest.raises(UserError, match="The same command goes on from there"):
            tuned(encoder, "meft", out=tmp_path / "parts", **given)
    parts = tuned(encoder, "meft", out=tmp_path / "parts", **given)
    losses = [[trial.loss for trial in Results.read(at / "results.json").trials] for at in (whole, parts)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    weights = [(at / "model" / WEIGHTS).read_bytes() for at in (whole, parts)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--meft.variant", 4], r"--meft.variant 4: 1, 2 or 3"),
        (["--meft.rank", 0], r"--meft.rank 0: 1 to 32, the encoder's width"),
        (["--meft.rank", 33], r"--meft.rank 33: 1 to 32"),
        (["--meft.anchors", 0], r"--meft.anchors 0: one at least"),
        (["--meft.first-scale", 0], r"--meft.first-scale 0: above 0, and 1 at most"),
        (["--meft.second-scale", 1.5], r"--meft.second-scale 1.5: above 0, and 1 at most"),
        (["--checkpointing"], r"--checkpointing: meft keeps no activations anyway"),
    ],
)
def test_options_that_mean_nothing_are_a_line_and_leave_nothing(stock, glue_folder, tmp_path, capsys, words, message):
    given = ["finetune", stock("roberta").folder, "--task", "rte", "--data", glue_folder, "--out", tmp_path / "o"]
    assert main([str(word) for word in [*given, "--method", "meft", *words]]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "o").exists()


def test_families_that_nobody_looked_at_are_refused_with_what_to_do_instead(stock):
    encoder = stock("roberta")
    unknown = replace(encoder, config=type("Config", (), {"hidden_size": WIDTH, "model_type": "canine"})())
    message = MEFT.problem(unknown, protocol())
    assert "layers of 'canine'; --method lora or full with --checkpointing" in message
    between = replace(encoder, config=type("Config", (), {**vars(unknown.config.__class__), "model_type": "deberta-v2",
                                                          "conv_kernel_size": 3})())  # fmt: skip
    assert "convolution" in MEFT.problem(between, protocol())
    assert MEFT.problem(encoder, protocol()) is None


def test_the_default_rate_is_the_authors_for_a_base_model():
    assert MEFT.learning_rate(768) == pytest.approx(3e-4)
