"""A run with late masks may end with [MASK]s in the input: then its encoder knows the mask token."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

from latemask import UserError, export, load_recipe, pretrain
from latemask.budget.flops import planned_steps, sequence_flops, spent
from latemask.budget.memory import step_memory
from latemask.filling import Filler
from latemask.ground.errors import TimeIsUp
from latemask.model import complete_recipe, load_model
from latemask.recipe import BudgetRecipe, EncoderRecipe, MaskRecipe, Stem
from latemask.run_folder import RunFolder
from latemask.training import running
from tests.conftest import KINDS, VOCABULARY, joining, tiny_recipe

STEPS, TURN = 12, 9


def finishing(recipe=None, **train):
    recipe = recipe or tiny_recipe()
    train = {"finish_early": 0.25, "save_every": 4, "eval_rows": 16, **train}
    return replace(recipe, budget=BudgetRecipe(steps=STEPS), train=replace(recipe.train, **train))


def weights(run: RunFolder):
    return load_file(run.model / "model.safetensors")


def same(one: RunFolder, two: RunFolder) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return pretrain(finishing(), data=data.folder, out=tmp_path_factory.mktemp("runs") / "finished")


def test_it_ends_as_masked_language_modelling_does(run):
    model = load_model(run.model)
    assert model.config.objective == "early"
    assert "mask_vector" not in weights(run)
    assert load_recipe(run.recipe_file).objective == "late"


def test_the_mask_token_begins_as_the_mask_vector(data, tmp_path):
    run = pretrain(finishing(keep_at=(TURN,)), data=data.folder, out=tmp_path / "run")
    at_the_turn = load_file(run.checkpoints / f"checkpoint-{TURN}" / "model.safetensors")
    words = "encoder.embeddings.tok_embeddings.weight"
    started = running.model_of(_job(run, data), run.checkpoints / f"checkpoint-{TURN}")
    assert torch.equal(started.words[4], at_the_turn["mask_vector"])
    others = torch.arange(len(started.words)) != 4
    assert torch.equal(started.words[others], at_the_turn[words][others])


def _job(run, data):
    from latemask.text import Mixture
    from latemask.training.job import plan_job

    return plan_job(load_recipe(run.recipe_file), Mixture.open(data.folder))


@pytest.mark.parametrize("stopped_after", [3, TURN, TURN + 1])
def test_stopped_before_at_and_after_the_turn_it_ends_with_the_same_bits(
    run, data, tmp_path, monkeypatch, stopped_after
):
    monkeypatch.setattr("latemask.ground.signals.StopRequest.is_asked", _asked_after(stopped_after))
    with pytest.raises(TimeIsUp):
        pretrain(finishing(), data=data.folder, out=tmp_path / "run")
    monkeypatch.undo()
    resumed = pretrain(finishing(), data=data.folder, out=tmp_path / "run", resume=True)
    assert same(run, resumed)
    assert [row["step"] for row in resumed.metrics()] == [row["step"] for row in run.metrics()]


def _asked_after(steps):
    count = iter(range(1, 1000))
    return lambda self: next(count) >= steps


def test_flops_are_those_of_both_parts(run):
    recipe = load_recipe(run.recipe_file)
    late, early = (sequence_flops(recipe.at(progress)).training for progress in (0, 1))
    assert early > late
    rows = recipe.train.batch_size
    assert run.record["flops"] == pytest.approx(rows * (TURN * late + (STEPS - TURN) * early))


def test_the_loss_is_measured_at_the_turn_and_at_the_end_and_the_card_has_both(run):
    validated = {row["step"]: row["eval_loss"] for row in run.metrics() if "eval_loss" in row}
    assert list(validated) == [TURN, STEPS]
    card = (run.encoder / "README.md").read_text()
    assert f"| the same after step {TURN}, with late masks | {validated[TURN]:.3f} |" in card
    assert "in the last 25 % of the steps the [MASK]s stood in its input" in card
    assert "`latemask export --mlm`" in card


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_join_can_end_so(kind, data, tmp_path):
    recipe = replace(joining(kind), mask=MaskRecipe(rate=0.4, rate_end=0.2, random=0.1, keep=0.1, drop=0.1))
    run = pretrain(finishing(recipe), data=data.folder, out=tmp_path / "run")
    assert load_model(run.model).config.objective == "early"


def test_an_average_of_the_weights_goes_over_the_turn(data, tmp_path):
    run = pretrain(finishing(average=0.5), data=data.folder, out=tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latemask.ground.signals.StopRequest.is_asked", _asked_after(TURN))
        with pytest.raises(TimeIsUp):
            pretrain(finishing(average=0.5), data=data.folder, out=tmp_path / "stopped")
    assert same(run, pretrain(finishing(average=0.5), data=data.folder, out=tmp_path / "stopped", resume=True))


def test_a_stock_pipeline_fills_as_we_do(run, tmp_path):
    out = export(run.path, out=tmp_path / "mlm", mlm=True)
    text = "Return a <mask> of <mask> strings."
    ours = Filler(run.path).predict(text, top=5)
    theirs = pipeline("fill-mask", model=str(out))(text, top_k=5)
    for mine, others in zip(ours, theirs, strict=True):
        assert [one.probability for one in mine] == pytest.approx([one["score"] for one in others], abs=1e-4)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]
    card = (out / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert 'pipeline("fill-mask"' in card


def test_without_such_an_end_a_masked_language_model_is_refused(data, tmp_path):
    late = pretrain(replace(tiny_recipe(), budget=BudgetRecipe(steps=1)), data=data.folder, out=tmp_path / "late")
    with pytest.raises(UserError, match=r"has to learn its mask token: pretrain with --finish-early 0\.05"):
        export(late.path, out=tmp_path / "mlm", mlm=True)
    assert not (tmp_path / "mlm").exists()
    with pytest.raises(UserError, match="--mlm with --layers"):
        export(late.path, out=tmp_path / "mlm", mlm=True, layers=1)
    with pytest.raises(UserError, match=r"mask token: pretrain with --finish-early 0\.05$"):
        export(late.model, out=tmp_path / "mlm", mlm=True)


def test_such_an_end_comes_behind_what_was_done_and_takes_steps_of_its_own(data, tmp_path):
    late = pretrain(replace(tiny_recipe(), budget=BudgetRecipe(steps=2)), data=data.folder, out=tmp_path / "late")
    recipe = load_recipe(late.recipe_file)
    with pytest.raises(UserError, match="pays for 2 steps in all, and the branch begins at step 2: raise it"):
        pretrain(recipe, data=data.folder, out=tmp_path / "end", branch=str(late.path), finish_early=0.5)
    end = pretrain(recipe, data=data.folder, out=tmp_path / "end", branch=str(late.path), finish_early=0.5, max_steps=4)
    assert export(end.path, out=tmp_path / "mlm", mlm=True).is_dir()


def test_a_run_that_was_stopped_before_it_is_told_to_go_on(data, tmp_path):
    with pytest.raises(TimeIsUp):
        pretrain(finishing(), data=data.folder, out=tmp_path / "run", stop_after="0s")
    with pytest.raises(UserError, match="at the end of the run \\(latemask resume "):
        export(tmp_path / "run", out=tmp_path / "mlm", mlm=True)


def test_masks_that_stand_in_the_input_anyway_have_no_such_end(data, tmp_path):
    with pytest.raises(UserError, match="--finish-early is for late masks, and this run's objective is 'early'"):
        pretrain(tiny_recipe(objective="early"), data=data.folder, out=tmp_path / "run", finish_early=0.1)


def test_a_late_run_is_given_such_an_end_by_a_branch(data, tmp_path):
    late = pretrain(replace(tiny_recipe(), budget=BudgetRecipe(steps=9)), data=data.folder, out=tmp_path / "late")
    ended = pretrain(finishing(), data=data.folder, branch=str(late.path), out=tmp_path / "ended")
    assert load_model(ended.model).config.objective == "early"
    with pytest.raises(UserError, match=r"\[MASK\]s stood in the input"):
        pretrain(finishing(), data=data.folder, branch=str(ended.path), out=tmp_path / "again", max_steps=99)


def test_with_early_masking_it_means_nothing(data, tmp_path):
    run = pretrain(finishing(tiny_recipe(objective="early")), data=data.folder, out=tmp_path / "run")
    assert [row["step"] for row in run.metrics() if "eval_loss" in row] == [STEPS]


def test_past_the_turn_it_does_not_go_back_to_late_masks(data, tmp_path):
    run = pretrain(finishing(), data=data.folder, out=tmp_path / "run")
    before = run.recipe_file.read_text()
    with pytest.raises(UserError, match="past the step at which"):
        pretrain(finishing(), data=data.folder, out=run.path, max_steps=99, resume=True, allow_changes=True)
    assert run.recipe_file.read_text() == before


def test_a_branch_into_the_dear_part_spends_no_more_than_its_budget():
    recipe = complete_recipe(finishing(), VOCABULARY)
    stem = Stem(1000, 8000, 256_000, spent(replace(recipe, train=replace(recipe.train, finish_early=0.0)), 1000, 1000))
    budget = BudgetRecipe(flops=1.1 * stem.flops)
    steps = planned_steps(replace(recipe, budget=budget), stem)
    assert spent(recipe, steps, steps, stem) <= budget.flops < spent(recipe, steps + 1, steps + 1, stem)


def test_memory_is_that_of_the_larger_part():
    late, both = (
        step_memory(complete_recipe(replace(recipe, length=128), VOCABULARY), rows=8)
        for recipe in (tiny_recipe(), finishing())
    )
    assert both.activations > late.activations


def test_an_early_run_exports_what_fill_says(data, tmp_path):
    encoder = EncoderRecipe(family="bert", layers=2, width=32, heads=2)
    recipe = replace(tiny_recipe(objective="early", encoder=encoder), budget=BudgetRecipe(steps=2))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    out = export(run.path, out=tmp_path / "mlm", mlm=True)
    stock, tokenizer = AutoModelForMaskedLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    ids = tokenizer("Return a <mask> of strings.", return_tensors="pt").input_ids
    ours = load_model(run.model)
    with torch.no_grad():
        expected = ours(**ours.objective.fill_batch(ids, ids == tokenizer.mask_token_id)).logits
        found = stock(input_ids=ids).logits[ids == tokenizer.mask_token_id][None]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
