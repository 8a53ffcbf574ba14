"""Where the log lines of a run can be watched beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow, Trackio.

metrics.jsonl is the truth, and it is cut back to the last checkpoint when a run goes on. A tracker is told every point
of it once: what its store has, by its own account, is not sent again, and what a kill made it lose is. So a tracker may
also be added in the middle of a run. A new one is one class. Nothing is imported that is not named.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latemask.ground.console import one_line, say
from latemask.ground.errors import UserError
from latemask.recipe import TRACKERS as TRACKERS
from latemask.recipe import Recipe, flat
from latemask.run_folder import RunFolder
from latemask.training.logs import Listener

POINTS = ("loss", "learning_rate", "grad_norm", "eval_loss")
PROJECT = "latemask"


def tags(values: dict[str, float]) -> dict[str, float]:
    """Return the points of a log line by the names they have in every tracker: train/loss, eval/loss and so on."""
    found = {name: float(values[name]) for name in POINTS if name in values}
    return {f"eval/{n[5:]}" if n.startswith("eval_") else f"train/{n}": value for n, value in found.items()}


class Tracker(Listener):
    """Tells a store of every point once, and keeps a run going when the store fails."""

    name: str
    package: str
    """What must be installed."""

    def __init__(self, run: RunFolder, recipe: Recipe):
        self.run, self.recipe = run, recipe
        self.failed = False
        self.sent: set[tuple[int, str]] = set()
        self.told_until = 0
        """A step up to which it has all points, where it cannot say which it has."""
        try:
            self.sent |= set(self.open(run.record.get("trackers", {}).get(self.name, {})))
        except UserError:
            raise
        except Exception as error:  # of a library that may raise anything
            raise UserError(f"train.report_to {self.name}: {one_line(error)}. {self.advice}") from None
        for row in run.metrics():
            self(row["step"], row)

    advice = "Leave it out of train.report_to to go on without it"

    @abstractmethod
    def open(self, known: dict[str, Any]) -> Iterable[tuple[int, str]]:
        """Open the store, with what was `remembered` of it; return the points, (step, name), that it has."""

    @abstractmethod
    def send(self, step: int, values: dict[str, float]) -> None:
        """Give it points."""

    def remember(self, **known: Any) -> None:
        """Write into run.json what is needed to go on under the same id."""
        trackers = self.run.record.get("trackers", {})
        self.run.update(trackers={**trackers, self.name: {**trackers.get(self.name, {}), **known}})

    def __call__(self, step: int, values: dict[str, float]) -> None:
        new = {name: value for name, value in tags(values).items() if (step, name) not in self.sent}
        if new and step > self.told_until and not self.failed:
            self._try(lambda: self.send(step, new))
            self.sent |= {(step, name) for name in new}

    def close(self) -> None:
        """Close the store."""
        if not self.failed:
            self._try(self.end)

    def end(self) -> None:
        """Let go of the store."""
        return

    def _try(self, do: Any) -> None:
        try:
            do()
        except Exception as error:  # a run is worth more than its curves elsewhere
            self.failed = True
            say(f"{self.name} is told nothing more: {one_line(error)}. The run goes on")


def refuse_missing(names: Iterable[str]) -> None:
    """Say before a run begins that a tracker is not installed."""
    for name in names:
        package = TRACKERS[name].package
        if not find_spec(package.split(".")[0]):
            raise UserError(f"train.report_to has {name}, which is not installed: pip install {package}")


class TensorBoard(Tracker):
    """Event files in RUN/tensorboard, written anew when a run goes on. No thread: what was told is in the file."""

    name = package = "tensorboard"

    def open(self, known: dict[str, Any]) -> Iterable[tuple[int, str]]:
        folder = self.run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.file = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.0"
        self._write(file_version="brain.Event:2")
        return []

    def send(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=points))

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self.file.open("ab") as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


class WandB(Tracker):
    """Weights & Biases. Offline, a segment that was killed may lack anything: it is written again, with the same id."""

    name = package = "wandb"
    advice = "Log in (wandb login), or set WANDB_MODE=offline"

    def open(self, known: dict[str, Any]) -> Iterable[tuple[int, str]]:
        import wandb

        settings = wandb.Settings(silent=True, console="off")
        is_offline = (os.environ.get("WANDB_MODE") or settings.mode) in ("offline", "dryrun", "disabled")
        if not is_offline and not wandb.api.api_key:
            raise UserError(f"train.report_to wandb: nobody is logged in. {self.advice}")
        left = Path(str(known.get("open")))
        if left.name.startswith("offline-run-") and left.name.endswith(f"-{known['id']}"):
            shutil.rmtree(left, ignore_errors=True)
        self.wandb = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=known.get("id") or self.run.record.get("id"),
            name=self.run.path.resolve().name,
            dir=known.get("dir") or os.environ.get("WANDB_DIR") or str(Path.cwd()),
            config=flat(self.recipe),
            resume="allow",
            settings=settings,
        )
        self.remember(id=self.wandb.id, dir=str(Path(self.wandb.dir).parents[2]), open=str(self.wandb.sync_dir))
        self.told_until = known.get("closed_at", 0) if self.wandb.offline else self.wandb.starting_step - 1
        return []

    def send(self, step: int, values: dict[str, float]) -> None:
        self.wandb.log(values, step=step)

    def end(self) -> None:
        self.wandb.finish()
        self.remember(open=None, closed_at=max(self.told_until, *(step for step, _ in self.sent), 0))


class MLflow(Tracker):
    """MLflow: a run in the experiment `latemask`, in whatever store MLFLOW_TRACKING_URI names."""

    name = package = "mlflow"

    def open(self, known: dict[str, Any]) -> Iterable[tuple[int, str]]:
        import logging

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        import mlflow

        uri = known.get("uri") or mlflow.get_tracking_uri()
        self.client = mlflow.MlflowClient(uri)
        try:
            self.client.update_run(known["id"], status="RUNNING")
            self.id = known["id"]
        except (KeyError, mlflow.MlflowException):  # a first time, or a store that is empty
            self.id = self._new_run()
            self.remember(id=self.id, uri=uri)
        every = {name for row in self.run.metrics() for name in tags(row)}
        every |= set(self.client.get_run(self.id).data.metrics)
        return [(point.step, name) for name in every for point in self.client.get_metric_history(self.id, name)]

    def _new_run(self) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(experiment)
        place = found.experiment_id if found else self.client.create_experiment(experiment)
        new = self.client.create_run(place, run_name=self.run.path.resolve().name)
        for key, value in flat(self.recipe).items():
            self.client.log_param(new.info.run_id, key, value)
        return str(new.info.run_id)

    def send(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.id, [Metric(name, value, now, step) for name, value in values.items()])

    def end(self) -> None:
        is_finished = max((step for step, _ in self.sent), default=0) >= self.run.record.get("steps", 0)
        self.client.set_terminated(self.id, "FINISHED" if is_finished else "KILLED")


class Trackio(Tracker):
    """Trackio, Hugging Face's: a run in the project `latemask`, on this machine unless TRACKIO_SPACE_ID says where."""

    name = package = "trackio"

    def open(self, known: dict[str, Any]) -> Iterator[tuple[int, str]]:
        import contextlib
        import io

        import trackio

        name = known.get("name") or f"{self.run.path.resolve().name}-{self.run.record['id'][:8]}"
        project = known.get("project") or os.environ.get("TRACKIO_PROJECT", PROJECT)
        with contextlib.redirect_stdout(io.StringIO()):  # its advertisement
            self.trackio = trackio.init(
                project, name, config=flat(self.recipe), resume="allow", embed=False, auto_log_cpu=False
            )
        self.remember(name=name, project=project)
        for point in trackio.SQLiteStorage.get_logs(project, name):
            yield from ((point["step"], tag) for tag in point if tag not in ("step", "timestamp"))

    def send(self, step: int, values: dict[str, float]) -> None:
        self.trackio.log(values, step=step)

    def end(self) -> None:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()):
            self.trackio.finish()


TRACKERS.update({tracker.name: tracker for tracker in (TensorBoard, WandB, MLflow, Trackio)})
