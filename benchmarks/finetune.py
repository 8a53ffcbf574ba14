"""Fine-tuning on SST-2 against transformers' plain Trainer, and length grouping against padding: one JSON object last.

python benchmarks/finetune.py --data GLUE-FOLDER [--encoder ENCODER] [--rows 3200] [--repeats 5]

`over_plain_trainer`: seconds of one cell of `latemask finetune` over seconds of a script with transformers alone, same
rows, same batches, dev scored once by each; from loading the model to the last score.
`grouping_speedup`: seconds of training with every row padded to 128 tokens over seconds with batches of about the same
length, same rows, no scoring.
`bf16_over_fp32`: seconds of a cell in bf16 over seconds in fp32, where the machine has bf16; all else is in fp32.
Everything alternates in one run; ratios are medians over the repeats.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.metrics import accuracy_score
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback

from latemask.evaluation.encoders import Encoder, open_encoders
from latemask.evaluation.glue_files import load_glue
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import Prepared, prepare_task, run_trial
from latemask.ground.console import say
from latemask.ground.precision import mixed_precision

LEARNING_RATE, BATCH, PADDED = 1e-4, 32, 128


def settings(folder: str, **changes: object) -> TrainingArguments:
    """The same optimizer and batches as ours, written with transformers alone."""
    values = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": 0.06,
        "weight_decay": 0.1,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        "train_sampling_strategy": "group_by_length",
        "seed": 0,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": not torch.accelerator.is_available(),
        "disable_tqdm": True,
        **changes,
    }
    return TrainingArguments(folder, **values)


def plain(encoder_folder: str, prepared: Prepared, collator: DataCollatorWithPadding, **changes: object) -> float:
    """Seconds of transformers' Trainer on the rows."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        set_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(encoder_folder, num_labels=2)
        trainer = Trainer(
            model,
            settings(folder, **changes),
            collator,
            prepared.splits["train"].rows,
            prepared.splits["dev"].rows,
            compute_metrics=lambda found: {"accuracy": accuracy_score(found.label_ids, found.predictions.argmax(-1))},
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return time.perf_counter() - start


def ours(prepared: Prepared) -> float:
    start = time.perf_counter()
    run_trial(prepared, LEARNING_RATE, seed=0)
    return time.perf_counter() - start


def saved(encoder: Encoder, folder: str) -> Encoder:
    """Give an encoder that nobody trained a folder, so that both sides load the same file."""
    if encoder.folder is not None:
        return encoder
    encoder.plain().save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    return open_encoders([folder])[0]


def ratio(name: str, above: list[float], below: list[float]) -> dict[str, float | list[float]]:
    found = [a / b for a, b in zip(above, below, strict=True)]
    return {name: round(statistics.median(found), 3), f"{name}_range": [round(min(found), 3), round(max(found), 3)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with GLUE in its own layout")
    parser.add_argument("--encoder", default="random:mini-base", help="any encoder; by default mini-base's shape")
    parser.add_argument("--rows", type=int, default=3200, help="training rows, a part of SST-2")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    task = load_glue("sst2", given.data).limited(given.rows)
    with tempfile.TemporaryDirectory() as folder:
        encoder = saved(open_encoders([given.encoder])[0], folder)
        prepared = prepare_task(encoder, task, Protocol(epochs=1, batch_size=BATCH, precision="fp32"))
        dynamic = DataCollatorWithPadding(encoder.tokenizer)
        padded = DataCollatorWithPadding(encoder.tokenizer, padding="max_length", max_length=PADDED)
        ways = {
            "ours": lambda: ours(prepared),
            "plain": lambda: plain(str(encoder.folder), prepared, dynamic),
            "grouped": lambda: plain(str(encoder.folder), prepared, dynamic, eval_strategy="no"),
            "padded": lambda: plain(
                str(encoder.folder), prepared, padded, eval_strategy="no", train_sampling_strategy="random"
            ),
        }
        if mixed_precision("auto"):  # torch would emulate it elsewhere
            mixed = replace(prepared, protocol=replace(prepared.protocol, precision="bf16"))
            ways["bf16"] = lambda: ours(mixed)
        ways["ours"]()  # the first one pays for what is loaded lazily
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(given.repeats):
            order = list(ways) if repeat % 2 == 0 else list(reversed(ways))
            for name in order:
                seconds[name].append(ways[name]())
                say(f"repeat {repeat + 1}/{given.repeats}  {name}: {seconds[name][-1]:.1f} s")
    print(
        json.dumps(
            {
                **ratio("over_plain_trainer", seconds["ours"], seconds["plain"]),
                **ratio("grouping_speedup", seconds["padded"], seconds["grouped"]),
                **(ratio("bf16_over_fp32", seconds["bf16"], seconds["ours"]) if "bf16" in seconds else {}),
                "rows": len(prepared.splits["train"]),
                "encoder": given.encoder,
                "threads": torch.get_num_threads(),
                "seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
