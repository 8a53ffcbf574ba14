"""What happens around the steps: metrics, progress, signals. Composed onto the Trainer, which is left as it is."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import torch
from rich.progress import Progress, TaskID
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from latemask.console import is_interactive, progress_bar, say
from latemask.errors import UserError
from latemask.masking.randomness import key
from latemask.run_folder import RunFolder
from latemask.signals import SignalFlag

_DROPOUT_STREAM = 3  # and one more for every process
_KEPT = ("loss", "eval_loss", "learning_rate", "grad_norm")


class MetricsCallback(TrainerCallback):
    """Writes metrics.jsonl, with tokens and FLOPs so far; validates at the end; stops at a loss that is no number."""

    def __init__(self, run: RunFolder, tokens_a_step: int, flops_a_step: float, has_validation: bool):
        self.run = run
        self.tokens_a_step = tokens_a_step
        self.flops_a_step = flops_a_step
        self.has_validation = has_validation
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Go on counting seconds where a resumed run stopped."""
        if self.run.metrics_file.is_file() and (rows := self.run.metrics()):
            self.seconds_before = rows[-1]["seconds"]
        self.started = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for a validation after the last step."""
        if state.global_step >= state.max_steps and self.has_validation:
            control.should_evaluate = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Append one line."""
        values = {name: logs[name] for name in _KEPT if name in logs}
        if not values:
            return  # the Trainer's closing summary
        step = state.global_step
        row = {
            "step": step,
            **values,
            "tokens": step * self.tokens_a_step,
            "flops": step * self.flops_a_step,
            "seconds": round(self.seconds_before + time.monotonic() - self.started, 3),
        }
        with self.run.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        loss = float(values.get("loss", values.get("eval_loss", 0.0)))
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is {loss} at step {step}: the run has diverged. Lower train.learning_rate or raise "
                f"train.warmup; checkpoints are in {self.run.checkpoints}"
            )


class ProgressCallback(TrainerCallback):
    """Loss, tokens a second, share of the machine's peak, time left: a bar in a terminal, plain lines elsewhere."""

    def __init__(self, tokens_a_step: int, seconds_at_peak: float):
        self.tokens_a_step = tokens_a_step
        self.seconds_at_peak = seconds_at_peak
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the bar."""
        self.started, self.first_step = time.monotonic(), state.global_step
        if is_interactive():
            self.bar = progress_bar("step {task.completed}/{task.total}", "{task.fields[state]}")
            self.task = self.bar.add_task("training", total=state.max_steps, completed=state.global_step, state="")
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the bar."""
        if self.bar:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Show the loss and the speed."""
        if "eval_loss" in logs:
            say(f"step {state.global_step:,}/{state.max_steps:,}  validation loss {logs['eval_loss']:.3f}")
        elif "loss" in logs:
            self._show(state, logs["loss"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()

    def _show(self, state: TrainerState, loss: float) -> None:
        done = state.global_step - self.first_step
        seconds = (time.monotonic() - self.started) / done
        share = self.seconds_at_peak / seconds
        status = f"loss {loss:.3f}  {self.tokens_a_step / seconds:,.0f} tokens/s  {share:.0%} of peak"
        if self.bar:
            self.bar.update(self.task, state=status)
        else:
            left = _clock(seconds * (state.max_steps - state.global_step))
            say(f"step {state.global_step:,}/{state.max_steps:,}  {status}  left {left}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class StepRandomness(TrainerCallback):
    """Makes dropout a pure function of (seed, rank, step), so that a resumed run draws what it would have drawn.

    The Trainer restores the state of the generator, but making a new data loader iterator then draws from it.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the generators of this step."""
        number = key(self.seed, _DROPOUT_STREAM + args.process_index, np.array([state.global_step]))[0]
        torch.manual_seed(int(number >> np.uint64(1)))


class StopOnSignal(SignalFlag, TrainerCallback):
    """Ctrl-C and SIGTERM finish the step and save; a second one ends at once. Used as a context."""

    def __init__(self) -> None:
        super().__init__("stopping after this step, with a checkpoint (once more ends at once)")

    def __enter__(self) -> StopOnSignal:
        super().__enter__()
        return self

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop, unless this was the last step anyway."""
        if self.received is not None and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True
