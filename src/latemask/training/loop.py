"""The training step, and the loop around it. What is trained is also what is calibrated and benchmarked.

(select →) batch → loss, accumulated → backward → norm → finite? → optimizer → schedule → log, validate, save, stop
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from latemask.ground.errors import UserError
from latemask.ground.precision import attention_kernels, mixed_precision
from latemask.ground.processes import rank, sum_over_all, whole, world_size
from latemask.masking.batches import Batch
from latemask.masking.randomness import Stream, key
from latemask.recipe import OPTIMIZERS, SCHEDULES, Recipe
from latemask.training.averaging import Average
from latemask.training.schedules import Phases

if TYPE_CHECKING:
    from latemask.training.selecting import Selection

LOOK_EVERY = 20  # steps after which a GPU is asked whether all gradients were numbers; a CPU is asked after each
_RANK_BITS = 40


class NonFinite(UserError):
    """A step whose gradient is no number. Neither it nor any later one was applied."""

    def __init__(self, step: int, norm: float):
        super().__init__(f"the gradient is {norm} at step {step}")
        self.step = step


class Loop:
    """A model in training: its weights, its optimizer, and how many steps are done."""

    selection: Selection | None = None
    """What chooses the rows of a step, of those that are read."""

    def __init__(self, recipe: Recipe, steps: int, model: Any, device: torch.device, done: int = 0):
        train = recipe.train
        self.recipe, self.steps, self.device, self.done = recipe, steps, device, done
        self.dtype = mixed_precision(train.precision)
        self.is_sharded = train.sharded and world_size() > 1
        self.model = model.to(device).train()
        self.wrapped = self._wrapped()
        self.optimizer = OPTIMIZERS[train.optimizer](self.model, train)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.phases = Phases.of(train, steps)
        self.average = Average(self.model, train.average) if train.average else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.loss_sum = torch.zeros((), device=device)
        """Of the losses since the last log line, of this process."""
        self.logged_at = done
        self.norm = torch.zeros((), device=device)
        self.bad_step = torch.zeros((), dtype=torch.int64, device=device)
        """The first step whose gradient was no number, 0 while there is none. Kept on the device, like its norm."""
        self.bad_norm = torch.zeros((), device=device)

    def _wrapped(self) -> Any:
        """Compile, and let the processes share the work: FSDP splits the weights, DDP gives each a copy."""
        if self.is_sharded:
            family = self.model.family
            layers = family.layers(self.model.encoder)
            for layer in layers[: self.model.objective.layers_run_whole(self.model)]:
                if family.runs_whole(layer):  # the others run in pieces
                    fully_shard(layer)
            return fully_shard(self.model)
        # One graph for all steps: their shapes are the same, and a break in it would be a mistake of ours.
        compiled = torch.compile(self.model, fullgraph=True, dynamic=False) if self.recipe.train.compile else self.model
        if world_size() > 1:
            return DistributedDataParallel(compiled, [self.device] if self.device.type != "cpu" else None)
        return compiled

    # The step

    def step(self, batches: Sequence[Any]) -> None:
        """Take one optimizer step on the rows of all batches or, where rows are selected, on the best of them."""
        if self.selection is not None:
            batches = self.selection.chosen(self, batches)
        self._start_randomness()
        for number, batch in enumerate(batches, 1):
            with self._synchronising(number == len(batches)):
                with self.computing():
                    loss = self.wrapped(**batch.to(self.device)).loss / len(batches)
                self.scaler.scale(loss).backward()
            self.loss_sum += loss.detach()
        self.scaler.unscale_(self.optimizer)
        self.norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.train.clip or math.inf))
        self._refuse_what_is_no_number()
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * self.rate()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.done += 1
        if self.average:
            self.average.follow(self.done)

    def rate(self) -> float:
        """Return the share of the peak learning rate for the next step."""
        return SCHEDULES[self.recipe.train.schedule](self.done, self.phases)

    def computing(self) -> ExitStack:
        """Return the context of a forward pass: its precision and attention kernels."""
        contexts = ExitStack()
        contexts.enter_context(torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None))
        contexts.enter_context(attention_kernels(self.device, self.dtype, self.recipe.length))
        return contexts

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Let the model look at rows and learn nothing from them: no dropout, no gradient."""
        self.model.eval()
        with torch.no_grad():
            yield
        if self.is_sharded:
            self.wrapped.reshard()  # which a backward pass would have done
        self.model.train()

    def judged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that are judged and kept: their average, if any."""
        return self.average.in_place() if self.average else nullcontext()

    def _start_randomness(self) -> None:
        """Make dropout a pure function of (seed, step, process): a resumed run draws what it would have drawn."""
        index = np.array([(rank() << _RANK_BITS) + self.done])
        torch.manual_seed(int(key(self.recipe.seed, Stream.DROPOUT, index)[0] >> np.uint64(1)))

    def _synchronising(self, is_last: bool) -> AbstractContextManager[None]:
        """With DDP, exchange gradients once a step: with the last of its batches."""
        if isinstance(self.wrapped, DistributedDataParallel) and not is_last:
            return self.wrapped.no_sync()
        return nullcontext()

    def _refuse_what_is_no_number(self) -> None:
        """Keep a gradient that is no number, and all after it, from being applied: no weight is ever touched by it.

        A fused optimizer looks at `found_inf` where the gradients are, so that nobody waits for a GPU. (In fp16 the
        scaler does so, and such a step is no more than passed over.)
        """
        if self.scaler.is_enabled():
            return
        is_first_bad = ~torch.isfinite(self.norm) & (self.bad_step == 0)
        self.bad_step = torch.where(is_first_bad, self.done + 1, self.bad_step)
        self.bad_norm = torch.where(is_first_bad, self.norm, self.bad_norm)
        looks_itself = self.optimizer.defaults.get("fused") and not self.is_sharded
        if looks_itself:
            self.optimizer.found_inf = (self.bad_step > 0).float()
        if not looks_itself or self.device.type == "cpu" or self.done % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Ask whether all gradients so far were numbers."""
        if step := int(self.bad_step.item()):
            raise NonFinite(step, self.bad_norm.item())

    # Around the steps

    def logged(self) -> dict[str, float]:
        """Return what a log line says of the steps since the last one."""
        self.look()
        mean = sum_over_all(self.loss_sum).item() / world_size() / (self.done - self.logged_at)
        self.loss_sum.zero_()
        self.logged_at = self.done
        return {"loss": mean, "learning_rate": self.optimizer.param_groups[0]["lr"], "grad_norm": self.norm.item()}

    def validate(self, batches: Iterable[tuple[Batch, int]]) -> float:
        """Return the mean loss over all rows that count, whoever has which; a batch comes with how many of its do."""
        self.look()
        losses, counts = [], []
        with self.judged(), self.looking():
            for batch, rows in batches:
                with self.computing():
                    losses.append(self.model(**batch.to(self.device)).loss)
                counts.append(rows)
        weights = torch.tensor(counts, dtype=torch.float64)
        own = torch.stack((torch.stack(losses).cpu().double() @ weights, weights.sum()))
        loss_sum, row_count = sum_over_all(own).tolist()
        return loss_sum / row_count


def run_loop(
    loop: Loop,
    batches: Iterator[Any],
    each: int,
    *,
    log: Callable[[dict[str, float]], None],
    validate: Callable[[], dict[str, float]] | None,
    save: Callable[[], None],
    is_stopped: Callable[[], bool],
    until: int | None = None,
) -> bool:
    """Train to the end (or `until` a step), or until somebody stops it; return whether that was so.

    Each step takes so many batches. There is a checkpoint of the last step.
    """
    train, until = loop.recipe.train, loop.steps if until is None else until
    while loop.done < until:
        loop.step([next(batches) for _ in range(each)])
        is_end, stops = loop.done == until, is_stopped()
        if loop.done == 1 or loop.done % train.log_every == 0:
            log(loop.logged())
        if validate and (is_end or loop.done % train.eval_every == 0):
            log(validate())
        if is_end or stops or loop.done % train.save_every == 0 or loop.done in train.keep_at:
            loop.look()
            save()
        if stops:
            return True
    return False
