"""Several processes on gloo: the same samples and losses for any number of them, sharded or not, and across resumes."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from latemask import UserError, pretrain
from latemask.objectives.late import Join
from latemask.recipe import BudgetRecipe, EncoderRecipe, Recipe, dump_recipe
from latemask.run_folder import RunFolder
from latemask.training.loop import Loop
from tests.faults.tormenting import RECIPE, log_lines
from tests.launching import forked, launch

STEPS = 20
BASE = replace(
    RECIPE,
    encoder=EncoderRecipe(layers=3, width=32, heads=2),
    train=replace(RECIPE.train, log_every=1, precision="fp32"),
    budget=BudgetRecipe(steps=STEPS),
)


def as_torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun tells each process."""
    ranks, worlds = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return {**ranks, **dict.fromkeys(worlds, str(world)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def process(
    rank: int, world: int, port: int, recipe: Recipe, data: Path, out: Path, options: dict, error: Path
) -> None:
    """One of several, as torchrun starts it."""
    os.environ.update(as_torchrun(rank, world, port))
    if options.pop("signals_itself", None) == rank:
        whole = Loop.step

        def step(self, batches):
            os.kill(os.getpid(), signal.SIGTERM)
            whole(self, batches)

        Loop.step = step
    if (at := options.pop("poisons_step", None)) is not None:
        poison_once(Loop, at)
    if options.pop("blind", None) == rank:
        RunFolder.record = property(lambda self: 1 / 0)
    try:
        pretrain(recipe, data=data, out=out, **options)
    except UserError as refused:
        error.write_text(str(refused))
        sys.exit(refused.exit_code)


def poison_once(loop, at: int) -> None:
    """Make the gradient of one step no number, the first time that it is taken."""
    whole, done = loop.step, []

    def step(self, batches):
        if self.done + 1 == at and not done:
            done.append(at)
            self.model.head.bias.register_hook(lambda gradient: gradient * float("nan"))
        whole(self, batches)

    loop.step = step


def run_with(world: int, recipe: Recipe, data, out: Path, **options) -> list[int]:
    """Let so many processes do a run; return their exit codes."""
    port = free_port()
    processes = [
        forked(process, rank, world, port, recipe, data.folder, out, options, out.with_name(f"{out.name}-{rank}.txt"))
        for rank in range(world)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(120)
    return [one.exitcode for one in processes]


def training(**changes) -> Recipe:
    return replace(BASE, train=replace(BASE.train, **changes))


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> RunFolder:
    """One process with four rows."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert run_with(1, BASE, data, out) == [0]
    return RunFolder(out)


def assert_same_losses(out: Path, alone: RunFolder) -> None:
    ours, theirs = log_lines(RunFolder(out)), log_lines(alone)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for key in ("loss", "eval_loss"):
        found = [row[key] for row in ours if key in row]
        assert found == pytest.approx([row[key] for row in theirs if key in row], abs=1e-5)


@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP"])
@pytest.mark.parametrize("micro", [None, 1], ids=["2 x 2", "2 x 1, accumulated twice"])
def test_two_processes_learn_what_one_does(data, tmp_path, alone, sharded, micro):
    recipe = training(sharded=sharded, micro_batch_size=micro)
    assert run_with(2, recipe, data, tmp_path / "run") == [0, 0]
    assert_same_losses(tmp_path / "run", alone)
    assert (tmp_path / "run" / "encoder" / "model.safetensors").is_file()
    record = RunFolder(tmp_path / "run").record
    assert (record["processes"], record["sharded"]) == (2, sharded)


@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP"])
def test_a_run_may_go_on_with_another_number_of_processes(data, tmp_path, alone, sharded):
    recipe, out = training(sharded=sharded), tmp_path / "run"
    assert run_with(2, recipe, data, out, stop_after="0s") == [75, 75]
    assert run_with(1, recipe, data, out, resume=True, stop_after="0s") == [75]
    assert RunFolder(out).last_checkpoint().name == "checkpoint-3"
    assert run_with(2, recipe, data, out, resume=True) == [0, 0]
    assert_same_losses(out, alone)


@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP"])
def test_muon_and_averages_do_not_depend_on_the_number_of_processes(data, tmp_path, sharded):
    recipe = replace(training(optimizer="muon", average=0.8, sharded=sharded), budget=BudgetRecipe(steps=8))
    out, other = tmp_path / "run", RunFolder(tmp_path / "alone")
    assert run_with(1, recipe, data, other.path) == [0]
    assert run_with(2, recipe, data, out, stop_after="0s") == [75, 75]
    assert run_with(2, recipe, data, out, resume=True) == [0, 0]
    assert_same_losses(out, other)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (out, other.path))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)


@pytest.mark.parametrize(
    ("sharded", "changes"),
    [(True, {"objective": "mae-lm"}), (False, {"options": Join("cross-only", mix=True, apart=0.1)})],
    ids=["mae-lm, FSDP", "mix and apart, DDP"],
)
def test_other_decoders_do_not_depend_on_the_number_of_processes(data, tmp_path, changes, sharded):
    recipe = replace(training(sharded=sharded), budget=BudgetRecipe(steps=4), **changes)
    assert run_with(1, recipe, data, tmp_path / "alone") == [0]
    assert run_with(2, recipe, data, tmp_path / "run") == [0, 0]
    assert_same_losses(tmp_path / "run", RunFolder(tmp_path / "alone"))


def test_the_validation_loss_does_not_depend_on_the_number_of_processes(data, tmp_path):
    """Five rows to validate on: two processes with two rows at once have three batches."""
    recipe = replace(training(eval_rows=5), budget=BudgetRecipe(steps=2))
    losses = []
    for world, sharded in ((1, False), (2, False), (2, True)):
        out = tmp_path / f"{world}-{sharded}"
        changed = replace(recipe, train=replace(recipe.train, sharded=sharded))
        assert run_with(world, changed, data, out) == [0] * world
        losses.append(RunFolder(out).metrics()[-1]["eval_loss"])
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-6)


def test_all_processes_start_from_the_corpus_with_the_same_bits(data, tmp_path):
    """One step that is too small to change a number: what is saved is where they started."""
    recipe = replace(training(learning_rate=1e-30), budget=BudgetRecipe(steps=1))
    recipe = replace(recipe, encoder=replace(recipe.encoder, start="corpus"))
    found = []
    for world, sharded in ((1, False), (2, False), (2, True)):
        out = tmp_path / f"{world}-{sharded}"
        assert run_with(world, replace(recipe, train=replace(recipe.train, sharded=sharded)), data, out) == [0] * world
        found.append(load_file(out / "model" / "model.safetensors"))
    for name in ("encoder.embeddings.tok_embeddings.weight", "encoder.layers.1.attn.Wqkv.weight", "head.bias"):
        assert all(torch.equal(weights[name], found[0][name]) for weights in found[1:])


def test_the_first_tells_the_others_which_batches_are_left_out(data, tmp_path):
    """The second process cannot read run.json at all: what it must know, it is told."""
    assert run_with(2, BASE, data, tmp_path / "run", poisons_step=5, blind=1, on_nan="rewind") == [0, 0]
    assert run_with(1, BASE, data, tmp_path / "alone", poisons_step=5, on_nan="rewind") == [0]
    assert RunFolder(tmp_path / "run").record["left_out_batches"] == [4]
    assert_same_losses(tmp_path / "run", RunFolder(tmp_path / "alone"))


def test_a_signal_that_reaches_one_process_is_known_to_all_a_step_later(data, tmp_path):
    assert run_with(2, BASE, data, tmp_path / "run", signals_itself=1) == [143, 143]
    run = RunFolder(tmp_path / "run")
    assert run.record["stopped_at"] == 2
    assert run.last_checkpoint().name == "checkpoint-2"


@pytest.mark.parametrize("join", ["self", "cross", "cross-only"])
def test_every_kind_takes_part_with_every_weight(data, tmp_path, join):
    """DDP is told that no weight is ever unused."""
    recipe = replace(BASE, options=replace(BASE.options, kind=join), budget=BudgetRecipe(steps=2))
    assert run_with(2, recipe, data, tmp_path / "run") == [0, 0]


def test_what_the_first_refuses_ends_all_and_is_said_once(data, tmp_path, alone):
    codes = run_with(2, BASE, data, alone.path)
    assert codes == [2, 2]
    first, second = (alone.path.with_name(f"run-{rank}.txt").read_text() for rank in (0, 1))
    assert "already holds a finished run" in first
    assert second == ""


def test_a_batch_that_does_not_split_is_a_clear_line(data, tmp_path):
    assert run_with(2, training(batch_size=3), data, tmp_path / "run") == [2, 2]
    said = (tmp_path / "run-0.txt").read_text()
    assert "train.batch_size 3 does not split into 2 process(es)" in said


_whole_step = Loop.step


def vanish(self, batches):
    """In the second process, a file is gone in the sixth step."""
    if os.environ["RANK"] == "1" and self.done == 5:
        raise FileNotFoundError(2, "No such file or directory", "/data/0007.ds")
    _whole_step(self, batches)


def test_an_error_in_one_process_ends_all_with_its_message(data, tmp_path):
    recipe, run = tmp_path / "recipe.yaml", RunFolder(tmp_path / "run")
    recipe.write_text(dump_recipe(BASE))
    words = ("pretrain", recipe, "--data", data.folder, "--out", run.path)
    change, port = {"latemask.training.loop.Loop.step": vanish}, free_port()
    first, second = (
        launch(tmp_path / str(rank), *words, change=change, env=as_torchrun(rank, 2, port)) for rank in (0, 1)
    )
    assert (first.wait(), second.wait()) == (2, 2)
    assert second.stderr.splitlines()[-1] == "latemask (process 1): /data/0007.ds: No such file or directory"
    assert "another process of this run ended" in first.stderr.splitlines()[-1]
    assert "Traceback" not in first.stderr + second.stderr
    assert run.last_checkpoint().name == "checkpoint-4"


def test_torchrun_starts_it_and_one_signal_stops_all_after_the_same_step_with_a_checkpoint(data, tmp_path):
    recipe, run = tmp_path / "recipe.yaml", RunFolder(tmp_path / "run")
    recipe.write_text(dump_recipe(replace(BASE, budget=BudgetRecipe(steps=100_000))))
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "latemask", "pretrain", str(recipe)]
    words += ["--data", str(data.folder), "--out", str(run.path)]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as several:
        for line in several.stderr:
            if line.startswith("step 10/"):
                several.send_signal(signal.SIGTERM)
                break
        said = several.stderr.read()
        several.wait(60)
    assert said.count("checkpoint saved. Go on with:") == 1
    assert f"latemask resume {run.path}" in said
    stopped_at = run.record["stopped_at"]
    assert stopped_at == int(run.last_checkpoint().name.split("-")[1]) >= 10
    again = [sys.executable, "-m", "latemask", "resume", str(run.path), "--stop-after", "0s"]
    said = subprocess.run(again, stderr=subprocess.PIPE, text=True, timeout=120).stderr
    assert "had 2 processes: starting as many (torchrun)" in said
    assert run.record["processes"] == 2
    assert run.record["stopped_at"] > stopped_at
