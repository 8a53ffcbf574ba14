"""`latemask sweep`: every combination with every seed, all at the same FLOPs; it goes on, and ends with a page."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from latemask import prepare, sweep
from latemask.cli import main
from latemask.ground.errors import TimeIsUp, UserError
from latemask.recipe import BudgetRecipe, dump_recipe
from latemask.run_folder import RunFolder
from latemask.sweeping import read_sweep
from latemask.text import Mixture
from latemask.training.job import plan_job
from tests.conftest import tiny_recipe
from tests.launching import run


@pytest.fixture
def sweep_file(data, tmp_path, monkeypatch):
    """Write a sweep of tiny runs, with changes."""
    monkeypatch.chdir(tmp_path)
    recipe = replace(tiny_recipe(), budget=BudgetRecipe(steps=1))
    Path("tiny.yaml").write_text(dump_recipe(recipe))

    def write(**changes) -> Path:
        tree = {"recipe": "tiny.yaml", "data": str(data.folder), "out": "sweep", "flops": 3.0e8, **changes}
        path = tmp_path / "sweep.yaml"
        path.write_text(
            yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False)
        )
        return path

    return write


def test_every_combination_with_every_seed_and_what_else_is_asked_for(sweep_file):
    found = read_sweep(
        sweep_file(
            seeds=[0, 1],
            grid={"mask.rate": [0.3, 0.5], "join.kind": ["inside", "self"]},
            also=[{"objective": "early", "mask.rate": 0.15, "flops": 6e8}],
        )
    )
    assert [run.name for run in found.runs] == [
        *(f"rate-{rate}_kind-{kind}_seed-{s}" for rate in (0.3, 0.5) for kind in ("inside", "self") for s in (0, 1)),
        "objective-early_rate-0.15_flops-6e+08_seed-0",
        "objective-early_rate-0.15_flops-6e+08_seed-1",
    ]
    assert {run.recipe.budget for run in found.runs} == {BudgetRecipe(flops=3e8), BudgetRecipe(flops=6e8)}
    assert [run.recipe.mask.rate for run in found.runs[::2]] == [0.3, 0.3, 0.5, 0.5, 0.15]


def test_names_tell_keys_apart_that_end_alike(sweep_file):
    found = read_sweep(sweep_file(grid={"encoder.layers": [3], "join.layers": [1, 2]}))
    assert [run.name for run in found.runs] == [f"encoder-layers-3_join-layers-{k}_seed-0" for k in (1, 2)]


def test_it_runs_everything_and_ends_with_a_page(sweep_file, capsys):
    path = sweep_file(grid={"mask.rate": [0.3, 0.5]})
    page = sweep(path)
    assert page == Path("sweep/report/report.html")
    for rate in ("0.3", "0.5"):
        run = RunFolder(Path(f"sweep/rate-{rate}_seed-0"))
        assert run.is_finished()
        assert run.record["flops"] == pytest.approx(3e8, rel=0.25)  # whole steps
    assert "rate-0.3_seed-0" in page.read_text()
    capsys.readouterr()
    assert sweep(path) == page
    assert "2 runs, 2 finished" in capsys.readouterr().err


def test_stopped_in_the_middle_it_goes_on(sweep_file, monkeypatch):
    path = sweep_file(grid={"mask.rate": [0.3, 0.5]})
    now = iter([0.0, 0.5, 5.0])
    with monkeypatch.context() as patched:
        patched.setattr("latemask.sweeping.time.monotonic", lambda: next(now))
        patched.setattr("latemask.sweeping.pretrain", lambda recipe, **_: None)
        with pytest.raises(TimeIsUp):
            sweep(path, stop_after="1s")
    assert sweep(path).is_file()


def test_a_run_that_was_begun_is_resumed(sweep_file, data, monkeypatch):
    path = sweep_file(grid={"mask.rate": [0.3]})
    asked = []
    monkeypatch.setattr("latemask.sweeping.compare", lambda runs, **_: Path("page"))
    monkeypatch.setattr("latemask.sweeping.pretrain", lambda recipe, **given: asked.append(given["resume"]))
    sweep(path)
    job = plan_job(read_sweep(path).runs[0].recipe, Mixture.open(data.folder))
    run = RunFolder(Path("sweep/rate-0.3_seed-0"))
    run.path.mkdir()
    run.start(job.recipe, job.data.record, overwrite=False)
    sweep(path)
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"flops": 6.0e8}, r"budget\.flops: 3[^;]* -> 6"),
        ({"recipe": "wider.yaml"}, r"encoder\.width: 32 -> 64"),
        ({"data": "other"}, "data: .*other data"),
    ],
)
def test_a_finished_run_of_another_sweep_is_not_taken_for_one_of_this(sweep_file, corpus, change, what):
    grid = {"mask.rate": [0.3]}
    sweep(sweep_file(grid=grid))
    recipes = {path: path.read_text() for path in Path("sweep/recipes").iterdir()}
    wider = replace(tiny_recipe(), encoder=replace(tiny_recipe().encoder, width=64))
    Path("wider.yaml").write_text(dump_recipe(wider))
    prepare([corpus], out=Path("other"), vocab_size=1000, validation=0.2)
    with pytest.raises(UserError, match=f"made by another sweep than this one: {what}"):
        sweep(sweep_file(grid=grid, **change))
    assert {path: path.read_text() for path in Path("sweep/recipes").iterdir()} == recipes


def test_a_run_that_cannot_be_is_found_before_the_first_is_trained(sweep_file):
    with pytest.raises(UserError, match=r"flops-3_seed-0: .*step"):
        sweep(sweep_file(grid={"mask.rate": [0.3]}, also=[{"mask.rate": 0.4, "flops": 3}]))
    assert not Path("sweep").exists()


@pytest.mark.parametrize(
    ("launcher", "start"),
    [
        ("plain", "latemask pretrain"),
        ("torchrun", "torchrun --nproc-per-node 2 -m latemask pretrain"),
        ("slurm", "sbatch "),
    ],
)
def test_commands_for_other_machines(sweep_file, capsys, launcher, start):
    path = sweep_file(grid={"mask.rate": [0.3, 0.5]})
    assert main(["sweep", str(path), "--commands", launcher, "--processes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(start) for line in lines)
    assert not Path("sweep/rate-0.3_seed-0").exists()


def test_a_printed_command_runs(sweep_file, capsys, tmp_path):
    sweep(sweep_file(grid={"mask.rate": [0.3]}), commands="plain")
    (line,) = capsys.readouterr().out.splitlines()
    name, *words = line.split()
    assert name == "latemask"
    done = run(tmp_path / "says", *words)
    assert done.returncode == 0, done.stderr
    assert RunFolder(Path("sweep/rate-0.3_seed-0")).is_finished()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops": None, "grid": {"mask.rate": [0.3]}}, "'flops' is missing"),
        ({"flops": "many"}, "flops must be a positive number"),
        ({"flops": float("nan")}, "flops must be a positive number"),
        ({"gird": {}}, "unknown key 'gird' \\(did you mean 'grid'\\?\\)"),
        ({}, "no runs: give a grid, or a list of them in 'also'"),
        ({"grid": [1]}, "grid is a table"),
        ({"also": {"a": 1}}, "also is a list"),
        ({"grid": {"mask.rate": []}}, "mask.rate: one value or a list"),
        ({"grid": {"mask.rat": [0.3]}}, "rat"),
        ({"grid": {"mask.rate": [3]}}, "mask.rate is 3"),
        ({"grid": {"mask.rate": ["x"]}}, "mask.rate must be float"),
        ({"grid": {"budget.steps": [3]}}, "the budget of a sweep is 'flops'"),
        ({"grid": {"seed": [1]}}, "seeds"),
        ({"grid": {"mask": [1]}}, "mask"),
        ({"grid": {"mask.rate": [0.3, 0.3]}}, "asked for twice"),
        ({"grid": {"mask.rate": [0.4]}, "also": [{"mask.rate": 0.4, "objective": "late"}]}, "asked for twice, once as"),
        ({"grid": {"mask.rate": [0.3, 0.3000001]}}, "too much alike"),
        ({"grid": {"mask": [1], "mask.rate": [0.3]}}, "'mask' has a value of its own"),
        ({"grid": {"mask.rate": [0.3], "mask": [1]}}, "it has a value and keys below it"),
        ({"grid": {"seed.x": [5], "mask.rate": [0.3]}}, "seed: it has a value and keys below it"),
        ({"grid": {"mask.rate": [n / 2000 for n in range(100, 1300)]}}, "1,000 at most"),
    ],
)
def test_what_is_wrong_is_said(sweep_file, changes, message):
    with pytest.raises(UserError, match=message):
        read_sweep(sweep_file(**changes))


def test_a_key_that_is_given_twice_is_a_mistake(tmp_path):
    (tmp_path / "sweep.yaml").write_text("grid: {mask.rate: [0.3], mask.rate: [0.4]}\n")
    with pytest.raises(UserError, match=r"'mask\.rate' is given twice"):
        read_sweep(tmp_path / "sweep.yaml")


@pytest.mark.parametrize("content", ["a: [", "- 1", "", "!!python/object:os.system {}"])
def test_a_file_that_is_no_sweep(tmp_path, content):
    (tmp_path / "sweep.yaml").write_text(content)
    with pytest.raises(UserError, match=r"sweep\.yaml"):
        read_sweep(tmp_path / "sweep.yaml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_sweep(tmp_path / "sweep.yaml")
