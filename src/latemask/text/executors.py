"""Where the tasks run: datatrove's executors, for this machine, Slurm or Ray."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger as datatrove_logger

from latemask.ground.errors import UserError, nearest
from latemask.text.progress import ProgressWatch

Where = Literal["local", "slurm", "ray"]
_THREADS = "RAYON_NUM_THREADS"


@dataclass(frozen=True)
class Stage:
    """A pipeline and in how many tasks it runs."""

    name: str
    pipeline: list[PipelineStep]
    tasks: int


@dataclass(frozen=True)
class Execution:
    """Where to run, how many tasks at a time, and options of datatrove's executor for Slurm or Ray."""

    where: Where = "local"
    workers: int | None = None
    """None: all cores here, as many as the cluster gives elsewhere."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse at once what would fail later."""
        if self.where == "slurm" and (missing := {"partition", "time"} - set(self.options)):
            needed = " ".join(f"--executor-option {name}=…" for name in sorted(missing))
            raise UserError(f"--executor slurm needs {needed}")
        if self.where == "slurm" and shutil.which("sbatch") is None:
            raise UserError("--executor slurm: there is no sbatch on this machine")
        if self.where == "ray" and importlib.util.find_spec("ray") is None:
            raise UserError("--executor ray needs one more package: pip install ray")

    @property
    def local_workers(self) -> int:
        """How many processes and threads to use on this machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.workers or cores or 1

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Ask the tokenizer's pool, if this process has not started it, for as many threads as there are workers."""
        before = os.environ.get(_THREADS)
        os.environ[_THREADS] = before or str(self.local_workers)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_THREADS)

    def run(self, stages: Sequence[Stage], work: Path, sizes: Sequence[int]) -> None:
        """Run the stages one after another; on Slurm, only hand them over."""
        if self.where == "slurm":
            self._submit(stages, work)
            return
        for stage in stages:
            folder = str(work.absolute() / "logs" / stage.name)
            executor = LocalExecutor(stage.pipeline, stage.tasks, self.local_workers, logging_dir=folder)
            done = set(range(stage.tasks)) - set(executor.get_incomplete_ranks())
            watched = sizes if stage.tasks == len(sizes) else [1] * stage.tasks
            with ProgressWatch(stage.name, watched, work / "progress" / stage.name, done) as executor.watch:
                if self.where == "ray":
                    self._run_on_ray(stage, folder)
                else:
                    executor.run()

    def _submit(self, stages: Sequence[Stage], work: Path) -> None:
        options = {"env_command": f'export PATH="{Path(sys.executable).parent}:$PATH"', **self.options}
        executor = None
        for stage in stages:
            executor = SlurmPipelineExecutor(
                stage.pipeline,
                stage.tasks,
                workers=self.workers or -1,
                job_name=f"latemask-{stage.name}",
                logging_dir=str(work.absolute() / "logs" / stage.name),
                depends=executor,
                **options,
            )
        assert executor is not None
        try:
            executor.run()
        except subprocess.CalledProcessError as error:
            raise UserError(f"--executor slurm: sbatch refused the job (exit code {error.returncode})") from None

    def _run_on_ray(self, stage: Stage, folder: str) -> None:
        options = {"workers": self.workers or -1, "logging_dir": folder, **self.options}
        executor = RayPipelineExecutor(stage.pipeline, stage.tasks, **options)
        executor.run()
        if left := executor.get_incomplete_ranks():
            raise UserError(
                f"{len(left)} of {stage.tasks} tasks of '{stage.name}' did not finish; logs are in {folder}/logs. "
                "Run the same command again for the rest"
            )


_OURS = frozenset({"self", "pipeline", "tasks", "workers", "logging_dir", "depends", "skip_completed", "job_name"})


def executor_options(where: Where, given: Sequence[str]) -> dict[str, Any]:
    """Turn NAME=VALUE into keyword arguments of datatrove's executor."""
    executor = {"local": None, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}[where]
    if given and executor is None:
        raise UserError("--executor-option is for --executor slurm or ray")
    parameters = inspect.signature(executor.__init__).parameters if executor else {}
    valid = {name: parameter.default for name, parameter in parameters.items() if name not in _OURS}
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UserError(f"--executor-option {text}: write NAME=VALUE")
        if name not in valid:
            raise UserError(f"--executor-option: {where} has no option '{name}'{nearest(name, valid)}")
        declared = type(valid[name]) if isinstance(valid[name], (bool, int, float)) else str
        try:
            options[name] = words[value.lower()] if declared is bool else declared(value)
        except (KeyError, ValueError):
            raise UserError(f"--executor-option {name} must be {declared.__name__}, not '{value}'") from None
    return options


class LocalExecutor(LocalPipelineExecutor):
    """datatrove's executor with another pool: theirs waits for ever when a worker is killed.

    Tasks left over with fewer tasks than cores use the cores as threads of the tokenizer.
    """

    pipeline: list[PipelineStep]
    watch: ProgressWatch

    def run(self) -> None:
        """Run the tasks that are not done yet; stop at the first error."""
        ranks = self.get_incomplete_ranks()
        processes = min(self.workers, len(ranks))
        if processes > 1:
            self._run_in_processes(ranks, processes, threads=1 + self.workers // processes)
            return
        for rank in ranks:
            self.run_rank(rank)
            self.watch.finish(rank)

    def run_rank(self, rank: int) -> int:
        """Run one task on a copy of the pipeline, so that counts begin at zero."""
        pipeline = self.pipeline
        self.pipeline = deepcopy(pipeline)
        try:
            self._run_for_rank(rank, local_rank=1)  # only rank 0 would log to the terminal
        finally:
            self.pipeline = pipeline
        return rank

    def _run_in_processes(self, ranks: list[int], processes: int, threads: int) -> None:
        context = get_context("spawn")  # a fork would copy the threads of torch and of the tokenizer half-way
        lifeline, ours = context.Pipe(duplex=False)
        watch, self.watch = self.watch, None  # type: ignore[assignment]
        pool = ProcessPoolExecutor(processes, context, _start_worker, (self, lifeline, threads))
        try:
            with _without_main_module():
                waiting = {pool.submit(_run_rank, rank) for rank in ranks}
            while waiting:
                finished, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                for future in finished:
                    watch.finish(future.result())
        except BaseException as error:
            ours.close()  # ends workers that are still at work
            if not isinstance(error, BrokenProcessPool):
                raise
            raise UserError(
                "a worker process died; if the system killed it for want of memory, lower --workers. "
                "What is finished is kept: run the same command again to go on"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            ours.close()
            self.watch = watch


_worker: LocalExecutor


def _start_worker(executor: LocalExecutor, lifeline: Any, threads: int) -> None:
    def end_with_parent() -> None:
        try:
            lifeline.recv()  # waits until the parent closes its end of the pipe, by will or by dying
        except EOFError:
            os._exit(1)

    global _worker
    _worker = executor
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    datatrove_logger.disable("datatrove")
    os.environ[_THREADS] = str(threads)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _run_rank(rank: int) -> int:
    return _worker.run_rank(rank)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Start processes that do not run the user's script again: prepare() needs no `if __name__ == "__main__"`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
