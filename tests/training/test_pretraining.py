"""pretrain: resumes to the same bits, repeats to the same loss, learns, and never overwrites unasked."""

import json
import os
import re
import shlex
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from latemask import UserError, load_recipe, prepare, pretrain
from latemask.budget.plan import validations
from latemask.cli import main
from latemask.ground.errors import Interrupted
from latemask.ground.sealed import seal
from latemask.masking.batches import Collator
from latemask.model import build_model, load_model
from latemask.model.pretraining import EncoderForPreTraining
from latemask.recipe import FAMILIES, BudgetRecipe, EncoderRecipe, MaskRecipe, checks, dump_recipe
from latemask.run_folder import RunFolder
from latemask.text import Mixture
from latemask.training import loop
from latemask.training.checkpoints import checkpoint_to_resume, refuse_another_model
from latemask.training.job import plan_job
from latemask.training.loop import Loop
from tests.conftest import KINDS, joining, tiny_recipe
from tests.launching import launch


def recipe_of(steps: int, **train):
    base = tiny_recipe()
    return replace(base, budget=BudgetRecipe(steps=steps), train=replace(base.train, **train))


def weights(run: RunFolder):
    return load_file(run.model / "model.safetensors")


def losses(run: RunFolder) -> list[float]:
    return [row["loss"] for row in run.metrics() if "loss" in row]


def same_weights(one: RunFolder, two: RunFolder) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def press_ctrl_c_in_step_three(patch):
    whole = Loop.step

    def step(self, batches):
        if self.done == 2:
            os.kill(os.getpid(), signal.SIGINT)
        whole(self, batches)

    patch.setattr(Loop, "step", step)


@pytest.fixture
def interrupt(monkeypatch):
    press_ctrl_c_in_step_three(monkeypatch)
    yield
    monkeypatch.undo()


@pytest.fixture(scope="module")
def stopped_run(data, tmp_path_factory):
    """A run stopped at step 3 of 6, with checkpoints 2 and 3."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c_in_step_three(patch)
        with pytest.raises(Interrupted):
            pretrain(recipe_of(6, save_every=2), data=data.folder, out=out)
    return out


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_three_steps_a_stop_and_three_more_are_six_steps_to_the_bit(data, tmp_path, interrupt, monkeypatch, dropout):
    recipe = replace(recipe_of(6), encoder=EncoderRecipe(layers=3, width=32, heads=2, dropout=dropout))
    with pytest.raises(Interrupted, match=r"stopped at step 3 of 6(.|\n)*latemask resume ") as stopped:
        pretrain(recipe, data=data.folder, out=tmp_path / "stopped")
    assert stopped.value.exit_code == 130
    assert RunFolder(tmp_path / "stopped").last_checkpoint().name == "checkpoint-3"
    monkeypatch.undo()
    resumed = pretrain(recipe, data=data.folder, out=tmp_path / "stopped", resume=True)
    whole = pretrain(recipe, data=data.folder, out=tmp_path / "whole")
    assert same_weights(resumed, whole)
    assert losses(resumed) == losses(whole)
    assert [row["step"] for row in resumed.metrics()] == [row["step"] for row in whole.metrics()]


def test_the_saved_recipe_alone_resumes_a_run(data, tmp_path, interrupt, monkeypatch):
    run = RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted) as stopped:
        pretrain(recipe_of(6), data=data.folder, out=run.path)
    assert f"latemask resume {run.path}" in str(stopped.value)
    monkeypatch.undo()
    assert pretrain(run.recipe_file, data=data.folder, out=run.path, resume=True).is_finished()


def test_the_same_seed_gives_the_same_losses_and_another_does_not(data, tmp_path):
    one, two = (pretrain(recipe_of(4), data=data.folder, out=tmp_path / name) for name in "ab")
    other = pretrain(replace(recipe_of(4), seed=1), data=data.folder, out=tmp_path / "c")
    assert losses(one) == losses(two)
    assert same_weights(one, two)
    assert losses(one) != losses(other)


def test_accumulation_and_workers_do_not_change_what_is_learnt(data, tmp_path):
    plain = pretrain(recipe_of(4), data=data.folder, out=tmp_path / "plain")
    split = pretrain(recipe_of(4, micro_batch_size=2, workers=2), data=data.folder, out=tmp_path / "split")
    assert losses(split) == pytest.approx(losses(plain), rel=1e-5)


@pytest.mark.parametrize("objective", ["late", "early"])
def test_the_validation_loss_falls_clearly_in_a_short_run(data, tmp_path, objective):
    recipe = replace(recipe_of(60, eval_every=20, batch_size=16, log_every=20), objective=objective)
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    measured = [row["eval_loss"] for row in run.metrics() if "eval_loss" in row]
    assert len(measured) == 3
    assert measured[0] > measured[1] > measured[2]
    assert measured[2] < losses(run)[0] - 0.1
    assert measured[2] < 5.8 < np.log(1000)


def validation_batch(recipe, data):
    """Return all that a run is validated on, as one batch."""
    job = plan_job(recipe, Mixture.open(data.folder))
    return Collator.validating(job.recipe, job.data.vocabulary)(list(job.validation_samples()))


def test_every_run_is_validated_with_the_same_fifteen_per_cent_hidden(data):
    late = recipe_of(4)
    others = [
        replace(late, seed=1),
        replace(late, objective="early", mask=MaskRecipe(rate=0.15, random=0.1, keep=0.1)),
        replace(late, mask=MaskRecipe(rate=0.5, rate_end=0.2)),
        replace(late, mask=MaskRecipe(rate=0.3, drop=0.3)),
    ]
    expected = validation_batch(late, data)
    assert expected["labels"].shape[1] == round(0.15 * late.length)
    assert expected["visible_ids"].shape[1] == late.length - round(0.15 * late.length)
    for recipe in others:
        assert torch.equal(validation_batch(recipe, data)["labels"], expected["labels"])


def test_the_validation_loss_is_that_of_the_model_that_was_saved(data, tmp_path):
    run = pretrain(recipe_of(2, precision="fp32"), data=data.folder, out=tmp_path / "run")
    with torch.inference_mode():
        loss = load_model(run.model)(**validation_batch(load_recipe(run.recipe_file), data)).loss
    assert run.metrics()[-1]["eval_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_run_validates_as_often_as_its_plan_says(data, tmp_path):
    recipe = recipe_of(5, eval_every=2)
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    measured = [row["step"] for row in run.metrics() if "eval_loss" in row]
    assert measured == [2, 4, 5]
    assert len(measured) == validations(recipe, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_and_exports(data, tmp_path, kind):
    recipe = replace(joining(kind), budget=BudgetRecipe(steps=2))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    assert (run.encoder / "config.json").is_file()
    assert not any("decoder" in name for name in load_file(run.encoder / "model.safetensors"))


def test_the_run_folder_documents_itself(data, tmp_path):
    run = pretrain(recipe_of(4, save_every=1, keep_checkpoints=2), data=data.folder, out=tmp_path / "run")
    assert load_recipe(run.recipe_file).encoder.vocab_size == 1024
    assert run.record["status"] == "finished"
    assert run.record["data"]["fingerprint"] == data.fingerprint
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["checkpoint-3", "checkpoint-4"]
    assert any((run.path / "tensorboard").iterdir())
    last = run.metrics()[-1]
    assert last["step"] == 4
    assert last["tokens"] == 4 * 8 * 32
    assert last["flops"] > 0
    assert "eval_loss" in last


def test_progress_shows_speed_and_the_share_of_the_peak(data, tmp_path, capsys):
    pretrain(recipe_of(2), data=data.folder, out=tmp_path / "run")
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("step 2/2  loss"))
    shown = re.fullmatch(r"step 2/2  loss [\d.]+  [\d,]+ tokens/s  (\d+)% of peak  left 0:00:00", line)
    assert 0 <= int(shown[1]) <= 100


def test_a_step_that_will_take_hours_is_said_before_it_begins(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("latemask.training.running.measured_peak", lambda device, dtype: 1e3)
    pretrain(recipe_of(1), data=data.folder, out=tmp_path / "run")
    assert re.search(r"a step takes at least [\d,]+ minutes here, even at the machine's peak", capsys.readouterr().err)


def test_budgets_in_tokens_and_flops(data, tmp_path):
    run = pretrain(tiny_recipe(), data=data.folder, out=tmp_path / "a", tokens=3 * 8 * 32)
    assert run.record["steps"] == 3
    spent = run.record["flops"]
    assert pretrain(tiny_recipe(), data=data.folder, out=tmp_path / "b", flops=spent).record["steps"] == 3


def test_a_run_that_is_there_is_not_overwritten_unasked(data, tmp_path, capsys):
    out = tmp_path / "run"
    pretrain(recipe_of(2), data=data.folder, out=out)
    with pytest.raises(UserError, match="already holds a finished run"):
        pretrain(recipe_of(2), data=data.folder, out=out)
    pretrain(recipe_of(2), data=data.folder, out=out, resume=True)
    assert "finished already" in capsys.readouterr().err
    assert pretrain(recipe_of(3), data=data.folder, out=out, overwrite=True).record["steps"] == 3
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match="holds no run"):
        pretrain(recipe_of(2), data=data.folder, out=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.doc").is_file()


def test_an_unfinished_run_asks_for_resume_or_overwrite(data, tmp_path, interrupt):
    with pytest.raises(Interrupted):
        pretrain(recipe_of(6), data=data.folder, out=tmp_path / "run")
    with pytest.raises(UserError, match="--resume to go on or --overwrite"):
        pretrain(recipe_of(6), data=data.folder, out=tmp_path / "run")


def test_a_changed_recipe_or_other_data_cannot_be_resumed(data, tmp_path, interrupt, corpus):
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(recipe_of(6), data=data.folder, out=out)
    with pytest.raises(UserError, match=r"changed since it began: train\.learning_rate: 0\.003 -> 0\.1"):
        pretrain(recipe_of(6, learning_rate=0.1), data=data.folder, out=out, resume=True)
    other = prepare([corpus], out=tmp_path / "other", vocab_size=1000, validation=0.2)
    with pytest.raises(UserError, match="other data"):
        pretrain(recipe_of(6), data=other.folder, out=out, resume=True)
    with pytest.raises(UserError, match="nothing to resume"):
        pretrain(recipe_of(6), data=data.folder, out=tmp_path / "nothing", resume=True)


def test_a_checkpoint_of_another_model_with_weights_of_the_same_shape_is_refused(
    data, tmp_path, interrupt, monkeypatch
):
    recipe = replace(recipe_of(6), encoder=replace(tiny_recipe().encoder, family="modernbert"))
    with pytest.raises(Interrupted):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")
    monkeypatch.undo()
    family = FAMILIES["modernbert"]
    made = family.config
    monkeypatch.setattr(family, "config", lambda shape, words: made(replace(shape, rotary_base=160_000.0), words))
    with pytest.raises(UserError, match=r"encoder\.rope_parameters\.full_attention\.rope_theta 10000\.0 -> 160000\.0"):
        pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)


def test_a_torn_checkpoint_is_passed_over(data, tmp_path, interrupt, monkeypatch):
    run = RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted):
        pretrain(recipe_of(6, save_every=2), data=data.folder, out=run.path)
    assert run.last_checkpoint().name == "checkpoint-3"
    (run.checkpoints / "checkpoint-3" / "progress.json").unlink()
    monkeypatch.undo()
    resumed = pretrain(recipe_of(6, save_every=2), data=data.folder, out=run.path, resume=True)
    assert [row["step"] for row in resumed.metrics() if "loss" in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("harm", ["garbage", "cut", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "progress.json", "config.json"])
def test_a_damaged_checkpoint_is_named_and_passed_over(data, tmp_path, stopped_run, capsys, name, harm):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(stopped_run, run.path)
    path = run.checkpoints / "checkpoint-3" / name
    content = path.read_bytes()
    path.write_bytes({"garbage": b"\x93garbage", "cut": content[: len(content) // 2], "missing": b""}[harm])
    if harm == "missing":
        path.unlink()
    assert checkpoint_to_resume(run).name == "checkpoint-2"
    said = capsys.readouterr().err
    assert f"{path} is {'missing' if harm == 'missing' else 'damaged'}; passing over checkpoint-3" in said


def test_with_no_checkpoint_that_can_be_read_a_run_does_not_silently_start_again(data, tmp_path, stopped_run, capsys):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(stopped_run, run.path)
    for checkpoint in run.all_checkpoints():
        (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read; --overwrite starts the run again"):
        pretrain(recipe_of(6, save_every=2), data=data.folder, out=run.path, resume=True)
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match=r"the checkpoints of .* are gone \(the last was of step 3\)"):
        pretrain(recipe_of(6, save_every=2), data=data.folder, out=run.path, resume=True)
    run.update(last_checkpoint=None)  # as of a run that was killed before its first
    pretrain(recipe_of(6, save_every=2), data=data.folder, out=run.path, resume=True)
    assert "no checkpoint yet: starting from the first step" in capsys.readouterr().err


def test_mixed_precision_trains_on_a_cpu_too(data, tmp_path):
    exact = pretrain(recipe_of(3), data=data.folder, out=tmp_path / "exact")
    mixed = pretrain(recipe_of(3, precision="bf16"), data=data.folder, out=tmp_path / "mixed")
    assert losses(mixed) == pytest.approx(losses(exact), rel=0.01)
    assert losses(mixed) != losses(exact)
    assert (exact.record["precision"], mixed.record["precision"]) == (["fp32"], ["bf16"])


def test_a_run_that_goes_on_in_another_precision_says_so(data, tmp_path, interrupt, monkeypatch, capsys):
    if torch.accelerator.is_available():
        pytest.skip("this machine computes on a GPU")
    recipe = recipe_of(4, precision="auto")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(Interrupted):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run", resume=True)
    assert "the run was in fp32 so far and goes on in bf16" in capsys.readouterr().err
    assert run.record["precision"] == ["fp32", "bf16"]


def test_a_setting_that_only_fine_tuning_reads_does_not_keep_a_run_from_going_on(data, tmp_path, stopped_run):
    run = RunFolder(tmp_path / "run")
    shutil.copytree(stopped_run, run.path)
    config = json.loads((run.last_checkpoint() / "config.json").read_text())
    assert config["encoder"]["classifier_pooling"] == "mean"
    config["encoder"]["classifier_pooling"] = "cls"
    refuse_another_model(run.last_checkpoint(), config)


def test_a_run_chooses_its_attention_kernels_for_training_and_validation(data, tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def watched(*given):
        seen.append(given)
        yield

    monkeypatch.setattr(loop, "attention_kernels", watched)
    pretrain(recipe_of(3, precision="bf16"), data=data.folder, out=tmp_path / "run")
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    assert {(given[0].type, *given[1:]) for given in seen} == {(device.type, torch.bfloat16, tiny_recipe().length)}
    assert len(seen) > 3


@pytest.mark.parametrize("train", [{"micro_batch_size": 3}, {"precision": "fp16"}])
def test_what_the_machine_cannot_do_is_refused_before_there_is_a_run(data, tmp_path, train):
    if torch.cuda.is_available():
        pytest.skip("this machine can")
    with pytest.raises(UserError, match=r"does not split|needs a GPU"):
        pretrain(recipe_of(2, **train), data=data.folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resume_and_overwrite_together_are_refused(data, tmp_path):
    with pytest.raises(UserError, match="give one of them"):
        pretrain(recipe_of(2), data=data.folder, out=tmp_path / "run", resume=True, overwrite=True)


def test_a_run_that_died_after_its_last_step_is_finished_by_resuming(data, tmp_path):
    run = pretrain(recipe_of(4), data=data.folder, out=tmp_path / "run")
    before, rows = weights(run), run.metrics()
    shutil.rmtree(run.model)
    shutil.rmtree(run.encoder)
    run.update(status="running")
    pretrain(recipe_of(4), data=data.folder, out=run.path, resume=True)
    assert run.is_finished()
    assert all(torch.equal(before[name], value) for name, value in weights(run).items())
    assert [row["step"] for row in run.metrics()] == [row["step"] for row in rows]
    assert (run.encoder / "config.json").is_file()


def test_a_run_folder_in_use_is_left_alone(data, tmp_path):
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(UserError, match="in use by another process"):
        pretrain(recipe_of(2), data=data.folder, out=tmp_path / "run")


def test_a_lock_left_by_a_crash_locks_nobody_out(data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    assert pretrain(recipe_of(2), data=data.folder, out=tmp_path / "run").is_finished()


def test_a_diverging_run_stops_with_advice(data, tmp_path, monkeypatch):
    monkeypatch.setitem(checks._RANGES, "train.learning_rate", "(0, inf)")
    with pytest.raises(UserError, match=r"the gradient is (nan|inf) at step \d+.*train\.learning_rate"):
        pretrain(recipe_of(20, learning_rate=1e18, clip=0, warmup=0), data=data.folder, out=tmp_path / "run")


def test_less_text_than_a_row_is_said(data, tmp_path):
    with pytest.raises(UserError, match="less than one row of 1000000"):
        pretrain(replace(recipe_of(2), length=10**6), data=data.folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_continued_pre_training_starts_from_the_encoder_and_keeps_its_shape(data, tmp_path):
    shape = replace(recipe_of(3).encoder, rotary_base=500.0)
    first = pretrain(replace(recipe_of(3), encoder=shape), data=data.folder, out=tmp_path / "first")
    start = EncoderRecipe(init=str(first.encoder), layers=99)
    second = pretrain(
        replace(recipe_of(1, learning_rate=1e-12), encoder=start), data=data.folder, out=tmp_path / "second"
    )
    assert load_recipe(second.recipe_file).encoder.layers == 3
    assert load_recipe(second.recipe_file).encoder.rotary_base == 500
    before, after = (load_file(run.encoder / "model.safetensors") for run in (first, second))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert torch.allclose(weights(second)["mask_vector"], before["embeddings.tok_embeddings.weight"][4], atol=1e-6)


def test_data_of_another_tokenizer_is_refused(data, tmp_path, corpus):
    first = pretrain(recipe_of(1), data=data.folder, out=tmp_path / "first")
    other = prepare([corpus], out=tmp_path / "other", vocab_size=900)
    with pytest.raises(UserError, match=r"another tokenizer.*--tokenizer"):
        pretrain(
            replace(recipe_of(1), encoder=EncoderRecipe(init=str(first.encoder))),
            data=other.folder,
            out=tmp_path / "second",
        )
    with pytest.raises(
        UserError, match="tokenizer has 1024 pieces and the encoder 500; prepare the data with --vocab-size 448"
    ):
        pretrain(
            replace(recipe_of(1), encoder=EncoderRecipe(layers=3, width=32, heads=2, vocab_size=500)),
            data=data.folder,
            out=tmp_path / "third",
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(data, tmp_path, number):
    """The real thing: another process, a real signal, its own exit code."""
    (tmp_path / "r.yaml").write_text(dump_recipe(recipe_of(100_000, save_every=100_000)))
    words = ("pretrain", tmp_path / "r.yaml", "--data", data.folder, "--out", tmp_path / "run")
    process = launch(tmp_path / "says", *words)
    process.wait_for("step ")
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert f"latemask resume {tmp_path / 'run'}" in process.stderr
    assert "Traceback" not in process.stderr
    assert RunFolder(tmp_path / "run").last_checkpoint() is not None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


@pytest.fixture(scope="module")
def second(data, tmp_path_factory):
    """Other text, prepared with the same tokenizer."""
    folder = tmp_path_factory.mktemp("second")
    text = folder / "second.txt"
    text.write_text("\n\n".join(f"The second corpus speaks of other things, {n} times over." for n in range(400)))
    return prepare([text], out=folder / "data", tokenizer=str(data.tokenizer_folder), validation=0.1)


def test_a_mixture_is_validated_on_the_same_rows_of_each_part_by_its_weight_and_on_none_twice(data, second):
    mixture = Mixture.open([f"{data.folder}:2", f"{second.folder}:1"])
    jobs = [plan_job(replace(recipe_of(4), seed=seed), mixture) for seed in (0, 1)]
    rows, again = ([tuple(sample["ids"]) for sample in job.validation_samples()] for job in jobs)
    assert rows == again
    parts = [part.rows("validation", 32) for part in mixture.parts]
    own, other = (set(map(tuple, part.take(np.arange(len(part))))) for part in parts)
    assert len(rows) > 10
    assert len(set(rows)) == len(rows)
    assert sum(row in other for row in rows) == pytest.approx(len(rows) / 3, abs=1)
    assert all(row in own or row in other for row in rows)


def test_a_mixture_resumes_with_the_command_it_prints_and_not_with_other_weights(
    data, second, tmp_path, interrupt, monkeypatch
):
    mixture = [f"{data.folder}:2", f"{second.folder}:1"]
    with pytest.raises(Interrupted) as stopped:
        pretrain(recipe_of(6), data=mixture, out=tmp_path / "run")
    command = shlex.split(str(stopped.value).splitlines()[-1])
    monkeypatch.undo()
    with pytest.raises(UserError, match="other data"):
        pretrain(recipe_of(6), data=[f"{data.folder}:3", f"{second.folder}:1"], out=tmp_path / "run", resume=True)
    assert command[1:] == ["resume", str(tmp_path / "run")]
    assert main(command[1:]) == 0
    whole = pretrain(recipe_of(6), data=mixture, out=tmp_path / "whole")
    assert same_weights(RunFolder(tmp_path / "run"), whole)
    alone = pretrain(recipe_of(6), data=data.folder, out=tmp_path / "alone")
    assert not same_weights(whole, alone)
    assert whole.record["data"]["tokens"] == data.tokens("train") + second.tokens("train")


@pytest.mark.parametrize("objective", ["late", "early"])
def test_a_mask_rate_that_falls_resumes_to_the_same_bits_and_is_validated_like_any_other(
    data, tmp_path, interrupt, monkeypatch, objective
):
    recipe = replace(recipe_of(6, eval_every=2), objective=objective, mask=MaskRecipe(rate=0.5, rate_end=0.1))
    with pytest.raises(Interrupted):
        pretrain(recipe, data=data.folder, out=tmp_path / "stopped")
    monkeypatch.undo()
    seen = Counter()
    whole = EncoderForPreTraining.predict

    def counting(self, states, labels):
        seen[self.training, labels.shape[1]] += 1
        return whole(self, states, labels)

    monkeypatch.setattr(EncoderForPreTraining, "predict", counting)
    stopped = pretrain(recipe, data=data.folder, out=tmp_path / "stopped", resume=True)
    seen.clear()
    straight = pretrain(recipe, data=data.folder, out=tmp_path / "straight")
    assert same_weights(straight, stopped)
    assert losses(straight) == losses(stopped)
    trained = {count for training, count in seen if training}
    assert trained == {round(32 * (0.5 - 0.4 * (step + 0.5) / 6)) for step in range(6)}
    assert {count for training, count in seen if not training} == {round(32 * 0.15)}
    spending = [row["flops"] for row in straight.metrics() if "loss" in row]
    assert all(one < other for one, other in pairwise(spending))
    assert straight.record["flops"] == spending[-1]


@pytest.fixture
def encoder_to_go_on_from(data, tmp_path):
    shape = replace(recipe_of(2).encoder, init_std=0.05)
    return pretrain(replace(recipe_of(2), encoder=shape), data=data.folder, out=tmp_path / "first").encoder


def test_after_its_first_checkpoint_a_run_needs_the_encoder_it_began_with_no_more(
    data, tmp_path, encoder_to_go_on_from, interrupt, monkeypatch
):
    recipe = replace(recipe_of(6), encoder=EncoderRecipe(init=str(encoder_to_go_on_from)))
    with pytest.raises(Interrupted):
        pretrain(recipe, data=data.folder, out=tmp_path / "run")
    monkeypatch.undo()
    whole = pretrain(recipe, data=data.folder, out=tmp_path / "whole")
    shutil.rmtree(encoder_to_go_on_from.parent)
    for given in (recipe, RunFolder(tmp_path / "run").recipe_file):
        resumed = pretrain(given, data=data.folder, out=tmp_path / "run", resume=True)
    assert same_weights(resumed, whole)


def test_what_is_new_around_an_existing_encoder_starts_as_the_recipe_says(data, encoder_to_go_on_from):
    encoder = EncoderRecipe(init=str(encoder_to_go_on_from), init_std=0.2)
    for kind in ("inside", "cross"):
        job = plan_job(replace(joining(kind), encoder=encoder, budget=BudgetRecipe(steps=1)), Mixture.open(data.folder))
        assert job.recipe.encoder.init_std == 0.2
        model = build_model(job.recipe, data.vocabulary)
        new = [model.head.dense.weight, *([model.decoder.layers[0].attention.output.weight] if model.decoder else [])]
        assert [weight.std().item() for weight in new] == pytest.approx([0.2] * len(new), rel=0.1)


def test_gpus_that_nobody_uses_are_pointed_out(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("latemask.training.running.idle_devices", lambda: 3)
    run = pretrain(recipe_of(2), data=data.folder, out=tmp_path / "run")
    assert "3 more GPU(s) of this machine could take part: torchrun" in capsys.readouterr().err
    assert run.metrics()[-1]["tokens"] == 2 * 8 * 32


def test_a_checkpoint_from_before_the_loop_was_ours_goes_on_to_the_same_bits(data, tmp_path, interrupt, monkeypatch):
    """It had a scheduler, which left its mark in the optimizer's groups, and files that nobody needs now."""
    recipe, run = recipe_of(6), RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted):
        pretrain(recipe, data=data.folder, out=run.path)
    monkeypatch.undo()
    checkpoint = run.last_checkpoint()
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    for group in state["param_groups"]:
        group["initial_lr"] = 0.003
    torch.save(state, checkpoint / "optimizer.pt")
    torch.save({"last_epoch": 3}, checkpoint / "scheduler.pt")
    progress = json.loads((checkpoint / "progress.json").read_text())
    progress.pop("scaler")
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    seal(checkpoint)
    resumed = pretrain(recipe, data=data.folder, out=run.path, resume=True)
    assert same_weights(resumed, pretrain(recipe, data=data.folder, out=tmp_path / "whole"))
