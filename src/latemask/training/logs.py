"""What is said of a run while it runs: metrics.jsonl, a line for the user, a warning; trackers are in trackers.py.

Each is called with a step and its values ("loss", "learning_rate", "grad_norm", or "eval_loss").
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from latemask.ground.console import is_interactive, progress_bar, say
from latemask.recipe import MLM_RATE
from latemask.run_folder import RunFolder

_EXPLODED = 1.0  # nats above the lowest loss so far
_STALL_LOGS, _FALLING = 20, 0.01  # log lines before we judge, and nats that count as falling


class Listener(ABC):
    """Hears of every log line, and of the end."""

    @abstractmethod
    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Take a log line."""

    def close(self) -> None:
        """Let go of what is held."""
        return


class Metrics(Listener):
    """metrics.jsonl, with what was spent so far; seconds go on where a resumed run stopped, and count its start."""

    def __init__(self, run: RunFolder, spent: Callable[[int], dict[str, float]]):
        self.run, self.spent = run, spent
        rows = run.metrics()
        self.started = time.monotonic() - (rows[-1]["seconds"] if rows else run.record.get("start_seconds", 0.0))

    def __call__(self, step: int, values: dict[str, float]) -> None:
        row = {
            "step": step,
            **values,
            **({"eval_masked": MLM_RATE} if "eval_loss" in values else {}),  # older runs had masks of their own
            **self.spent(step),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        with self.run.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class Progress(Listener):
    """Loss, tokens a second, share of the machine's peak, time left: a bar in a terminal, plain lines elsewhere."""

    def __init__(self, done: int, steps: int, tokens_a_step: int, seconds_at_peak: float):
        self.first, self.steps = done, steps
        self.tokens_a_step, self.seconds_at_peak = tokens_a_step, seconds_at_peak
        self.started = time.monotonic()
        self.bar = progress_bar("{task.completed}/{task.total}", "{task.fields[state]}")
        self.task = self.bar.add_task("step", total=steps, completed=done, state="")
        if is_interactive():
            self.bar.start()

    def move(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        if "eval_loss" in values:
            say(f"step {step:,}/{self.steps:,}  validation loss {values['eval_loss']:.3f} (15% masked)")
            return
        seconds = (time.monotonic() - self.started) / (step - self.first)
        speed = f"{self.tokens_a_step / seconds:,.0f} tokens/s  {self.seconds_at_peak / seconds:.0%} of peak"
        status = f"loss {values['loss']:.3f}  {speed}"
        if is_interactive():
            self.bar.update(self.task, state=status)
            return
        minutes, left = divmod(round(seconds * (self.steps - step)), 60)
        say(f"step {step:,}/{self.steps:,}  {status}  left {minutes // 60}:{minutes % 60:02}:{left:02}")

    def close(self) -> None:
        self.bar.stop()


class LossWatch(Listener):
    """Says when a loss explodes or does not fall, with the likely reasons; a run may go on all the same."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.lowest = (math.inf, 0)
        self.losses: list[float] = []
        self.warned: set[str] = set()

    def __call__(self, step: int, values: dict[str, float]) -> None:
        loss = values.get("loss", math.nan)
        if not math.isfinite(loss):
            return
        if loss > self.lowest[0] + _EXPLODED:
            self._warn(
                "explodes",
                f"the loss rose from {self.lowest[0]:.2f} at step {self.lowest[1]:,} to {loss:.2f} at step {step:,}: "
                "most likely train.learning_rate is too high or train.warmup too short; --resume after a stop goes "
                "back to the last checkpoint only",
            )
        self.lowest = min(self.lowest, (loss, step))
        self.losses.append(loss)
        if len(self.losses) >= _STALL_LOGS and step <= self.steps / 2:
            middle = len(self.losses) // 2
            before, after = (sum(part) / len(part) for part in (self.losses[:middle], self.losses[middle:]))
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
