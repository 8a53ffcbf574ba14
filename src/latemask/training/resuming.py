"""`latemask resume`: a run knows its recipe, its data and its processes; nobody needs to say them again."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from latemask.ground.console import say
from latemask.ground.errors import SaidByTheFirst, UserError
from latemask.ground.processes import world_size
from latemask.recipe import load_recipe
from latemask.run_folder import RunFolder
from latemask.training.pretraining import pretrain


def resume(
    run: str | Path,
    *,
    data: Sequence[str | Path] | None = None,
    stop_after: str | None = None,
    on_nan: Literal["stop", "rewind"] | None = None,
    verify: bool = False,
) -> RunFolder:
    """Go on with a run from its last checkpoint, wherever it was stopped.

    Args:
        run: The run folder.
        data: Where its data are now, if they were moved; several, FOLDER:WEIGHT each.
        stop_after: Save and stop after this much time (90m, 2h, 1h30m), with exit code 75.
        on_nan: At a gradient that is no number, stop or rewind; by default as the run was told when it began.
        verify: Read all of the data and compare it with its checksums.
    """
    folder = RunFolder(Path(run))
    folder.refuse_what_cannot_be(resume=True)
    record, recipe = folder.record, load_recipe(folder.recipe_file)
    where = list(data) if data else _data_of(folder, record)
    known = on_nan or record.get("on_nan", "stop")
    processes = int(record.get("processes", 1))
    if processes > 1 and world_size() == 1 and not folder.is_finished():
        options = {"data": where, "stop_after": stop_after, "on_nan": known, "verify": verify}
        _with_processes(folder, processes, int(record.get("machines", 1)), options)
        return folder
    return pretrain(
        recipe, data=where, out=folder.path, resume=True, stop_after=stop_after, on_nan=known, verify=verify
    )


def _data_of(run: RunFolder, record: dict[str, Any]) -> list[str | Path]:
    """Return the data that the run began with."""
    data = record.get("data", {})
    folders, weights = data.get("folders", []), data.get("weights", [1.0])
    if not folders or len(folders) != len(weights):
        raise UserError(f"{run.path / 'run.json'} does not say where its data are: give --data")
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"the data of {run.path} were at {folder}, and are not there now: give --data")
    return [Path(folders[0])] if len(folders) == 1 else [f"{f}:{w!r}" for f, w in zip(folders, weights, strict=True)]


def _with_processes(run: RunFolder, processes: int, machines: int, options: dict[str, Any]) -> None:
    """Start as many processes as the run had, and wait for them."""
    words = ["-m", "latemask", "resume", str(run.path)]
    for name, value in ((name, value) for name, value in options.items() if value):
        values = value if isinstance(value, list) else [value]
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    if machines > 1:
        raise UserError(
            f"{run.path} had {processes} processes on {machines} machines. Start it on each of them:\n"
            f"  torchrun --nnodes {machines} --nproc-per-node {processes // machines} … {shlex.join(words)}"
        )
    say(f"{run.path} had {processes} processes: starting as many (torchrun)")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    with subprocess.Popen([sys.executable, *launch, *words]) as child:
        before = {number: signal.signal(number, lambda got, _: child.send_signal(got)) for number in _PASSED_ON}
        try:
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code:
        raise SaidByTheFirst(code)


_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
