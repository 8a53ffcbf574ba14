"""One fine-tuning: (encoder, task, learning rate, seed) → a record, on transformers' Trainer."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from latemask.evaluation.encoders import Encoder
from latemask.evaluation.features import IGNORED, Features, at_words, decided, featurize, logits_of, make_collator
from latemask.evaluation.memory import PeakMemory
from latemask.evaluation.methods import METHODS, trained_weights
from latemask.evaluation.metrics import balanced_weights, finite, is_collapsed, measured, reported_score, score_of
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Trial
from latemask.evaluation.tasks import Task
from latemask.ground.errors import UserError
from latemask.ground.precision import attention_kernels, mixed_precision, precision_name

_LOGS = 100  # points of a loss curve


class Observer:
    """Is told of steps and epochs, and may end a trial by raising something. This one does nothing."""

    def before_training(self, words: str) -> None:
        """A method makes a model ready, and says how far it is; a good moment to stop."""

    def step(self) -> None:
        """One step is done."""

    def epoch(self, number: int, score: float) -> None:
        """One epoch is done, and scored."""

    def check(self) -> None:
        """A good moment to stop."""


@dataclass(frozen=True)
class Prepared:
    """A task, tokenized for an encoder."""

    encoder: Encoder
    task: Task
    protocol: Protocol
    max_length: int
    splits: dict[str, Features]
    observer: Observer = field(default_factory=Observer)
    """Of the trial that is run on it."""

    @property
    def batch_size(self) -> int:
        """Rows a step."""
        return self.protocol.batch_for(len(self.splits["train"]))


def prepare_task(encoder: Encoder, task: Task, protocol: Protocol) -> Prepared:
    """Tokenize all splits of a task."""
    max_length = protocol.length_for(encoder.longest)
    splits = {
        name: featurize(examples, task.kind, encoder.tokenizer_for(task.kind), max_length)
        for name, examples in task.splits.items()
    }
    return Prepared(encoder, task, protocol, max_length, splits)


def run_trial(
    prepared: Prepared, learning_rate: float, seed: int, observer: Observer | None = None, keep: bool = False
) -> tuple[Trial, Any]:
    """Fine-tune once; return the record and, with `keep`, the model as it was at the reported epoch.

    It is as the method trains it: the method's `merged` or `save` come after.
    """
    started = time.monotonic()
    prepared = replace(prepared, observer=observer or prepared.observer)
    method = METHODS[prepared.protocol.method]
    model = method.fitted(prepared.encoder.with_head(prepared.task, seed), prepared)
    collator = make_collator(prepared.task.kind, prepared.encoder.tokenizer_for(prepared.task.kind))
    judge = Judge(prepared, collator, prepared.observer, keep)
    with tempfile.TemporaryDirectory(prefix="latemask-") as folder:
        trainer = FineTuner(
            dtype=mixed_precision(prepared.protocol.precision),
            model=model,
            args=_arguments(prepared, learning_rate, seed, folder),
            data_collator=collator,
            train_dataset=prepared.splits["train"].rows,
            callbacks=[judge],
            compute_loss_func=weighted_loss(prepared.task, prepared.protocol),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    trial = judge.record(learning_rate, seed)
    logs = [log for log in trainer.state.log_history if "loss" in log]
    trial.loss = [[log["step"], round(log["loss"], 6) if math.isfinite(log["loss"]) else None] for log in logs]
    trial.steps = trainer.state.global_step
    trial.seconds = round(time.monotonic() - started, 3)
    trial.trained_weights = sum(weight.numel() for _, weight in trained_weights(trainer.model))
    trial.stored_bytes, trial.step_bytes = method.stored_bytes(trainer.model), trainer.step_bytes
    return trial, judge.restored(trainer.model) if keep else None


def weighted_loss(task: Task, protocol: Protocol) -> Callable[..., torch.Tensor] | None:
    """Return the loss in which every class counts the same, if that is wanted: else the stock model's own is taken."""
    if protocol.class_weights == "none" or task.kind == "regression":
        return None
    weights = torch.tensor(balanced_weights(task), dtype=torch.float32)

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits, at_device = outputs.logits.float(), weights.to(labels.device)
        if task.kind == "multilabel":
            return binary_cross_entropy_with_logits(logits, labels, pos_weight=at_device)
        return cross_entropy(logits.flatten(0, -2), labels.flatten(), at_device, ignore_index=IGNORED)

    return loss


def _arguments(prepared: Prepared, learning_rate: float, seed: int, folder: str) -> TrainingArguments:
    protocol = prepared.protocol
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=protocol.epochs,
        per_device_train_batch_size=prepared.batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=protocol.warmup,  # less than 1: a share of all steps
        weight_decay=protocol.weight_decay,
        adam_beta2=protocol.adam_beta2,
        adam_epsilon=protocol.adam_epsilon,
        max_grad_norm=protocol.clip,
        gradient_checkpointing=protocol.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},  # works where the embeddings are frozen, too
        train_sampling_strategy="group_by_length",
        seed=seed,
        logging_steps=max(1, protocol.steps_for(len(prepared.splits["train"])) // _LOGS),
        logging_nan_inf_filter=False,  # it would show the last good loss in place of a NaN
        eval_strategy="no",  # Judge does it: the Trainer's own would shuffle the rows to group them
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        use_cpu=not torch.accelerator.is_available(),
        disable_tqdm=True,
    )
    if arguments.n_gpu > 1:  # the Trainer would silently multiply the batch, and no public argument forbids it
        arguments._n_gpu = 1
    return arguments


class FineTuner(Trainer):
    """The Trainer, in mixed precision for its losses alone: it would leave the model so for the scores, too."""

    def __init__(self, *, dtype: torch.dtype | None, **given: Any):
        super().__init__(**given)
        self.dtype = dtype
        self.step_bytes = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Do a step; measure the first one, whose texts are the longest."""
        length = inputs["input_ids"].shape[1]
        with attention_kernels(self.args.device, self.dtype, length):  # what is computed again has to be the same
            if self.step_bytes:
                return super().training_step(model, inputs, *args, **kwargs)
            with PeakMemory(self.args.device) as memory:
                loss = super().training_step(model, inputs, *args, **kwargs)
        self.step_bytes = memory.peak
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the loss of a batch."""
        with computing(self.dtype, inputs["input_ids"]):
            return super().compute_loss(model, inputs, *args, **kwargs)


@contextmanager
def computing(dtype: torch.dtype | None, ids: torch.Tensor) -> Iterator[None]:
    """Compute losses of a batch in a precision, with the attention that is fast in it."""
    mixed = torch.autocast(ids.device.type, dtype, enabled=dtype is not None)
    with mixed, attention_kernels(ids.device, dtype, ids.shape[1]):
        try:
            yield
        except RuntimeError as error:  # such as DeBERTa, which masks with fp32's lowest number
            if dtype is not None and "BFloat16" in str(error):
                raise UserError("this encoder cannot be fine-tuned in bf16; pass --precision fp32") from None
            raise


class Judge(TrainerCallback):
    """Scores dev after every epoch, remembers the best one, and stops when nothing gets better."""

    def __init__(self, prepared: Prepared, collator: Any, observer: Observer, keep: bool):
        self.prepared = prepared
        self.collator = collator
        self.observer = observer
        self.keep = keep
        self.epochs: list[dict[str, Any]] = []
        self.reported: dict[str, Any] = {}
        self.weights: dict[str, Any] = {}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell whoever watches, and may want to stop."""
        self.observer.step()
        self.observer.check()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Score dev, and the other splits where this epoch is the one to report."""
        number = len(self.epochs) + 1
        result = self._scored(model)
        self.epochs.append({"epoch": number, **result})
        self.observer.epoch(number, result["score"])
        protocol = self.prepared.protocol
        is_last = protocol.select == "last"
        if is_last or not self.reported or result["score"] > self.reported["score"]:
            self.reported = {"epoch": number, **result, "metrics": dict(result["metrics"])}
            if self.keep:
                self.weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            for split in self.prepared.task.others:
                metrics = self._measured(model, split)[0]
                self.reported["metrics"] |= {f"{name}_{split}": value for name, value in metrics.items()}
        if not is_last and number - self.reported["epoch"] >= protocol.patience:
            control.should_training_stop = True

    def _scored(self, model: Any) -> dict[str, Any]:
        metrics, predictions = self._measured(model, "dev")
        return {
            "score": score_of(self.prepared.task, metrics),
            "metrics": metrics,
            "collapsed": is_collapsed(self.prepared.task, predictions),
        }

    def _measured(self, model: Any, split: str) -> tuple[dict[str, float], list[Any]]:
        task = self.prepared.task
        labels = task.splits[split].labels
        features = self.prepared.splits[split]
        predictions = decided(
            task.kind, logits_of(model, features.rows, self.collator, lambda _: self.observer.check())
        )
        if task.kind == "tagging":
            predictions = at_words(predictions, features, labels, task.labels)
        return measured(task, labels, predictions), predictions

    def record(self, learning_rate: float, seed: int) -> Trial:
        """Return what is to be written down."""
        prepared, task, reported = self.prepared, self.prepared.task, self.reported
        return Trial(
            encoder=prepared.encoder.name,
            task=task.name,
            learning_rate=learning_rate,
            seed=seed,
            score=reported_score(task, reported["metrics"]),
            metrics=finite(reported["metrics"]),
            epoch=reported["epoch"],
            collapsed=reported["collapsed"],
            epochs=[{**epoch, "metrics": finite(epoch["metrics"])} for epoch in self.epochs],
            batch_size=prepared.batch_size,
            max_length=prepared.max_length,
            precision=precision_name(prepared.protocol.precision),
        )

    def restored(self, model: Any) -> Any:
        """Return the model with the weights of the reported epoch."""
        model.load_state_dict(self.weights)
        return model
