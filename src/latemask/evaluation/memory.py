"""What a step of fine-tuning takes beside the weights: activations, gradients and whatever is made on the way."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside and alive at once; `peak` is the most there were.

    On a GPU the allocator knows. On a CPU nobody does: the process's own size shows what malloc keeps, and never falls.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self.peak = device, 0
        self._bytes, self._alive = 0, set[int]()

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._bytes = torch.cuda.memory_allocated(self.device)
            return self
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) - self._bytes
        else:
            super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it made; what came in was counted, or was there before."""
        made = function(*args, **(kwargs or {}))
        known = {id(tensor.untyped_storage()) for tensor in tree_leaves((args, kwargs)) if _is_counted(tensor)}
        for tensor in tree_leaves(made):
            if _is_counted(tensor) and id(storage := tensor.untyped_storage()) not in known:
                self._count(storage)
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._alive:
            return
        self._alive.add(id(storage))
        self._bytes += storage.nbytes()
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(storage, self._forget, id(storage), storage.nbytes())

    def _forget(self, storage: int, size: int) -> None:
        self._alive.discard(storage)
        self._bytes -= size


def _is_counted(value: Any) -> bool:
    """Whether it is a tensor with a storage of its own: neither on the meta device nor sparse."""
    return isinstance(value, torch.Tensor) and value.device.type != "meta" and value.layout is torch.strided
