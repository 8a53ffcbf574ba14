"""Executors: a dead worker is noticed, an error ends all, and Slurm gets the same pipeline."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datatrove.pipeline.base import PipelineStep

from latemask.ground.errors import UserError
from latemask.text.executors import Execution, Stage, executor_options


class Note(PipelineStep):
    """Writes a file for its rank; dies, fails or waits where it is told to."""

    name = type = "note"

    def __init__(self, folder: Path, die: int = -1, fail: int = -1, seconds: float = 0):
        super().__init__()
        self.folder, self.die, self.fail, self.seconds = folder, die, fail, seconds

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        if rank == self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == self.fail:
            raise UserError(f"task {rank} cannot be done")
        time.sleep(self.seconds)
        with (self.folder / f"{rank}").open("a") as file:
            file.write(f"{world_size} {os.getpid()}\n")


def run(step: PipelineStep, work: Path, tasks: int = 4, workers: int = 2, **options) -> None:
    Execution(workers=workers, **options).run([Stage("noting", [step], tasks)], work, [1] * tasks)


def notes(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_is_run_once_and_not_again(tmp_path, folder, workers):
    for _ in range(2):
        run(Note(folder), tmp_path / "work", workers=workers)
    found = notes(folder)
    assert sorted(found) == ["0", "1", "2", "3"]
    assert all(len(lines) == 1 and lines[0].startswith("4 ") for lines in found.values())
    in_this_process = {lines[0].endswith(f" {os.getpid()}") for lines in found.values()}
    assert in_this_process == {workers == 1}


def test_a_worker_that_dies_is_one_clear_line_and_the_rest_goes_on_later(tmp_path, folder):
    with pytest.raises(UserError, match=r"a worker process died.*run the same command again"):
        run(Note(folder, die=3), tmp_path / "work")
    before = notes(folder)
    run(Note(folder), tmp_path / "work")
    after = notes(folder)
    assert sorted(after) == ["0", "1", "2", "3"]
    finished = {path.name for path in (tmp_path / "work" / "logs" / "noting" / "completions").iterdir()}
    assert finished == {"00000", "00001", "00002", "00003"}
    assert set(before) <= {"0", "1", "2"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_one_task_ends_all_with_its_message(tmp_path, folder, workers):
    started = time.monotonic()
    with pytest.raises(UserError, match="task 0 cannot be done"):
        run(Note(folder, fail=0, seconds=20), tmp_path / "work", workers=workers)
    assert time.monotonic() - started < 15  # the other worker is not waited for


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path, folder):
    code = (
        "import sys; from pathlib import Path; from tests.text.test_executors import Note, run\n"
        f"run(Note(Path({str(folder)!r}), seconds=5), Path({str(tmp_path / 'work')!r}), tasks=2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    logs = tmp_path / "work" / "logs" / "noting" / "logs"
    deadline = time.monotonic() + 60
    while not (logs.is_dir() and len(list(logs.iterdir())) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    time.sleep(6)
    assert notes(folder) == {}


def test_a_script_without_a_guard_can_use_processes(tmp_path, folder):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from pathlib import Path; from tests.text.test_executors import Note, run\n"
        f"open({str(tmp_path / 'started')!r}, 'a').write('x')\n"
        f"run(Note(Path({str(folder)!r})), Path({str(tmp_path / 'work')!r}))\n"
    )
    subprocess.run([sys.executable, str(script)], check=True)
    assert (tmp_path / "started").read_text() == "x"
    assert len(notes(folder)) == 4


def test_options_are_those_of_datatrove(tmp_path):
    assert executor_options("slurm", ["partition=cpu", "time=1:00:00", "cpus-per-task=4", "requeue=false"]) == {
        "partition": "cpu",
        "time": "1:00:00",
        "cpus_per_task": 4,
        "requeue": False,
    }
    with pytest.raises(UserError, match=r"slurm has no option 'partitoin' \(did you mean 'partition'"):
        executor_options("slurm", ["partitoin=cpu"])
    with pytest.raises(UserError, match="write NAME=VALUE"):
        executor_options("ray", ["partition"])
    with pytest.raises(UserError, match="is for --executor slurm or ray"):
        executor_options("local", ["partition=cpu"])
    with pytest.raises(UserError, match="needs --executor-option partition=… --executor-option time=…"):
        Execution("slurm").check()
    with pytest.raises(UserError, match="cpus_per_task must be int, not 'two'"):
        executor_options("slurm", ["cpus-per-task=two"])


def fake_slurm(folder: Path, monkeypatch) -> None:
    """An sbatch that runs every task of the array at once, one after another, and the environment that tasks expect."""
    folder.mkdir()
    scripts = {
        "sbatch": 'export SLURM_NODELIST=here SLURM_JOB_ID=7; for last; do :; done; echo "$*" >> "$0.log"\n'
        'n=$(sed -n "s/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p" "$last")\n'
        'for i in $(seq 0 "$n"); do SLURM_ARRAY_TASK_ID=$i RUN_OFFSET=0 bash "$last" >> "$0.out" 2>&1; done\n'
        'echo "Submitted batch job 7"',
        "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -n ] && shift; shift; done; exec "$@"',
        "scontrol": "echo here",
    }
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_slurm_runs_the_stages_one_after_another(tmp_path, folder, monkeypatch):
    fake_slurm(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "second").mkdir()
    stages = [Stage("first", [Note(folder)], 2), Stage("second", [Note(tmp_path / "second")], 1)]
    options = executor_options("slurm", ["partition=cpu", "time=1:00:00"])
    Execution("slurm", options=options).run(stages, tmp_path / "work", [1, 1])
    assert sorted(notes(folder)) == ["0", "1"], (tmp_path / "bin" / "sbatch.out").read_text()
    assert sorted(notes(tmp_path / "second")) == ["0"]
    script = (tmp_path / "work" / "logs" / "second" / "launch_script.slurm").read_text()
    assert "--partition=cpu" in script
    assert "--dependency=afterok:7" in (tmp_path / "bin" / "sbatch.log").read_text()
    assert json.loads((tmp_path / "work" / "logs" / "first" / "ranks_to_run.json").read_text()) == [0, 1]


def test_without_slurm_or_ray_one_line_says_so(tmp_path, monkeypatch):
    options = executor_options("slurm", ["partition=cpu", "time=1:00:00"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no sbatch on this machine"):
        Execution("slurm", options=options).check()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install ray"):
        Execution("ray").check()
