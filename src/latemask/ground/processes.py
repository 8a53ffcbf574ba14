"""One run, several processes (torchrun): who is the first, and how the others learn what it found.

The first process alone reads checksums, locks, writes and talks. With one process all of this costs nothing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from latemask.ground.errors import SaidByTheFirst, UserError

_PATIENCE = timedelta(hours=3)  # the first may have to read a terabyte for its checksums


def rank() -> int:
    """Return the number of this process, as torchrun says it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return how many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def machines() -> int:
    """Return on how many machines the processes are."""
    return max(1, world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", world_size())))


def is_first() -> bool:
    """Whether this process is the one that writes and talks."""
    return rank() == 0


def own_device() -> Any:
    """Return the device that this process computes on: its own GPU, or the CPU."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", "0")))


def idle_devices() -> int:
    """Return how many GPUs of this machine are left unused by the processes that were started."""
    import torch

    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 1
    return max(0, devices - int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def join() -> None:
    """Meet the other processes: NCCL for what is on GPUs, gloo for the rest."""
    if world_size() == 1:
        return
    import torch
    import torch.distributed as dist

    device = own_device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    on_device = "" if device.type == "cpu" else f",{device.type}:{dist.get_default_backend_for_device(device)}"
    dist.init_process_group(f"cpu:gloo{on_device}" if on_device else "gloo", timeout=_PATIENCE)


def leave() -> None:
    """Part from the other processes at the end: their threads must be gone before Python is."""
    if world_size() == 1:
        return
    import torch.distributed as dist

    if dist.is_initialized():
        gc.collect()  # a DDP model that outlives its group waits for it for ever when it goes
        dist.barrier()
        dist.destroy_process_group()


def decided_by_the_first(decide: Callable[[], Any]) -> Any:
    """Let the first process decide and tell the others; what it refuses ends all of them, and is said once."""
    if world_size() == 1:
        return decide()
    import torch
    import torch.distributed as dist

    answer: list[Any] = [None, None]
    if is_first():
        try:
            answer[0] = decide()
        except UserError as error:
            answer[1] = error
    told: list[Any] = [(answer[0], answer[1].exit_code if answer[1] else None)]
    dist.broadcast_object_list(told, device=torch.device("cpu"))
    if answer[1]:
        raise answer[1]
    value, refused = told[0]
    if refused is not None:
        raise SaidByTheFirst(refused)
    return value


def sum_over_all(tensor: Any) -> Any:
    """Return the sum of what all processes have."""
    if world_size() == 1:
        return tensor
    import torch.distributed as dist

    total = tensor.clone()
    dist.all_reduce(total)
    return total


def given_by_the_first(tensors: Iterable[Any]) -> None:
    """Let tensors of all processes hold what the first one's do."""
    if world_size() == 1:
        return
    import torch.distributed as dist

    for tensor in tensors:
        dist.broadcast(tensor, 0)


def told_by_all(value: Any) -> list[Any]:
    """Return what every process has, in their order."""
    if world_size() == 1:
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


def whole(tensor: Any) -> Any:
    """Return a plain tensor; a sharded one is put together from what each process has."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_as(tensor: Any, like: Any) -> Any:
    """Return a plain tensor, which all processes have, as another one is: this process' part of it, or all."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor


class LargestOfAll:
    """The largest number that any process has given, known to all of them one call later: so nobody waits for it."""

    def __init__(self) -> None:
        self.pending: Any = None

    def __call__(self, value: float) -> float:
        """Give a number; return the largest that was given in the call before (with one process: this one)."""
        if world_size() == 1:
            return value
        import torch
        import torch.distributed as dist

        known = self.settled()
        given = torch.tensor([value])  # on the CPU: gloo exchanges it beside whatever a GPU does
        self.pending = (given, dist.all_reduce(given, dist.ReduceOp.MAX, async_op=True))
        return known

    def settled(self) -> float:
        """Return what the last call is still owed."""
        if self.pending is None:
            return 0.0
        given, work = self.pending
        work.wait()
        self.pending = None
        return float(given.item())


def launcher() -> list[str]:
    """Return the words before `latemask` that started this run: torchrun with its options, or none."""
    if world_size() == 1:
        return []
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")
        place = words.index("latemask")
        names = ("torchrun", "torch.distributed.run", "torch/distributed/run.py")
        first = next(number for number, word in enumerate(words) if word.endswith(names))
        return ["torchrun", *words[first + 1 : place]]
    except (OSError, ValueError, StopIteration):  # no /proc, or started by something else
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        several = ["--nnodes", str(nodes), "--node-rank", os.environ.get("GROUP_RANK", "0")] if nodes > 1 else []
        place_of_first = ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
        each = ["--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", str(world_size())), "-m"]
        return ["torchrun", *several, *(place_of_first if nodes > 1 else []), *each]
