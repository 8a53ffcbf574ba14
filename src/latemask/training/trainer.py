"""transformers' Trainer, as far as a run needs more of it: checkpoints that are whole, a loss that resumes in the
middle of its window, a stop before a gradient that is no number is applied, and sharding that works without GPUs."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINING_ARGS_NAME

from latemask.ground.errors import UserError
from latemask.ground.processes import is_first, world_size
from latemask.training.checkpoints import CheckpointWriter, read_progress

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class NonFinite(UserError):
    """A step whose gradient is no number. It was not applied."""

    def __init__(self, step: int, norm: float):
        super().__init__(f"the gradient is {norm} at step {step}")
        self.step = step


class PretrainingTrainer(Trainer):
    """Composed onto the Trainer's own seams; what it does in between is left as it is."""

    data_collator: Any

    def __init__(
        self,
        *args: Any,
        checkpoints: CheckpointWriter,
        row_flops: float,
        attention: Callable[[], AbstractContextManager[None]],
        sharded: bool,
        eval_collator: Any,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.eval_collator = eval_collator
        self.checkpoints = checkpoints
        self.row_flops = row_flops
        self.attention = attention
        self.sharded = sharded and world_size() > 1
        self.resumed_from: Path | None = None

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return what a batch costs, forward and backward, as the plan counts it; the Trainer's guess is wrong."""
        return round(self.row_flops * len(inputs["labels"]))

    # Starting

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from a checkpoint if one is given."""
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Log, validate and save as often as the recipe says, not as it said when the checkpoint was written."""
        found = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.compute_steps(self.args, max_steps)
        return found

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader; its processes leave signals to us."""
        return _deaf(super().get_train_dataloader())

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """Return the loader, which draws other masks; its processes leave signals to us."""
        for_training, self.data_collator = self.data_collator, self.eval_collator
        try:
            return _deaf(super().get_eval_dataloader(*args, **kwargs))
        finally:
            self.data_collator = for_training

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Shard the model, weights loaded and no optimizer yet; accelerate does so on GPUs only."""
        if self.sharded:
            whole = getattr(self.model, "layers_before_join", None)  # the others run in pieces, and stay with the rest
            for layer in self.model.family.layers(self.model.encoder)[:whole]:
                fully_shard(layer)
            fully_shard(self.model)
            self.is_distributed_loading_by_transformers = True  # "owns its placement": no DDP around it
        return super()._prepare_for_training(*args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        """Go on with the losses since the last log line, so that the next one is what it would have been."""
        if self.resumed_from:
            progress = read_progress(self.resumed_from)
            sums = progress["loss_sums"]
            own = sums[self.args.process_index] if len(sums) == self.args.world_size else sum(sums) / len(sums)
            self._tr_loss += own
            self._globalstep_last_logged = progress["logged_at"]
            self.resumed_from = None
        return super()._run_epoch(*args, **kwargs)

    # Every step

    def compute_loss_context_manager(self) -> ExitStack:
        """Choose the attention kernels, for training and validation."""
        contexts = super().compute_loss_context_manager()
        contexts.enter_context(self.attention())
        return contexts

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm, known before the weights are touched."""
        norm = _plain(super()._get_grad_norm(model, grad_norm=grad_norm))
        has_scaler = getattr(self.accelerator, "scaler", None) is not None  # which skips such a step itself
        if not has_scaler and not math.isfinite(norm):
            raise NonFinite(self.state.global_step + 1, norm)
        return norm

    # Checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoints.aside)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write aside, then make it a checkpoint."""
        self.state.log_history = []  # metrics.jsonl has it; a checkpoint does not grow with the run
        if is_first():
            self.checkpoints.begin()
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)
        progress = {
            "loss_sums": self.accelerator.gather(self._tr_loss.reshape(1)).tolist(),
            "logged_at": self._globalstep_last_logged,
        }
        self.accelerator.wait_for_everyone()  # every process has written its part
        if is_first():
            self.checkpoints.commit(self.state.global_step, progress)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model; of a sharded one every process gives its part."""
        if not self.sharded:
            super().save_model(output_dir, _internal_call)
        else:
            state = get_model_state_dict(self.model, options=_WHOLE)
            if is_first():
                self._save(output_dir, state_dict=state)
        if is_first() and output_dir:
            (Path(output_dir) / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle: nobody should have to trust it

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the whole optimizer by the names of the weights: readable by any number of processes, sharded or not."""
        state = get_optimizer_state_dict(self.model, self._plain_optimizer, options=_WHOLE)
        if is_first():
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = torch.load(Path(checkpoint) / OPTIMIZER_NAME, map_location="cpu", weights_only=True, mmap=True)
        wanted = [{key: value for key, value in group.items() if key != "params"} for group in self._groups]
        set_optimizer_state_dict(self.model, self._plain_optimizer, state, options=_WHOLE)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))
        self._as_the_recipe_says(wanted)

    def _as_the_recipe_says(self, wanted: list[dict[str, Any]]) -> None:
        """Take learning rate, decay and betas from the recipe: the same as saved, unless a change was allowed."""
        scheduler = self.lr_scheduler
        scheduler.base_lrs = [group["initial_lr"] for group in wanted]
        for group, settings, factor in zip(self._groups, wanted, scheduler.lr_lambdas, strict=True):
            group.update(settings, lr=settings["initial_lr"] * factor(scheduler.last_epoch))

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._plain_optimizer.param_groups

    @property
    def _plain_optimizer(self) -> torch.optim.Optimizer:
        wrapped: Any = self.optimizer
        return getattr(wrapped, "optimizer", wrapped)


def _deaf(loader: DataLoader) -> DataLoader:
    """Let the processes of a loader live through a signal to all of us: we need rows until the step is saved."""
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
    inner.worker_init_fn = partial(_ignore_signals, inner.worker_init_fn)
    return loader


def _ignore_signals(then: Callable[[int], None] | None, worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if then is not None:
        then(worker)


def _plain(norm: Any) -> float:
    """Return a norm as a number; a sharded one is the sum of what each process has."""
    if isinstance(norm, Tensor):
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    return float(norm)
