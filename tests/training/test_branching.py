"""Branches: runs that begin with another run's checkpoint. One that changes nothing ends with the same bits."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from latemask import UserError, compare, load_recipe, prepare, pretrain
from latemask.cli import main
from latemask.recipe import BudgetRecipe, EncoderRecipe, MaskRecipe, dump_recipe
from latemask.reporting.runs import read_run, spent_together
from latemask.run_folder import RunFolder
from latemask.training.branching import Branch
from latemask.training.loop import Loop
from tests.conftest import joining, tiny_recipe


def wsd(steps: int, **train):
    """A stem's recipe: warm-up and decay in steps, so that the stable phase is the same however long the run is."""
    base = tiny_recipe(encoder=EncoderRecipe(layers=3, width=32, heads=2, dropout=0.1))
    given = {"schedule": "wsd", "warmup": 2, "decay": 2, "log_every": 2, "keep_at": (2, 6), **train}
    kept = tuple(step for step in given.pop("keep_at") if step <= steps)
    return replace(base, budget=BudgetRecipe(steps=steps), train=replace(base.train, **given, keep_at=kept))


def weights(run: RunFolder):
    return load_file(run.model / "model.safetensors")


def same_end(one: RunFolder, two: RunFolder) -> bool:
    first, second = weights(one), weights(two)
    lines = [[{**row, "seconds": 0} for row in run.metrics()] for run in (one, two)]
    return all(torch.equal(first[name], second[name]) for name in first) and lines[0] == lines[1]


@pytest.fixture(scope="module")
def stem(data, tmp_path_factory):
    return pretrain(wsd(8), data=data.folder, out=tmp_path_factory.mktemp("stem") / "stem")


def test_a_branch_that_changes_nothing_ends_as_the_run_that_it_came_from(data, stem, tmp_path):
    branch = pretrain(load_recipe(stem.recipe_file), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert same_end(branch, stem)
    assert branch.record["flops"] == stem.record["flops"]
    assert branch.record["tokens"] == stem.record["tokens"]


@pytest.mark.parametrize(("end", "at"), [(4, 2), (8, 6)])
def test_a_decay_from_a_stem_is_the_run_that_was_planned_so_from_the_start(data, stem, tmp_path, end, at):
    branch = pretrain(wsd(end), data=data.folder, out=tmp_path / "branch", branch=f"{stem.path}@{at}")
    planned = pretrain(wsd(end), data=data.folder, out=tmp_path / "planned")
    assert same_end(branch, planned)
    assert branch.record["flops"] == planned.record["flops"]


def test_a_branch_that_is_killed_and_resumed_ends_the_same(data, stem, tmp_path, monkeypatch):
    step = Loop.step

    def dies(loop, batches):
        if loop.done == 4:
            raise RuntimeError("killed")
        step(loop, batches)

    monkeypatch.setattr(Loop, "step", dies)
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(wsd(6, save_every=3), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    monkeypatch.undo()
    branch = pretrain(
        wsd(6, save_every=3), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2", resume=True
    )
    planned = pretrain(wsd(6, save_every=3), data=data.folder, out=tmp_path / "planned")
    assert same_end(branch, planned)


def test_a_branch_killed_while_it_begins_begins_again(data, stem, tmp_path, monkeypatch):
    def dies(self, job, run):
        (run.checkpoints / "checkpoint-2").mkdir(parents=True)
        raise RuntimeError("killed")

    monkeypatch.setattr(Branch, "bring", dies)
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(wsd(4), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    monkeypatch.undo()
    assert pretrain(wsd(4), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2").is_finished()


def test_after_its_beginning_a_branch_needs_its_stem_no_more(data, stem, tmp_path):
    shutil.copytree(stem.path, tmp_path / "stem")
    branch = pretrain(wsd(4, save_every=1), data=data.folder, out=tmp_path / "run", branch=f"{tmp_path / 'stem'}@2")
    shutil.rmtree(tmp_path / "stem")
    again = pretrain(wsd(4, save_every=1), data=data.folder, out=branch.path, resume=True)
    assert again.is_finished()
    assert read_run(branch.path).flops == branch.record["flops"]


def test_a_branch_of_a_branch_counts_everything_behind_it(data, stem, tmp_path):
    first = pretrain(wsd(5, keep_at=(4,)), data=data.folder, out=tmp_path / "first", branch=f"{stem.path}@2")
    longer = replace(wsd(6, batch_size=4), length=64)
    second = pretrain(longer, data=data.folder, out=tmp_path / "second", branch=f"{first.path}@4")
    history = second.record["branch"]["history"]
    assert [(one["from"], one["step"]) for one in history] == [(0, 2), (2, 4)]
    assert any(line.startswith("length: 32 -> 64") for line in history[1]["changed"])
    assert second.record["tokens"] == 4 * 8 * 32 + 2 * 4 * 64
    assert second.stem.samples == 4 * 8
    own = sum(one["own_flops"] for one in history)
    assert own == pytest.approx(second.stem.flops) == pytest.approx(stem.metrics()[-1]["flops"] / 2)
    run = read_run(second.path)
    tokens = {row["step"]: run.place(row, "tokens") for row in run.rows}
    assert tokens[4] == 4 * 8 * 32
    assert tokens[6] == second.record["tokens"]


def test_samples_go_on_where_those_of_the_stem_ended_whatever_the_batch(data, stem, tmp_path, monkeypatch):
    seen = []
    step = Loop.step

    def watched(loop, batches):
        seen.append(batches[0]["labels"].shape[0])
        step(loop, batches)

    monkeypatch.setattr(Loop, "step", watched)
    recipe = replace(wsd(4, batch_size=2), mask=MaskRecipe(rate=0.4, rate_end=0.2))
    branch = pretrain(recipe, data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert seen == [2, 2]
    assert branch.record["branch"]["samples"] == 16


@pytest.mark.parametrize("budget", ["tokens", "flops"])
def test_a_budget_counts_what_the_stem_spent(data, stem, tmp_path, budget):
    given = BudgetRecipe(**{budget: stem.record[budget]})
    recipe = replace(load_recipe(stem.recipe_file), budget=given)
    branch = pretrain(recipe, data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@6")
    assert branch.record["steps"] == 8


def test_other_data_with_the_same_tokenizer_may_follow(data, stem, tmp_path, corpus):
    other = prepare([corpus], out=tmp_path / "other", tokenizer=str(data.tokenizer_folder), validation=0.3)
    branch = pretrain(wsd(4), data=other.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert any(line.startswith("data: ") for line in branch.record["branch"]["history"][0]["changed"])


def test_longer_rows_need_no_longer_table_where_positions_are_rotary(data, stem, tmp_path):
    recipe = replace(wsd(4), length=128, encoder=replace(wsd(4).encoder, rotary_base=40_000.0))
    branch = pretrain(recipe, data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert load_recipe(branch.recipe_file).encoder.max_length == 128


def test_a_table_of_positions_does_not_grow(data, tmp_path):
    short = replace(wsd(4, keep_at=(2,)), encoder=EncoderRecipe(family="roberta", layers=3, width=32, heads=2))
    stem = pretrain(short, data=data.folder, out=tmp_path / "stem")
    with pytest.raises(UserError, match="a table of positions does not grow"):
        pretrain(replace(short, length=64), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("[!.]*"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"encoder": EncoderRecipe(layers=3, width=64, heads=2)}, "another encoder.width: 32 -> 64"),
        ({"objective": "early"}, "another objective: late -> early"),
        ({"options": joining("self").options}, "another join.kind: inside -> self"),
        ({"budget": BudgetRecipe(steps=1)}, "1 steps in all, and the branch begins at step 2"),
    ],
)
def test_a_run_of_another_shape_is_no_stem(data, stem, tmp_path, changes, match):
    recipe = replace(wsd(4, warmup=0, decay=1, keep_at=()), **changes)
    with pytest.raises(UserError, match=match):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")


def test_data_of_another_tokenizer_are_refused(data, stem, tmp_path, corpus):
    other = prepare([corpus], out=tmp_path / "other", vocab_size=700)
    recipe = replace(wsd(4), encoder=replace(wsd(4).encoder, vocab_size=1024))
    with pytest.raises(UserError, match="prepared with another tokenizer"):
        pretrain(recipe, data=other.folder, out=tmp_path / "run", branch=f"{stem.path}@2")


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("{}@4", r"no checkpoint of step 4; the nearest is of step 2 \(there are: 2, 6, 8\)"),
        ("{}@4x", "RUN@STEP is wanted"),
        ("{}/nowhere@4", "is not a latemask run"),
    ],
)
def test_what_is_no_checkpoint_is_said_with_the_nearest(data, stem, tmp_path, where, match):
    with pytest.raises(UserError, match=match):
        pretrain(wsd(8), data=data.folder, out=tmp_path / "run", branch=where.format(stem.path))


def test_a_damaged_checkpoint_is_no_stem(data, stem, tmp_path):
    shutil.copytree(stem.path, tmp_path / "stem")
    (tmp_path / "stem" / "checkpoints" / "checkpoint-2" / "optimizer.pt").write_bytes(b"0")
    with pytest.raises(UserError, match=r"optimizer\.pt is damaged"):
        pretrain(wsd(8), data=data.folder, out=tmp_path / "run", branch=f"{tmp_path / 'stem'}@2")


def test_a_run_json_that_lacks_a_part_of_the_history_is_damaged(data, stem, tmp_path):
    branch = pretrain(wsd(4), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    record = branch.record
    del record["branch"]["history"][0]["changed"]
    (branch.path / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        read_run(branch.path)
    (branch.path / "run.json").unlink()
    with pytest.raises(UserError, match="is not a latemask run"):
        pretrain(wsd(4), data=data.folder, out=tmp_path / "other", branch=str(branch.path))


def test_a_run_does_not_overwrite_the_stem_it_begins_with(data, stem, tmp_path):
    with pytest.raises(UserError, match="which --overwrite would remove"):
        pretrain(wsd(8), data=data.folder, out=stem.path, branch=f"{stem.path}@2", overwrite=True)


def test_checkpoints_to_keep_are_written_and_kept(stem):
    assert [path.name for path in stem.all_checkpoints()] == ["checkpoint-8", "checkpoint-6", "checkpoint-2"]


def test_a_checkpoint_to_keep_after_the_end_is_refused(data, tmp_path):
    recipe = wsd(4)
    recipe = replace(recipe, train=replace(recipe.train, keep_at=(2, 9)))
    with pytest.raises(UserError, match=r"train\.keep_at has step 9, and the run has 4"):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")


def test_a_command_line_branches_and_keeps(data, tmp_path, stem):
    (tmp_path / "recipe.yaml").write_text(dump_recipe(wsd(8)))
    words = ["pretrain", str(tmp_path / "recipe.yaml"), "--data", str(data.folder), "--out", str(tmp_path / "run")]
    assert main([*words, "--branch", f"{stem.path}@6", "--train.keep-at", "7,8", "--max-steps", "8"]) == 0
    assert [path.name for path in RunFolder(tmp_path / "run").all_checkpoints()] == ["checkpoint-8", "checkpoint-7"]


def test_a_branch_in_the_same_precision_says_nothing_of_it(data, tmp_path, capsys):
    stem = pretrain(wsd(4, precision="bf16"), data=data.folder, out=tmp_path / "stem")
    branch = pretrain(wsd(5, precision="bf16"), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    assert "so far and goes on in" not in capsys.readouterr().err
    assert branch.record["precision"] == ["bf16"]


def test_the_card_tells_the_whole_history(data, stem, tmp_path):
    branch = pretrain(wsd(5), data=data.folder, out=tmp_path / "run", branch=f"{stem.path}@2")
    card = (branch.encoder / "README.md").read_text()
    assert "steps 1 to 2: stem" in card
    assert "budget.steps: 8 -&gt; 5" in card or "budget.steps: 8 -&#62; 5" in card
    assert f"| tokens of text seen | {branch.record['tokens']:,} |" in card
    assert f"| compute, forward and backward | {branch.record['flops']:.3g} FLOPs |" in card


def test_what_several_branches_share_was_paid_for_once(data, stem, tmp_path):
    branches = [
        pretrain(wsd(end), data=data.folder, out=tmp_path / f"to-{end}", branch=f"{stem.path}@{at}")
        for end, at in ((4, 2), (8, 6))
    ]
    a_step = stem.record["flops"] / 8
    first, second, whole = (read_run(run.path) for run in (*branches, stem))
    for runs, steps in (([first], 4), ([first, second], 6 + 2 + 2), ([first, second, whole], 8 + 2 + 2)):
        assert spent_together(runs) == pytest.approx((steps * a_step, steps * 8 * 32))
    page = compare([run.path for run in (*branches, stem)], out=tmp_path / "page").read_text()
    assert f"Together {12 * a_step:.3g} FLOPs" in page
    assert "to-4: its steps 1 to 2 are those of" in page
