"""One run, several processes (torchrun): who is the first, and how the others learn what it found.

The first process alone reads checksums, locks, writes and talks. With one process all of this costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from latemask.ground.errors import SaidByTheFirst, UserError

_PATIENCE = timedelta(hours=3)  # the first may have to read a terabyte for its checksums


def rank() -> int:
    """Return the number of this process, as torchrun says it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return how many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that writes and talks."""
    return rank() == 0


def join() -> None:
    """Meet the other processes: gloo on CPUs, NCCL on GPUs."""
    if world_size() == 1:
        return
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def leave() -> None:
    """Part from the other processes at the end: their threads must be gone before Python is."""
    if world_size() == 1:
        return
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def decided_by_the_first(decide: Callable[[], Any]) -> Any:
    """Let the first process decide and tell the others; what it refuses ends all of them, and is said once."""
    if world_size() == 1:
        return decide()
    import torch.distributed as dist

    answer: list[Any] = [None, None]
    if is_first():
        try:
            answer[0] = decide()
        except UserError as error:
            answer[1] = error
    told: list[Any] = [(answer[0], answer[1].exit_code if answer[1] else None)]
    dist.broadcast_object_list(told)
    if answer[1]:
        raise answer[1]
    value, refused = told[0]
    if refused is not None:
        raise SaidByTheFirst(refused)
    return value


def largest_of_all(value: float) -> float:
    """Return the largest of what the processes say; all of them get the same answer."""
    if world_size() == 1:
        return value
    import torch
    import torch.distributed as dist

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    answer = torch.tensor([value], device=device)
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return float(answer.item())
