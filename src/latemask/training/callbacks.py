"""What happens around the steps: metrics, progress, signals. Composed onto the Trainer, which is left as it is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.progress import Progress, TaskID
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from latemask.ground.console import is_interactive, progress_bar, say
from latemask.ground.processes import is_first, largest_of_all
from latemask.ground.signals import SignalFlag
from latemask.masking.randomness import key
from latemask.recipe import MLM_RATE
from latemask.run_folder import RunFolder

_DROPOUT_STREAM = 3  # and one more for every process
_EXPLODED = 1.0  # nats above the lowest loss so far
_STALL_LOGS, _FALLING = 20, 0.01  # log lines before we judge, and nats that count as falling
_KEPT = ("loss", "eval_loss", "learning_rate", "grad_norm")


class MetricsCallback(TrainerCallback):
    """Writes metrics.jsonl, with tokens and FLOPs so far; validates at the end."""

    def __init__(self, run: RunFolder, tokens_a_step: int, flops: Callable[[int], float], has_validation: bool):
        self.run = run
        self.tokens_a_step = tokens_a_step
        self.flops = flops
        self.has_validation = has_validation
        self.seconds_before = 0.0
        self.started = time.monotonic()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Go on counting seconds where a resumed run stopped."""
        if rows := self.run.metrics():
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
        if not values or not is_first():
            return  # the Trainer's closing summary, or not the process that writes
        step = state.global_step
        row = {
            "step": step,
            **values,
            **({"eval_masked": MLM_RATE} if "eval_loss" in values else {}),  # older runs had masks of their own
            "tokens": step * self.tokens_a_step,
            "flops": self.flops(step),
            "seconds": round(self.seconds_before + time.monotonic() - self.started, 3),
        }
        with self.run.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


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
            say(f"step {state.global_step:,}/{state.max_steps:,}  validation loss {logs['eval_loss']:.3f} (15% masked)")
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


class StopOnRequest(SignalFlag, TrainerCallback):
    """Ctrl-C, SIGTERM and a limit of time finish the step and save; a second signal ends at once. Used as a context."""

    def __init__(self, deadline: float = math.inf) -> None:
        super().__init__("stopping after this step, with a checkpoint (once more ends at once)")
        self.deadline = deadline

    def __enter__(self) -> StopOnRequest:
        super().__enter__()
        return self

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save and stop, all processes after the same step, unless this was the last one anyway."""
        out_of_time = 0.5 if time.monotonic() > self.deadline else 0.0
        asked = largest_of_all(float(self.received or out_of_time))
        if asked >= 1:
            self.received = int(asked)  # the signal may have reached another process only
        if asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True


class LossWatch(TrainerCallback):
    """Says when a loss explodes or does not fall, with the likely reasons; a run may go on all the same."""

    def __init__(self) -> None:
        self.lowest = (math.inf, 0)
        self.halves: list[float] = []
        self.warned: set[str] = set()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        """Look at every logged loss."""
        if "loss" not in logs or not math.isfinite(logs["loss"]):
            return
        loss, step = float(logs["loss"]), state.global_step
        if loss > self.lowest[0] + _EXPLODED:
            self._warn(
                "explodes",
                f"the loss rose from {self.lowest[0]:.2f} at step {self.lowest[1]:,} to {loss:.2f} at step {step:,}: "
                "most likely train.learning_rate is too high or train.warmup too short; --resume after a stop goes "
                "back to the last checkpoint only",
            )
        if loss < self.lowest[0]:
            self.lowest = (loss, step)
        self.halves.append(loss)
        if len(self.halves) >= _STALL_LOGS and step <= state.max_steps / 2:
            middle = len(self.halves) // 2
            before, after = (sum(part) / len(part) for part in (self.halves[:middle], self.halves[middle:]))
            if after > before - _FALLING:
                self._warn(
                    "stalls",
                    f"the loss does not fall ({before:.2f}, then {after:.2f} by step {step:,}): train.learning_rate "
                    "too high or far too low, a batch too small, or text without sense (see latemask inspect)",
                )

    def _warn(self, what: str, message: str) -> None:
        if what not in self.warned:
            self.warned.add(what)
            say(message)
