"""Seconds a step and peak memory: transformers' own MLM, our early baseline, and late masking of every kind.

python benchmarks/speed.py --size base        (or mini-base, or any recipe; --before CLONE: another commit, in turns)

Every contender is a process of its own, so its peak memory is its own, and all of them wait: the benchmark lets one
after the other have its turn, round after round, in alternating order. A turn is one step, or as many as take a few
seconds. A ratio is the median over the rounds. A step counts from its batch being there to the next one being there:
logging, clipping and data loading are in it. All compute in fp32; where the CPU has bf16, the first three are timed in
it, too, against one another and against their own in fp32, and with more rows. One JSON object comes last.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from latemask.budget.flops import Flops, mlm_baseline, sequence_flops
from latemask.ground.precision import mixed_precision
from latemask.objectives.late import Join
from latemask.recipe import EncoderRecipe, MaskRecipe, Recipe, dump_recipe, load_recipe, spelled_out

KINDS = ("inside", "self", "cross", "cross-only")
WARM_UP = 2
TURN_SECONDS = 3.0  # of the slowest: a small model's step alone would be timed with another's data in the caches
PAIR = 3  # times more rounds for the loop against the plain one: a few percent drown in the noise of a few rounds
CHECKPOINT_EVERY = 200  # steps, in checkpoint_share: written, synced, sealed with checksums, renamed
MANY = 10_000  # steps; the benchmark ends before
SIZES = {
    "base": EncoderRecipe(family="roberta", layers=12, width=768, heads=12, vocab_size=50265),
    "large": EncoderRecipe(family="roberta", layers=24, width=1024, heads=16, vocab_size=50265),
}


def recipe_of(size: str, batch: int) -> Recipe:
    """Late masking in the paper's shape with half of the tokens masked, or a recipe as it is."""
    if size in SIZES:
        recipe = Recipe(encoder=SIZES[size], mask=MaskRecipe(rate=0.5), options=Join("inside", 1))
    else:
        recipe = load_recipe(size)
    train = replace(recipe.train, batch_size=batch, micro_batch_size=None, precision="fp32")
    return spelled_out(replace(recipe, train=train), 32768)


@dataclass(frozen=True)
class Contender:
    """What takes a step: `how` is hf, loop, plain, or the folder of a clone of another commit."""

    name: str
    how: str
    recipe: Recipe

    @property
    def flops(self) -> float:
        """Forward and backward of a batch; transformers computes logits everywhere."""
        flops = sequence_flops(self.recipe)
        if self.how == "hf":
            everywhere = self.recipe.length / self.recipe.counts.predicted
            flops = Flops(flops.encoder, 0, flops.head * everywhere)
        return self.recipe.train.batch_size * flops.training


def contenders(recipe: Recipe) -> dict[str, Contender]:
    """Return all of them by name."""
    early = mlm_baseline(recipe)
    roberta = replace(early, encoder=replace(early.encoder, family="roberta", ffn_width=4 * early.encoder.width))
    found = [
        Contender("hf", "hf", roberta),
        Contender("early", "loop", early),
        Contender("late", "loop", recipe),
        Contender("late-plain", "plain", recipe),
        Contender("late-saving", "loop", replace(recipe, train=replace(recipe.train, save_every=1))),
        Contender("hf-bf16", "hf", in_bf16(roberta)),
        Contender("early-bf16", "loop", in_bf16(early)),
        Contender("late-bf16", "loop", in_bf16(recipe)),
    ]
    for kind in KINDS:
        if kind != recipe.options.kind:
            joined = replace(recipe, options=Join(kind, recipe.options.layers))
            found.append(Contender(f"late-{kind}", "loop", joined))
    return {contender.name: contender for contender in found}


def in_bf16(recipe: Recipe) -> Recipe:
    """Return the same in mixed precision."""
    return replace(recipe, train=replace(recipe.train, precision="bf16"))


class Gate:
    """In the contender's process: waits to be let through before each step, and says how long the last one took."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.opened: float | None = None

    def wait(self) -> None:
        """Report, then wait."""
        self.connection.send(None if self.opened is None else time.perf_counter() - self.opened)
        if not self.connection.recv():
            self.connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            sys.exit(0)
        self.opened = time.perf_counter()


def serve(contender: Contender, threads: int, connection: Connection) -> None:
    """Be one contender, until told to end."""
    import torch

    torch.set_num_threads(threads)
    gate = Gate(connection)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):  # its log lines
        {"hf": hf_loop, "loop": our_loop, "plain": plain_loop}[contender.how](contender.recipe, Path(folder), gate)


def gate_callback(gate: Gate) -> Any:
    """Return the gate as the Trainer knows it."""
    from transformers import TrainerCallback

    class Gated(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            gate.wait()

    return Gated()


class RandomText:
    """Data like a `Mixture`'s: rows of random words, read as real ones are."""

    def __init__(self, recipe: Recipe, folder: Path):
        from latemask.text import Vocabulary
        from latemask.text.rows import Shard, TokenRows

        size = recipe.encoder.vocab_size or 0
        self.vocabulary = Vocabulary(size=size, bos=0, eos=2, pad=1, mask=4, special=(0, 1, 2, 3, 4))
        tokens = np.random.default_rng(0).integers(5, size, 1_000_000).astype("<u4")
        tokens.tofile(folder / "random.ds")
        self.text = TokenRows([Shard(folder / "random.ds", 0, len(tokens))], 4, recipe.length, 0)

    def rows(self, split: str, length: int) -> Any:
        """Return rows to train on; nothing is validated here."""
        return ([self.text], [1.0]) if split == "train" else ([], [])


def our_loop(recipe: Recipe, folder: Path, gate: Gate) -> None:
    """As `latemask pretrain` does it: a run, with its log, its checkpoints and its progress."""
    import math

    from latemask.ground.allocator import keep_freed_memory
    from latemask.ground.signals import StopRequest
    from latemask.run_folder import RunFolder
    from latemask.training import running
    from latemask.training.job import Job
    from latemask.training.loop import Loop

    keep_freed_memory()  # as the command line does
    step = Loop.step

    def gated(loop: Loop, batches: Any) -> None:
        gate.wait()
        step(loop, batches)

    Loop.step = gated  # type: ignore[method-assign]
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.recipe_file.write_text(dump_recipe(recipe), "utf-8")
    data: Any = RandomText(recipe, folder)
    job = Job(recipe, data, MANY)
    running.train(job, run, running.loop_of(job, running.model_of(job, None)), StopRequest(math.inf), [])


def plain_loop(recipe: Recipe, folder: Path, gate: Gate) -> None:
    """What anybody would write: batch, forward, backward, clip, AdamW, and nothing around it."""
    import torch

    from latemask.ground.allocator import keep_freed_memory
    from latemask.masking.batches import Collator, MaskSchedule
    from latemask.model import build_model

    keep_freed_memory()
    data, train = RandomText(recipe, folder), recipe.train
    torch.manual_seed(0)
    model = build_model(recipe, data.vocabulary).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        train.learning_rate,
        (train.beta1, train.beta2),
        train.epsilon,
        train.weight_decay,
        fused=True,
    )
    collate, (rows, _) = (
        Collator.of(recipe, data.vocabulary, MaskSchedule(recipe, MANY)),
        data.rows("train", recipe.length),
    )
    for number in range(MANY):
        gate.wait()
        ids = rows[0].take(np.random.default_rng(number).integers(len(rows[0]), size=train.batch_size))
        batch = collate([{"ids": row, "index": number * train.batch_size + place} for place, row in enumerate(ids)])
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        optimizer.step()
        optimizer.zero_grad()


def hf_loop(recipe: Recipe, folder: Path, gate: Gate) -> None:
    """As transformers' run_mlm.py does it: RobertaForMaskedLM, its collator, the Trainer's defaults."""
    from transformers import (
        DataCollatorForLanguageModeling,
        PreTrainedTokenizerFast,
        RobertaConfig,
        RobertaForMaskedLM,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    encoder, train = recipe.encoder, recipe.train
    tokenizer = word_tokenizer(encoder.vocab_size or 0, PreTrainedTokenizerFast)
    set_seed(0)
    model = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=encoder.vocab_size,
            hidden_size=encoder.width,
            num_hidden_layers=encoder.layers,
            num_attention_heads=encoder.heads,
            intermediate_size=encoder.ffn_width,
            max_position_embeddings=recipe.length + 2,
            type_vocab_size=1,
        )
    )
    ids = np.random.default_rng(0).integers(5, encoder.vocab_size, (2048, recipe.length))
    rows = [{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in ids]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=MANY,
            per_device_train_batch_size=train.batch_size,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=train.precision == "bf16",
            disable_tqdm=True,
        ),
        data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15),
        train_dataset=rows,
        callbacks=[gate_callback(gate)],
    )
    trainer.train()


def word_tokenizer(size: int, fast: Any) -> Any:
    """Return a tokenizer of so many words; the collator asks it for ids only."""
    from tokenizers import Tokenizer, models

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = {word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(size - len(special)))])}
    return fast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


# In a process of another commit's code: its own speed.py serves its own late masking.
BEFORE = """
import sys
from multiprocessing.connection import Client
clone, size, batch, threads, address = sys.argv[1:]
sys.path[:0] = [f"{clone}/src", f"{clone}/benchmarks"]
import speed
speed.serve(speed.contenders(speed.recipe_of(size, int(batch)))["late"], int(threads), Client(address))
"""


class Process:
    """In the benchmark's process: one contender, as far as it can be told to do a step."""

    def __init__(self, contender: Contender, threads: int):
        if contender.how not in ("hf", "loop", "plain"):
            self._start_another_commit(contender, threads)
        else:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process: Any = context.Process(target=serve, args=(contender, threads, theirs), daemon=True)
            self.process.start()
            theirs.close()
        self.connection.recv()  # ready

    def _start_another_commit(self, contender: Contender, threads: int) -> None:
        with Listener() as listener:
            batch, size = str(contender.recipe.train.batch_size), contender.name.partition(":")[2]
            words = [contender.how, size, batch, str(threads), str(listener.address)]
            environment = {**os.environ, "PYTHONPATH": f"{contender.how}/src"}
            self.process = subprocess.Popen([sys.executable, "-c", BEFORE, *words], env=environment)
            self.process.join = self.process.wait
            self.connection = listener.accept()

    def turn(self, steps: int) -> float:
        """Let some steps happen and return the seconds of one."""
        seconds = 0.0
        for _ in range(steps):
            self.connection.send(True)
            seconds += self.connection.recv()
        return seconds / steps

    def end(self) -> float:
        """End it and return its peak memory in MB."""
        self.connection.send(False)
        peak = self.connection.recv()
        self.process.join()
        return peak


@dataclass
class Measured:
    """Seconds of every round, by contender; `peak` is the machine's FLOP/s in that round."""

    seconds: dict[str, list[float]]
    peak: list[float]
    memory: dict[str, float]


def alternate(group: list[Contender], repeats: int, threads: int, watch: Callable[[str], None]) -> Measured:
    """Let the contenders of a group do one step after the other."""
    import torch

    from latemask.training.calibration import measured_peak

    torch.set_num_threads(threads)
    processes = {contender.name: Process(contender, threads) for contender in group}
    found = Measured({contender.name: [] for contender in group}, [], {})
    steps = 1
    for number in range(WARM_UP + repeats):
        peak = measured_peak(torch.device("cpu"), torch.float32)
        order = list(processes) if number % 2 else list(reversed(processes))  # nobody is always first
        taken = {name: processes[name].turn(steps) for name in order}
        seconds = {name: taken[name] for name in processes}
        if number == WARM_UP - 1:
            steps = max(round(TURN_SECONDS / max(seconds.values())), 1)
        watch(f"round {number + 1}/{WARM_UP + repeats}: " + ", ".join(f"{n} {s:.2f} s" for n, s in seconds.items()))
        if number >= WARM_UP:
            found.peak.append(peak)
            for name, value in seconds.items():
                found.seconds[name].append(value)
    found.memory = {name: process.end() for name, process in processes.items()}
    return found


def measured_memory(group: list[Contender], threads: int, watch: Callable[[str], None]) -> dict[str, float]:
    """Return the peak of each in MB after three steps, one process at a time."""
    peaks = {}
    for contender in group:
        process = Process(contender, threads)
        process.turn(3)
        peaks[contender.name] = process.end()
        watch(
            f"peak memory, {contender.recipe.train.batch_size} rows: {contender.name} {peaks[contender.name]:,.0f} MB"
        )
    return peaks


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Return the median of the rounds' ratios and their range."""
    pairs = [a / b for a, b in zip(over, under, strict=True)]
    return {"median": round(statistics.median(pairs), 3), "min": round(min(pairs), 3), "max": round(max(pairs), 3)}


def rows_of(group: list[Contender], found: Measured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return what is known of each contender."""
    for contender in group:
        seconds = found.seconds[contender.name]
        shares = [contender.flops / s / peak for s, peak in zip(seconds, found.peak, strict=True)]
        yield (
            contender.name,
            {
                "seconds": round(statistics.median(seconds), 4),
                "seconds_range": [round(min(seconds), 4), round(max(seconds), 4)],
                "gflops": round(contender.flops / 1e9, 1),
                "peak_share": round(statistics.median(shares), 3),
                "memory_mb": round(found.memory[contender.name]),
            },
        )


def loop_alone(arguments: Any, every: dict[str, Contender], watch: Callable[[str], None]) -> tuple[Any, Any]:
    """Time the loop of a run against a plain one and, if there is one, against that of another commit."""
    group = [every["late"], every["late-plain"]]
    if arguments.before:
        group.append(Contender(f"before:{arguments.size}", arguments.before, every["late"].recipe))
    found = alternate(group, PAIR * arguments.repeats, arguments.threads, watch)
    ratios = {
        f"loop_over_{other.name.partition(':')[0].removeprefix('late-')}": ratio(
            found.seconds["late"], found.seconds[other.name]
        )
        for other in group[1:]
    }
    return ratios, dict(rows_of(group, found))


def in_half_precision(arguments: Any, watch: Callable[[str], None]) -> dict[str, Any]:
    """Time steps in bf16 against one another, and against our own in fp32; nothing where torch would emulate it.

    What a step does once for every weight, whatever its rows, bf16 makes no faster: the optimizer, the norm of the
    gradients, the conversions. So it is timed with more rows as well.
    """
    if not mixed_precision("auto"):
        return {}
    few, many = (contenders(recipe_of(arguments.size, rows)) for rows in (arguments.batch, arguments.larger_batch))
    names = ("hf-bf16", "early-bf16", "late-bf16")
    both = alternate(
        [few[name] for name in ("early", "late", *names)], arguments.repeats, arguments.threads, watch
    ).seconds
    larger = alternate([many[name] for name in names], arguments.repeats, arguments.threads, watch).seconds
    return {
        **{f"{name}_over_fp32": ratio(both[f"{name}-bf16"], both[name]) for name in ("early", "late")},
        **over_others(both),
        "fp32_late_over_early": ratio(both["late"], both["early"]),
        "with_more_rows": over_others(larger),
    }


def over_others(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return what late takes in bf16 over the others."""
    return {f"late_over_{name}": ratio(seconds["late-bf16"], seconds[f"{name}-bf16"]) for name in ("hf", "early")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="base", help="base, large, or a recipe such as mini-base")
    parser.add_argument("--batch", type=int, default=8, help="rows a step")
    parser.add_argument("--larger-batch", type=int, default=32, help="rows a step for memory, and once more in bf16")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--before", help="clone of another commit, whose late masking takes turns with ours")
    parser.add_argument("--only-loop", action="store_true", help="only the loop, against the plain one and --before")
    parser.add_argument("--only-bf16", action="store_true", help="only what is computed in bf16")
    parser.add_argument("--no-kinds", action="store_true", help="leave out the other kinds of joining")
    arguments = parser.parse_args()

    def watch(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    every = contenders(recipe_of(arguments.size, arguments.batch))
    if arguments.only_bf16:
        flops = {f"flops_late_over_{name}": every["late"].flops / every[name].flops for name in ("hf", "early")}
        print(json.dumps({**vars(arguments), **in_half_precision(arguments, watch), **flops}))
        return
    loop, table = loop_alone(arguments, every, watch)
    if arguments.only_loop:
        print(json.dumps({**vars(arguments), **loop, "contenders": table}))
        return
    first = [every[name] for name in ("hf", "early", "late")]
    found = alternate(first, arguments.repeats, arguments.threads, watch)
    table = {**dict(rows_of(first, found)), **table}  # late: from where it had more rounds
    over_inside = {}
    if not arguments.no_kinds:
        others = ("hf", "early", "late-plain", "late-saving", "hf-bf16", "early-bf16", "late-bf16")
        second = [contender for name, contender in every.items() if name not in others]
        kinds = alternate(second, arguments.repeats, arguments.threads, watch)
        table |= {name: row for name, row in rows_of(second, kinds) if name != "late"}
        over_inside = {name: ratio(kinds.seconds[name], kinds.seconds["late"]) for name in kinds.seconds}
    saving = alternate([every["late"], every["late-saving"]], arguments.repeats, arguments.threads, watch)
    mixed = in_half_precision(arguments, watch)
    larger = contenders(recipe_of(arguments.size, arguments.larger_batch))
    memory = measured_memory([larger["hf"], larger["late"]], arguments.threads, watch)

    late_over_hf, late_over_early = (ratio(found.seconds["late"], found.seconds[name]) for name in ("hf", "early"))
    a_checkpoint = statistics.median(
        slow - fast for slow, fast in zip(saving.seconds["late-saving"], saving.seconds["late"], strict=True)
    )
    between = CHECKPOINT_EVERY * statistics.median(saving.seconds["late"])
    result = {
        **vars(arguments),
        "late_over_hf": late_over_hf["median"],
        "late_over_early": late_over_early["median"],
        "flops_late_over_early": round(every["late"].flops / every["early"].flops, 3),
        "flops_late_over_hf": round(every["late"].flops / every["hf"].flops, 3),
        **loop,
        "checkpoint_seconds": round(a_checkpoint, 3),
        "checkpoint_share": round(a_checkpoint / between, 5),
        "peak_share": table["late"]["peak_share"],
        "memory_over_hf": round(memory["late"] / memory["hf"], 3),
        "ranges": {"late_over_hf": late_over_hf, "late_over_early": late_over_early},
        "kinds_over_late": over_inside,
        "in_bf16": mixed,
        "peak_gflops": round(statistics.median(found.peak) / 1e9, 1),
        "memory_mb": {name: round(value) for name, value in memory.items()},
        "contenders": table,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
