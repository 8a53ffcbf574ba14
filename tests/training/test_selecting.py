"""Selection: of the rows that a step reads, those are trained on that lose most against a reference, and no others.

The oracle is a slow loop: every sample of a step by itself, through both models, then sorted.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from latemask import UserError, compare, load_recipe, plan, prepare, pretrain, resume
from latemask.budget.flops import scoring_flops, sequence_flops, spent, step_flops
from latemask.budget.memory import step_memory
from latemask.cli import main
from latemask.ground.errors import TimeIsUp
from latemask.masking.batches import Batch, Candidates, Collator
from latemask.model import load_model
from latemask.model.head import PredictionHead
from latemask.objectives import OBJECTIVES
from latemask.objectives.exlm import LateExlm
from latemask.objectives.mae_lm import MaeLmOptions
from latemask.recipe import BudgetRecipe, EncoderRecipe, MaskRecipe, Recipe, SelectRecipe, dump_recipe
from latemask.references import with_reference
from latemask.reporting.runs import read_run
from latemask.run_folder import RunFolder
from latemask.text import Mixture
from latemask.training.calibration import calibrated
from latemask.training.job import Job, plan_job
from latemask.training.loop import Loop
from latemask.training.running import loop_of, model_of
from latemask.training.selecting import Selection
from tests.conftest import KINDS, joining, make_batch, make_model, make_rows, tiny_recipe
from tests.training.test_processes import assert_same_losses, poison_once, run_with

STEPS = 4


def small(**changes) -> Recipe:
    """A recipe of a few steps; `train` is what differs there."""
    train = replace(tiny_recipe().train, batch_size=4, eval_rows=4, **changes.pop("train", {}))
    return replace(tiny_recipe(), train=train, budget=BudgetRecipe(steps=STEPS), **changes)


def selecting(reference, keep: float = 0.25, **changes) -> Recipe:
    return replace(small(**changes), select=SelectRecipe(str(reference), keep))


@pytest.fixture(scope="module")
def other(data, tmp_path_factory) -> RunFolder:
    """A reference of another objective, size and family, which knows a little."""
    encoder = EncoderRecipe(family="bert", layers=2, width=16, heads=2)
    recipe = small(objective="early", encoder=encoder, train={"learning_rate": 1e-2})
    return pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("reference") / "other")


@pytest.fixture(scope="module")
def selected(data, other, tmp_path_factory) -> RunFolder:
    """A run that selects."""
    recipe = selecting(other.path, train={"log_every": 1, "save_every": 2, "keep_at": (2,)})
    return pretrain(recipe, data=data.folder, out=tmp_path_factory.mktemp("selected") / "run")


def job_of(recipe: Recipe, data) -> Job:
    return plan_job(recipe, Mixture.open(data.folder))


def chosen_in(loop: Loop, job: Job, step: int) -> list[Batch]:
    """What a step would be taken on."""
    batches = job.batches(step)
    return loop.selection.chosen(loop, [next(batches) for _ in job.read])


def alone(model, job: Job, recipe: Recipe, sample: int) -> float:
    """The loss of one sample by itself, as a recipe's objective lays it out."""
    collator = Collator(job.recipe.counts, job.data.vocabulary, job.recipe.seed, objective=recipe.objective)
    with torch.no_grad():
        return model(**collator([job.train_samples(0)[sample]])).loss.item()


def by_a_slow_loop(loop: Loop, job: Job, step: int, keep: int) -> list[int]:
    """The samples of a step that lose most against the reference, in their order."""
    model, reference = loop.model.eval(), load_model(job.reference.model)
    every = range(step * job.recipe.rows_read, (step + 1) * job.recipe.rows_read)
    spared = {i: alone(model, job, job.recipe, i) - alone(reference, job, job.reference.recipe, i) for i in every}
    return sorted(sorted(every, key=lambda i: -spared[i])[:keep])


def rows_of(job: Job, samples) -> torch.Tensor:
    """What tells rows apart in a batch: their labels."""
    return job.collator(0)([job.train_samples(0)[int(sample)] for sample in samples])["labels"]


# What is chosen


@pytest.mark.parametrize(
    ("recipe", "step"),
    [*((joining(kind), 0) for kind in KINDS), (tiny_recipe(objective="early"), 0), (tiny_recipe(), 3)],
    ids=[*KINDS, "early", "a later step"],
)
def test_what_is_chosen_is_what_a_slow_loop_over_rows_finds(data, other, recipe, step):
    job = job_of(selecting(other.path, objective=recipe.objective, options=recipe.options), data)
    loop = loop_of(job, model_of(job, None))
    (batch,) = chosen_in(loop, job, step)
    expected = by_a_slow_loop(loop, job, step, 4)
    assert expected != list(range(step * 16, step * 16 + 4))
    assert torch.equal(batch["labels"], rows_of(job, expected))


def test_equal_models_choose_nothing_in_particular(data, tmp_path):
    run = pretrain(small(encoder=EncoderRecipe(layers=3, width=32, heads=2)), data=data.folder, out=tmp_path / "run")
    job = job_of(selecting(run.path), data)
    loop = loop_of(job, load_model(run.model))
    batches = job.batches(1)
    parts = [next(batches) for _ in job.read]
    assert not loop.selection.spared(loop, parts).any()
    (batch,) = loop.selection.chosen(loop, parts)
    assert torch.equal(batch["labels"], rows_of(job, range(16, 20)))


class Constant(torch.nn.Module):
    """A reference to which all rows are alike."""

    def row_losses(self, labels, **batch):
        return torch.ones(len(labels))


def test_against_a_constant_the_highest_losses_are_chosen(data, other):
    job = job_of(selecting(other.path), data)
    loop = loop_of(job, model_of(job, None))
    loop.selection = Selection(job, 0, torch.device("cpu"), Constant())
    (batch,) = chosen_in(loop, job, 0)
    model = loop.model.eval()
    losses = [alone(model, job, job.recipe, sample) for sample in range(16)]
    assert torch.equal(batch["labels"], rows_of(job, np.sort(np.argsort(losses)[-4:])))


def test_a_loss_that_is_no_number_is_not_passed_over(data, other, monkeypatch):
    """Else nobody would hear of it."""
    job = job_of(selecting(other.path), data)
    loop = loop_of(job, model_of(job, None))
    found = torch.arange(16.0)
    found[[2, 5]] = torch.nan
    monkeypatch.setattr(loop.selection, "spared", lambda loop, parts: found)
    assert torch.equal(chosen_in(loop, job, 0)[0]["labels"], rows_of(job, [2, 5, 14, 15]))


@pytest.mark.parametrize("batch_size", [2, 4])
def test_both_models_see_the_same_rows_and_predict_the_same_positions(data, other, batch_size):
    recipe = selecting(other.path, mask=MaskRecipe(rate=0.4, rate_end=0.2, random=0.1, keep=0.1, drop=0.1))
    job = job_of(replace(recipe, train=replace(recipe.train, batch_size=batch_size)), data)
    for number, part in enumerate(job.batches(0)):
        assert isinstance(part, Candidates)
        assert len(part.indices) == batch_size
        assert part.indices[0] == number * batch_size
        rows = zip(part.own["labels"], part.theirs["labels"], strict=True)
        assert all(torch.equal(own.sort().values, theirs.sort().values) for own, theirs in rows)
        then = job.recipe.at((number // 4 + 0.5) / STEPS)
        assert part.own["labels"].shape[1] == then.counts.predicted
        assert "input_ids" in part.theirs
        assert "visible_ids" in part.own
    assert number == STEPS * 4 - 1


# The losses of rows


OTHERS = ["early", "mae-lm", "exlm", "late-exlm"]


@pytest.mark.parametrize(
    "recipe",
    [*map(joining, KINDS), *(tiny_recipe(objective=name) for name in OTHERS)],
    ids=[*KINDS, *OTHERS],
)
@pytest.mark.parametrize("half", [False, True])
def test_the_losses_of_rows_are_those_of_rows_alone_and_their_mean_is_the_batch_s(recipe, half):
    model, batch = make_model(recipe), make_batch(recipe, make_rows(5))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = model.row_losses(**batch)
        with torch.no_grad():
            alone = [model(**{name: part[i : i + 1] for name, part in batch.items()}).loss for i in range(5)]
        whole = model(**batch).loss  # with gradient: as precise as a step is
    assert (found.dtype, found.requires_grad) == (torch.float32, False)
    assert found.tolist() == pytest.approx(torch.stack(alone).tolist(), abs=5e-2 if half else 1e-5)
    assert found.mean().item() == pytest.approx(whole.item(), abs=2e-3 if half else 1e-6)


def test_they_are_computed_in_chunks(monkeypatch):
    monkeypatch.setattr("latemask.model.head.CHUNK_ROWS", 7)
    most, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(
        "latemask.model.head.F",
        SimpleNamespace(linear=lambda *a: (most.append(len(a[0])), linear(*a))[1], cross_entropy=cross_entropy),
    )
    model, batch = make_model(tiny_recipe()), make_batch(tiny_recipe(), make_rows(5))
    in_chunks = model.row_losses(**batch)
    assert 0 < max(most) <= 7
    monkeypatch.undo()
    assert torch.allclose(in_chunks, model.row_losses(**batch), atol=1e-6)


def test_a_loss_that_comes_from_elsewhere_is_taken_row_by_row(monkeypatch):
    """As a new objective may have it that says nothing of rows."""
    recipe = tiny_recipe()
    model, batch = make_model(recipe), make_batch(recipe, make_rows(3))
    expected = model.row_losses(**batch)
    forward = type(model.objective).forward

    def of_its_own(self, model, labels=None, **batch):
        logits = forward(self, model, **batch).logits
        return type("Output", (), {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten())})

    monkeypatch.setattr(type(model.objective), "forward", of_its_own)
    assert torch.allclose(model.row_losses(**batch), expected, atol=1e-5)


# Samples and steps


def test_a_run_that_selects_resumes_to_the_same_bits(data, other, selected, tmp_path):
    recipe = selecting(other.path, train={"log_every": 1, "save_every": 2, "keep_at": (2,)})
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", stop_after="0s")
    again = resume(tmp_path / "run")
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (again, selected))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [row["loss"] for row in again.metrics() if "loss" in row] == [
        row["loss"] for row in selected.metrics() if "loss" in row
    ]


def test_a_branch_goes_on_with_the_samples_that_follow(data, selected, tmp_path):
    recipe = load_recipe(selected.recipe_file)
    branch = pretrain(recipe, data=data.folder, out=tmp_path / "same", branch=f"{selected.path}@2")
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (branch, selected))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert branch.record["flops"] == pytest.approx(selected.record["flops"])
    assert branch.record["tokens_read"] == selected.record["tokens_read"] == 4 * 16 * 32


def test_rows_may_be_selected_from_a_step_on_or_no_more(data, other, selected, tmp_path):
    plain = small(train={"keep_at": (3,)})
    ends = pretrain(plain, data=data.folder, out=tmp_path / "plain", branch=f"{selected.path}@2")
    assert ends.record["branch"]["samples"] == 2 * 16
    assert ends.record["tokens_read"] == (2 * 16 + 2 * 4) * 32
    again = pretrain(selecting(other.path), data=data.folder, out=tmp_path / "again", branch=f"{ends.path}@3")
    assert again.record["branch"]["samples"] == 2 * 16 + 4
    assert again.record["tokens_read"] == (2 * 16 + 4 + 16) * 32
    assert again.record["tokens"] == ends.record["tokens"] == 4 * 4 * 32
    a_step, scoring = (flops(load_recipe(again.recipe_file)) for flops in (step_flops, scoring_flops))
    assert again.record["flops"] == pytest.approx(4 * a_step - scoring)


def test_accumulation_and_workers_change_nothing(data, other, selected, tmp_path):
    split = selecting(other.path, train={"log_every": 1, "micro_batch_size": 2, "workers": 2})
    run = pretrain(split, data=data.folder, out=tmp_path / "run")
    assert_same_losses(run.path, selected)


@pytest.mark.parametrize(("sharded", "read"), [(False, 13), (True, 16)], ids=["DDP", "FSDP"])
def test_two_processes_choose_and_learn_what_one_does(data, other, tmp_path, sharded, read):
    """Of 13 rows, in batches of two, the one process scores four batches, the other two and a half."""
    recipe = selecting(other.path, 4 / read, train={"log_every": 1, "sharded": sharded})
    alone = pretrain(recipe, data=data.folder, out=tmp_path / "alone")
    assert run_with(2, recipe, data, tmp_path / "run") == [0, 0]
    assert_same_losses(tmp_path / "run", alone)


def test_sharded_models_score_as_many_rows_in_every_process(data, other, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"14 rows of a step \(select.keep\) are no multiple of 4"):
        job_of(selecting(other.path, 4 / 14, train={"sharded": True}), data)


def test_a_rewind_leaves_out_all_rows_that_were_read(data, other, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Loop, "step", Loop.step)
    poison_once(Loop, 3)
    recipe = selecting(other.path, train={"save_every": 1})
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run", on_nan="rewind")
    assert run.record["left_out_batches"] == [2]
    assert "leaving out samples 32 to 47" in capsys.readouterr().err
    job = job_of(recipe, data)
    (part, *_) = job.batches(2, [2])
    assert part.indices[0] == 48


def test_dropout_is_off_where_rows_are_scored_and_the_same_where_they_are_trained(data, other):
    encoder = EncoderRecipe(layers=3, width=32, heads=2, dropout=0.3)
    job = job_of(selecting(other.path, encoder=encoder), data)
    loop = loop_of(job, model_of(job, None))
    batches = job.batches(0)
    parts = [next(batches) for _ in job.read]
    assert torch.equal(loop.selection.spared(loop, parts), loop.selection.spared(loop, parts))
    assert loop.model.training
    assert not loop.selection.reference.training


# What it costs


class NoModules:
    """torch's own trips over a view of a weight that was made without gradient."""

    parents = frozenset(["Global"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.mark.parametrize("recipe", [*map(joining, KINDS), tiny_recipe(objective="early")], ids=[*KINDS, "early"])
def test_the_flops_of_a_step_are_what_torch_counts(data, other, recipe, monkeypatch):
    monkeypatch.setattr("torch.utils.flop_counter.ModuleTracker", NoModules)

    def plain(head, states, words, labels):  # torch's counter does not know the chunked one
        return cross_entropy(head.logits(states, words).flatten(0, 1), labels.flatten())

    monkeypatch.setattr(PredictionHead, "loss", plain)
    masks = MaskRecipe(rate=0.3, random=0.1, keep=0.1, drop=0.1)
    job = job_of(selecting(other.path, objective=recipe.objective, options=recipe.options, mask=masks), data)
    loop, batches = loop_of(job, model_of(job, None)), job.batches(0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loop.step([next(batches) for _ in job.read])
    assert counter.get_total_flops() == step_flops(job.recipe)
    assert scoring_flops(job.recipe) == 16 * (sequence_flops(job.recipe).forward + job.recipe.select.reference_flops)
    assert spent(job.recipe, STEPS, 3) == pytest.approx(3 * step_flops(job.recipe))


def test_a_plan_counts_it_and_a_budget_pays_for_it(data, other, capsys, tmp_path):
    recipe = selecting(other.path, encoder=replace(tiny_recipe().encoder, vocab_size=1024))
    planned = plan(recipe, data=data.folder)
    said = capsys.readouterr().out
    assert "the best of 16 rows each" in said
    assert "FLOPs of choosing the rows of a step" in said
    plain = plan(small(encoder=recipe.encoder), data=data.folder)
    extra = STEPS * planned.run.scoring
    assert planned.run.training == pytest.approx(plain.run.training + extra)
    assert planned.mlm == plain.mlm
    assert planned.passes == pytest.approx(4 * plain.passes)
    assert (planned.tokens, planned.tokens_read) == (plain.tokens, 4 * plain.tokens)
    assert plan(recipe, data=data.folder, flops=planned.run.training * 2.5).steps == 10
    assert plan(recipe, data=data.folder, tokens=planned.tokens * 2).steps == 8
    weights = load_model(other.model).num_parameters()
    known = with_reference(planned.recipe)
    assert known.select.reference_weights == weights
    more = step_memory(known, 4).peak - step_memory(replace(known, select=SelectRecipe()), 4).peak
    assert more == 4 * weights


def test_a_mask_rate_that_changes_costs_the_mean_of_both_models(data, other):
    job = job_of(selecting(other.path, mask=MaskRecipe(rate=0.5, rate_end=0.2)), data)
    assert spent(job.recipe, STEPS, STEPS) == pytest.approx(STEPS * step_flops(job.recipe))


def test_a_machine_is_timed_by_plain_steps(monkeypatch, data, other):
    monkeypatch.setattr("latemask.training.calibration._SECONDS", 0.1)
    monkeypatch.setattr("latemask.training.calibration.measured_peak", lambda *_: 1e9)
    monkeypatch.setattr("latemask.training.calibration._timed", lambda steps: (1.0, 2.0))
    recipe = job_of(selecting(other.path), data).recipe
    assert calibrated(recipe, 0.0).share == calibrated(replace(recipe, select=SelectRecipe()), 0.0).share


def test_records_say_what_was_trained_on_and_what_was_read(selected):
    last = selected.metrics()[-1]
    assert (last["tokens"], last["tokens_read"]) == (4 * 4 * 32, 4 * 16 * 32)
    assert (selected.record["tokens"], selected.record["tokens_read"]) == (4 * 4 * 32, 4 * 16 * 32)
    recipe = load_recipe(selected.recipe_file)
    assert last["flops"] == selected.record["flops"] == pytest.approx(4 * step_flops(recipe))


def test_pages_and_cards_say_it_without_the_reference(data, selected, tmp_path, capsys):
    """Which may be gone by then."""
    run = RunFolder(Path(shutil.copytree(selected.path, tmp_path / "run")))
    recipe = load_recipe(run.recipe_file)
    gone = replace(recipe, select=replace(recipe.select, reference=str(tmp_path / "gone")))
    run.recipe_file.write_text(dump_recipe(gone))
    plain = pretrain(small(), data=data.folder, out=tmp_path / "plain")
    page = compare([run.path, plain.path], out=tmp_path / "page").read_text()
    assert "late 40% inside 2 best 0.25 by gone" in page
    assert f"selects 4 of 16 rows by {tmp_path / 'gone'}" in capsys.readouterr().err
    found = read_run(run.path)
    assert found.flops == selected.record["flops"]
    assert found.split["scoring"] > read_run(plain.path).split["scoring"] == 0
    assert "| chosen to be trained on | 4 of 16 rows a step:" in (selected.encoder / "README.md").read_text()
    assert "chosen to be" not in (plain.encoder / "README.md").read_text()
    assert "tokens_read" not in plain.record


# What cannot be


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ({"reference": "x", "keep": 0.3}, r"select.keep 0.3 of 13.33 rows .* that works is 0.3076923, of 13"),
        ({"reference": "x", "keep": 0.99}, r"the nearest that works is 0.8, of 5"),
        ({"reference": "x", "keep": 1.0}, "select.keep 1 trains on every row, scored for nothing"),
        ({"reference": "x", "keep": 0.0}, r"select.keep is 0.0; it must be in \(0, 1\]"),
        ({"keep": 0.5}, "select.keep 0.5 says nothing without select.reference"),
        ({"reference": "x", "keeps": 0.5}, r"unknown key 'select.keeps' \(did you mean 'select.keep'\?\)"),
    ],
)
def test_a_share_must_give_whole_rows(tmp_path, select, message):
    (tmp_path / "recipe.yaml").write_text(dump_recipe(small()))
    with pytest.raises(UserError, match=message) as refused:
        load_recipe(tmp_path / "recipe.yaml", {"select": select})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("batch_size", [1, 4, 16, 37, 256, 4096])
@pytest.mark.parametrize("keep", [0.07, 0.1, 0.3, 0.5, 0.9])
def test_the_nearest_share_that_is_named_works(batch_size, keep):
    problem = SelectRecipe("x", keep).problem(batch_size)
    if problem:
        keep = float(problem.split("works is ")[1].split(",")[0])
        assert SelectRecipe("x", keep).problem(batch_size) is None
    assert SelectRecipe("x", keep).rows(batch_size) > batch_size


def unfinished(folder: Path, other: RunFolder) -> Path:
    path = Path(shutil.copytree(other.path, folder / "unfinished"))
    RunFolder(path).update(status="stopped")
    return path


def nothing_of_ours(folder: Path, other: RunFolder) -> Path:
    return other.encoder


def damaged(folder: Path, other: RunFolder) -> Path:
    path = Path(shutil.copytree(other.path, folder / "damaged"))
    (path / "model" / "model.safetensors").write_bytes(b"0")
    return path


def with_the_encoder_of_others(folder: Path, other: RunFolder) -> Path:
    path = folder / "empty"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda folder, other: folder / "nowhere", "no such folder"),
        (lambda folder, other: other.recipe_file, "a file, not a folder"),
        (unfinished, "that run is not finished"),
        (nothing_of_ours, "a 'bert' model has no objective to score rows by"),
        (damaged, "model.safetensors is damaged"),
        (with_the_encoder_of_others, "is not a latemask run"),
    ],
)
def test_what_is_no_reference_is_refused_before_the_data_are_read(tmp_path, other, made, message):
    with pytest.raises(UserError, match=f"select.reference .*{message}") as refused:
        pretrain(selecting(made(tmp_path, other)), data=tmp_path / "no-data", out=tmp_path / "run")
    assert "\n" not in str(refused.value)


def test_rows_longer_than_it_takes_and_masks_that_it_cannot_score_are_refused(tmp_path, other, selected):
    with pytest.raises(UserError, match="it takes rows of 32 tokens, and length is 64"):
        pretrain(replace(selecting(other.path), length=64), data=tmp_path / "no-data", out=tmp_path / "run")
    visible = replace(selecting(selected.path, objective="early"), mask=MaskRecipe(rate=0.4, random=0.6, keep=0.4))
    with pytest.raises(UserError, match=r"cannot score the rows as they are masked: .*leave no position masked"):
        pretrain(visible, data=tmp_path / "no-data", out=tmp_path / "run")


def test_a_run_is_not_its_own_reference(data, other, tmp_path):
    run = Path(shutil.copytree(other.path, tmp_path / "run"))
    with pytest.raises(UserError, match="is the run itself"):
        pretrain(selecting(run), data=data.folder, out=run, overwrite=True)
    with pytest.raises(UserError, match="is the run itself"):
        pretrain(selecting(run / "model"), data=data.folder, out=run, overwrite=True)


def test_another_tokenizer_is_refused(data, other, corpus, tmp_path):
    elsewhere = prepare([corpus], out=tmp_path / "data", vocab_size=700)
    with pytest.raises(UserError, match="has another tokenizer than"):
        pretrain(selecting(other.path), data=elsewhere.folder, out=tmp_path / "run")


def test_a_reference_that_changed_is_noticed_and_so_is_another_share(data, other, tmp_path):
    reference = Path(shutil.copytree(other.path / "model", tmp_path / "reference"))
    (reference / "manifest.json").unlink()
    recipe, out = selecting(reference), tmp_path / "run"
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=data.folder, out=out, stop_after="0s")
    weights = load_file(reference / "model.safetensors")
    name = "head.dense.weight"
    save_file({**weights, name: weights[name] + 1}, reference / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"its reference .* is another model than when it began"):
        pretrain(recipe, data=data.folder, out=out, resume=True)
    for changed in (replace(recipe, select=SelectRecipe()), selecting(reference, keep=0.5)):
        with pytest.raises(UserError, match="a run keeps its model's shape, and its batch"):
            pretrain(changed, data=data.folder, out=out, resume=True, allow_changes=True)
    run = pretrain(recipe, data=data.folder, out=out, resume=True, allow_changes=True)
    assert run.record["changes"] == [[f"the weights of {reference}"]]
    record = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**record, "reference": {}}))
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        read_run(out)


# Where the reference comes from


FROM_NO_RUN = {
    "cross": joining("cross"),
    "apart": joining("inside", layers=1, apart=0.1),
    "early": tiny_recipe(objective="early"),
    "mae-lm": tiny_recipe(objective="mae-lm", options=MaeLmOptions(layers=2)),
    "late-exlm": tiny_recipe(objective="late-exlm", options=LateExlm(copies=3, heads=1, layers=1)),
}


@pytest.mark.parametrize("recipe", FROM_NO_RUN.values(), ids=FROM_NO_RUN)
def test_a_model_that_is_from_no_run_is_asked_by_its_config(data, recipe, tmp_path):
    """It costs what the same model costs in a run, and lays rows out alike."""
    run = pretrain(replace(recipe, budget=BudgetRecipe(steps=1)), data=data.folder, out=tmp_path / "run")
    shutil.copytree(run.model, tmp_path / "model")
    of_a_run, of_none = (job_of(selecting(path), data) for path in (run.path, tmp_path / "model"))
    assert of_none.reference.recipe.options == of_a_run.reference.recipe.options
    costs = [(job.recipe.select.reference_flops, job.recipe.select.reference_weights) for job in (of_a_run, of_none)]
    assert costs[0] == costs[1]
    assert of_none.reference.record["checksum"] == of_a_run.reference.record["checksum"]


def test_an_objective_whose_config_tells_too_little_needs_its_run(data, tmp_path, monkeypatch, other):
    shutil.copytree(other.model, tmp_path / "model")
    monkeypatch.setattr(type(OBJECTIVES["early"]), "settings", lambda self, recipe: {"hidden_size": 7})
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**settings, "hidden_size": 16}))
    (tmp_path / "model" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no recipe.yaml, and config.json does not tell how 'hidden_size' came"):
        job_of(selecting(tmp_path / "model"), data)


def test_a_checkpoint_and_a_run_that_ended_with_early_masks_are_references(data, other, tmp_path):
    checkpoint = other.last_checkpoint()
    assert job_of(selecting(checkpoint), data).reference.recipe.objective == "early"
    turned = pretrain(small(train={"finish_early": 0.5}), data=data.folder, out=tmp_path / "turned")
    job = job_of(selecting(turned.path), data)
    assert job.reference.recipe.objective == "early"
    run = pretrain(selecting(turned.path, train={"finish_early": 0.5}), data=data.folder, out=tmp_path / "run")
    assert run.record["flops"] == pytest.approx(STEPS * step_flops(load_recipe(run.recipe_file)))


def test_where_our_masks_move_to_the_input_those_of_the_reference_stay(data, selected):
    plain, turns = (selecting(selected.path, train={"finish_early": share}) for share in (0.0, 0.5))
    costs = {job_of(recipe, data).recipe.select.reference_flops for recipe in (plain, turns)}
    assert len(costs) == 1


def test_a_command_line_selects(data, other, tmp_path):
    (tmp_path / "recipe.yaml").write_text(dump_recipe(small()))
    words = ["pretrain", str(tmp_path / "recipe.yaml"), "--data", str(data.folder), "--out", str(tmp_path / "run")]
    assert main([*words, "--select.reference", str(other.path), "--select.keep", "0.5", "--max-steps", "1"]) == 0
    saved = load_recipe(tmp_path / "run" / "recipe.yaml").select
    assert (saved.reference, saved.keep) == (str(other.path), 0.5)
    assert saved.reference_flops
