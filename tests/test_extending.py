"""The house is open: an objective, a family, a masking pattern, an optimizer, a schedule, a start and a fine-tuning
method are added here, from outside the package, each in one place, and go through every verb that could care.

CONTRIBUTING shows the same, in a few lines each.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from latemask import Protocol, compare, export, fill, finetune, load_recipe, plan, predict, pretrain, report
from latemask.cli import main
from latemask.evaluation.methods import METHODS, Method
from latemask.families import FAMILIES
from latemask.families.bert import Roberta
from latemask.ground.errors import TimeIsUp, UserError
from latemask.masking.patterns import uniform
from latemask.objectives import OBJECTIVES, Objective
from latemask.objectives.costs import Flops, head_flops, head_kept, layers_of
from latemask.recipe import OPTIMIZERS, PATTERNS, SCHEDULES, STARTS, BudgetRecipe, EncoderRecipe, dump_recipe
from latemask.run_folder import RunFolder
from tests.conftest import tiny_recipe


@dataclass(frozen=True)
class Blur:
    """How much noise."""

    strength: float = 0.1
    """How far a blurred word is from itself."""


class Blurring(Objective):
    """Every position is seen, but the predicted ones only as blurred word vectors: no [MASK] anywhere."""

    section, Options, card = "blur", Blur, "blurring, which is not in the package"

    def problem(self, recipe):
        return None if 0 < recipe.options.strength < 1 else f"blur.strength is {recipe.options.strength}"

    def batch(self, ids, masks, vocabulary, options):
        return {
            "ids": masks.ids,
            "predicted": masks.masked,
            "labels": np.take_along_axis(ids, masks.masked, axis=1),
        }

    def settings(self, recipe):
        return {"strength": recipe.options.strength}

    def add_weights(self, model, settings):
        model.blur = torch.nn.Parameter(torch.empty(settings.encoder.hidden_size))

    def start(self, model):
        model.blur.fill_(model.config.strength)

    def added_weights(self, recipe):
        return recipe.encoder.width

    def forward(self, model, ids, predicted, labels=None):
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        vectors = model.words[ids]
        seen = torch.ones_like(ids, dtype=vectors.dtype).scatter(1, predicted, model.config.strength)[..., None]
        states = model.family.embed(model.encoder, positions, vectors=vectors * seen + (1 - seen) * model.blur)
        places = model.family.places(model.encoder, states, positions)
        for layer in model.family.layers(model.encoder):
            states = model.family.run(layer, states, places)
        states = model.family.final_norm(model.encoder, states)
        return model.predict(states.gather(1, predicted[..., None].expand(-1, -1, states.shape[-1])), labels)

    def fill_batch(self, ids, is_mask):
        return {"ids": ids, "predicted": is_mask.nonzero()[:, 1].view(len(ids), -1)}

    def flops(self, recipe, pruned=True):
        length = recipe.length
        return Flops(sum(layer.flops(length, length) for layer in layers_of(recipe)), 0, head_flops(recipe))

    def kept_numbers(self, recipe, scores):
        return sum(layer.kept(recipe.length, scores) for layer in layers_of(recipe)) + head_kept(recipe)

    def words(self, recipe):
        return [f"blurred {recipe.options.strength:g}"]

    def where(self, recipe):
        return "no [MASK] at all"


class Data2Vec(Roberta):
    """A stock family that the package does not know: RoBERTa's layers under another name."""

    model_type = "data2vec-text"


def striped(ids, keys, counts, vocabulary):
    """Every second position first."""
    order = uniform(ids, keys, counts, vocabulary)
    return np.take_along_axis(order, np.argsort(order % 2 == 0, axis=1, kind="stable"), axis=1)


def plain_sgd(model, train):
    return torch.optim.SGD(model.parameters(), lr=train.learning_rate, momentum=0.9)


def constant(done, phases):
    return 1.0


def all_alike(model, corpus, seed):
    model.words[: len(corpus.neighbours.frequencies)] = model.words[0].clone()


class HeadOnly(Method):
    """The encoder stays as it is."""

    def prepared(self, model, protocol):
        for weight in model.base_model.parameters():
            weight.requires_grad_(False)
        return model


ADDED = [
    (OBJECTIVES, "blurring", Blurring()),
    (FAMILIES, "data2vec-text", Data2Vec()),
    (PATTERNS, "striped", striped),
    (OPTIMIZERS, "plain-sgd", plain_sgd),
    (SCHEDULES, "constant", constant),
    (STARTS, "all-alike", all_alike),
    (METHODS, "head-only", HeadOnly()),
]


@pytest.fixture(scope="module", autouse=True)
def added():
    for table, name, thing in ADDED:
        table[name] = thing
    yield
    for table, name, _ in ADDED:
        del table[name]


def with_all_of_it():
    recipe = tiny_recipe()
    train = replace(recipe.train, optimizer="plain-sgd", schedule="constant", save_every=2)
    return replace(
        recipe,
        objective="blurring",
        options=Blur(strength=0.2),
        encoder=EncoderRecipe(family="data2vec-text", start="all-alike", layers=2, width=32, heads=2),
        mask=replace(recipe.mask, pattern="striped"),
        train=train,
        budget=BudgetRecipe(steps=4),
    )


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("extended") / "run"
    return pretrain(with_all_of_it(), data=data.folder, out=out)


def test_a_start_is_where_a_run_begins(run):
    words = load_file(run.model / "model.safetensors")["encoder.embeddings.word_embeddings.weight"]
    assert torch.nn.functional.cosine_similarity(words[:1], words).median() > 0.9  # four small steps away
    assert "| start | all-alike, counted in" in (run.encoder / "README.md").read_text()


def test_a_recipe_with_all_of_it_survives_yaml(tmp_path):
    (tmp_path / "mine.yaml").write_text(dump_recipe(with_all_of_it()))
    assert "blur:\n  strength: 0.2\n" in (tmp_path / "mine.yaml").read_text()
    assert load_recipe(tmp_path / "mine.yaml") == with_all_of_it()


def test_the_command_line_takes_and_checks_an_objectives_own_options(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(dump_recipe(with_all_of_it()))
    words = ["plan", str(tmp_path / "mine.yaml"), "--encoder.vocab-size", "500"]
    assert main([*words, "--blur.strength", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["blur"] == {"strength": 0.3}
    assert main([*words, "--blur.strength", "7"]) == 2
    assert "blur.strength is 7" in capsys.readouterr().err
    assert main([*words, "--join.kind", "self"]) == 2
    assert "join is a section of objective late, and this run's is blurring" in capsys.readouterr().err
    assert main(["plan", "--help"]) == 0
    assert "How far a blurred word is from itself." in capsys.readouterr().out


def test_it_is_planned_by_what_it_says_it_costs(capsys):
    recipe = replace(with_all_of_it(), encoder=replace(with_all_of_it().encoder, vocab_size=500))
    planned = plan(recipe)
    assert "no [MASK] at all" in capsys.readouterr().out
    assert planned.ratio > 1  # more is predicted than MLM at 15 % does, and nothing is left out
    assert planned.run.weights.decoder == 32


def test_it_trains_and_resumes_to_the_same_bits(data, run, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(with_all_of_it(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    resumed = pretrain(with_all_of_it(), data=data.folder, out=tmp_path / "run", resume=True)
    ours, theirs = (load_file(one.model / "model.safetensors") for one in (resumed, run))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(theirs["blur"], torch.full((32,), 0.2))  # it learns
    rates = [row["learning_rate"] for row in run.metrics() if "learning_rate" in row]
    assert rates == [0.003] * 4


def test_it_fills_a_mask(run):
    (predictions,) = fill(run.path, "The value of <mask> is returned.", top=3)
    assert len(predictions) == 3


def test_its_encoder_is_a_stock_one_with_its_words_on_the_card(run, tmp_path):
    folder = export(run.path, out=tmp_path / "encoder")
    assert AutoModel.from_pretrained(folder).config.model_type == "data2vec-text"
    assert "blurring, which is not in the package" in (folder / "README.md").read_text()


def test_it_is_reported_and_compared(run, data, tmp_path):
    late = pretrain(replace(tiny_recipe(), budget=BudgetRecipe(steps=2)), data=data.folder, out=tmp_path / "late")
    assert "blurring 40% blurred 0.2" in report(run.path).read_text()
    page = compare([run.path, late.path], out=tmp_path / "report").read_text()
    assert "blurring 40% blurred 0.2" in page
    assert "strength: 0.2" in page


def test_its_encoder_is_fine_tuned_by_a_method_of_its_own(run, tmp_path):
    for name in ("train", "dev", "new"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "a good film,glad\na bad film,sad\n" * 8)
    results = finetune(
        str(run.path),
        train=tmp_path / "train.csv",
        dev=tmp_path / "dev.csv",
        text="text",
        label="label",
        out=tmp_path / "tuned",
        seeds=1,
        no_control=True,
        protocol=Protocol(epochs=1, method="head-only"),
    )
    assert results.protocol.method == "head-only"
    before, after = (load_file(f / "model.safetensors") for f in (run.encoder, tmp_path / "tuned" / "model"))
    assert all(torch.equal(before[name], after[f"data2vec_text.{name}"]) for name in before)
    assert {row["label"] for row in predict(tmp_path / "tuned", tmp_path / "new.csv")} <= {"glad", "sad"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"objective": "bluring"}, r"unknown objective 'bluring' \(did you mean 'blurring'\?\)"),
        ({"mask": {"pattern": "stripe"}}, r"unknown masking pattern 'stripe' \(did you mean 'striped'\?\)"),
        ({"encoder": {"family": "camenbert"}}, r"unknown encoder family .* \(did you mean 'camembert'\?\)"),
        ({"train": {"optimizer": "sgd"}}, r"unknown optimizer 'sgd' \(did you mean 'plain-sgd'\?\)"),
        ({"train": {"schedule": "constnt"}}, r"unknown schedule 'constnt' \(did you mean 'constant'\?\)"),
    ],
)
def test_a_name_that_nobody_added_is_refused_with_the_nearest(changed, said):
    with pytest.raises(UserError, match=said):
        load_recipe("demo", changed)


def test_without_its_objective_a_run_says_what_is_missing(run):
    kept = OBJECTIVES.pop("blurring")
    try:
        with pytest.raises(UserError, match="unknown objective 'blurring'"):
            fill(RunFolder(run.path).path, "a <mask>")
    finally:
        OBJECTIVES["blurring"] = kept


def test_what_contributing_shows_works_as_it_stands(data, tmp_path):
    """Every Python block of CONTRIBUTING.md, run as written, then used together."""
    tables = (OBJECTIVES, FAMILIES, PATTERNS, OPTIMIZERS, SCHEDULES, STARTS, METHODS)
    before = [{name: table[name] for name in table.names()} for table in tables]
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text("utf-8")
    try:
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            exec(compile(block, "CONTRIBUTING.md", "exec"), {"__name__": "contributing"})
        added = [sorted(set(table) - set(old)) for table, old in zip(tables, before, strict=True)]
        assert added == [["noisy"], [], ["spread"], ["sgd"], [], ["narrow"], []]  # three names are already added above
        words = ["--objective", "noisy", "--noise.strength", "0.2", "--encoder.family", "camembert"]
        words += ["--mask.pattern", "spread", "--train.optimizer", "sgd", "--train.schedule", "constant"]
        words += ["--encoder.start", "narrow"]
        words += ["--encoder.layers", "2", "--encoder.width", "32", "--encoder.heads", "2", "--train.batch-size", "4"]
        out = ["--data", str(data.folder), "--out", str(tmp_path / "run"), "--max-steps", "3"]
        assert main(["pretrain", "demo", *words, *out]) == 0
        saved = load_recipe(tmp_path / "run" / "recipe.yaml")
        assert (saved.options.strength, saved.train.optimizer, saved.mask.pattern) == (0.2, "sgd", "spread")
        assert "masked language modelling with noise" in (tmp_path / "run" / "encoder" / "README.md").read_text()
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
