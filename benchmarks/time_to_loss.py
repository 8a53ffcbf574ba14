"""The honest race: when does our model predict held-out text as well as transformers' at the end of a budget?

python benchmarks/time_to_loss.py --shared ../shared/data            (one JSON object last; --figure docs/race.svg)

Same text, tokenizer, cores, precision, and held-out rows with the same 15 % masked. Contenders: ModernBertForMaskedLM
and RobertaForMaskedLM as run_mlm sets them up, with the Trainer, 15 % masked by 80/10/10; our early and our late
masking as they come. transformers may spend the budget, and is tuned at it as ours was (docs/study.md): three learning
rates each, then the better of the two with half the batch, and with a rate beyond the three if its best is the first or
the last of them. Ours get an ever larger part of the budget, each a run of its own with its own schedule, until one has
the loss that the better of the two ended with; at last all of it. Seconds are those of the steps and of the start from
the corpus, which is counted anew; opening the data, imports and validation are left out for all.

A race that was interrupted goes on with --resume. A long one need not tune again, and need not have the machine for
itself: its seconds can be those that the same FLOPs took in a shorter race.

python benchmarks/time_to_loss.py --budget 6e14 --theirs hf-modernbert:1e-3:16 --pace race.json --threads 1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from latemask.budget.flops import Flops, sequence_flops, with_budget
from latemask.ground.files import write_json_atomically
from latemask.recipe import MaskRecipe, Recipe, load_recipe, spelled_out

UNIT = 7.5e13  # FLOPs: C/8 of docs/study.md
RECIPES = {"late": "mini-base", "early": "mini-base-early"}
RATES = {"hf-modernbert": (5e-4, 1e-3, 2e-3), "hf-roberta": (2.5e-4, 5e-4, 1e-3)}
PARTS = [2 ** (-step / 2) for step in range(12, 0, -1)]
POINTS = 12  # of a curve


@dataclass(frozen=True)
class Contender:
    """Who runs, and with which settings."""

    name: str
    rate: float
    batch: int

    @classmethod
    def of(cls, word: str) -> Contender:
        """Read NAME:RATE:BATCH; what is missing is as in our recipe."""
        name, *settings = word.split(":")
        train = load_recipe(RECIPES.get(name, RECIPES["early"])).train
        given = dict(zip(("rate", "batch"), settings, strict=False))
        return cls(name, float(given.get("rate", train.learning_rate)), int(given.get("batch", train.batch_size)))

    def __str__(self) -> str:
        return f"{self.name}:{self.rate:g}:{self.batch}"


@dataclass
class Curve:
    """One run of a contender."""

    contender: str
    flops: float
    start_seconds: float = 0.0
    points: list[tuple[float, float, float]] = field(default_factory=list)
    """(FLOPs, seconds, validation loss)."""

    @property
    def name(self) -> str:
        """The contender's, without its settings."""
        return self.contender.partition(":")[0]

    @property
    def loss(self) -> float:
        """The loss at its end."""
        return self.points[-1][2]

    @property
    def seconds(self) -> float:
        """All of its seconds."""
        return self.points[-1][1]

    def first_below(self, loss: float) -> tuple[float, float] | None:
        """Return (FLOPs, seconds) when a validation was first as good as `loss`."""
        return next(((flops, seconds) for flops, seconds, found in self.points if found <= loss), None)

    def at_the_pace_of(self, other: Curve) -> Curve:
        """Return the curve with the seconds that its FLOPs took in another run of the contender."""
        pace = (other.seconds - other.start_seconds) / other.points[-1][0]
        points = [(flops, other.start_seconds + pace * flops, loss) for flops, _, loss in self.points]
        return replace(self, start_seconds=other.start_seconds, points=points)


class Clock:
    """Seconds, but for those that validation takes."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at 0."""
        self.started, self.paused = time.perf_counter(), 0.0

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self.started - self.paused

    def pause(self, since: float) -> None:
        """Leave out what passed since then."""
        self.paused += time.perf_counter() - since


# Ours


def our_run(contender: Contender, flops: float, data: Path) -> Curve:
    """Train as `latemask pretrain` does, without a folder around it."""
    import torch

    from latemask.ground.allocator import keep_freed_memory
    from latemask.starts import start
    from latemask.text import Mixture
    from latemask.text.prepared import NEIGHBOURS
    from latemask.training.job import plan_job
    from latemask.training.running import loop_of, model_of

    keep_freed_memory()
    shutil.rmtree(data / NEIGHBOURS, ignore_errors=True)  # the start is paid for
    settings = {"train": {"learning_rate": contender.rate, "batch_size": contender.batch}}
    recipe = load_recipe(RECIPES[contender.name], settings)
    job = plan_job(with_budget(recipe, None, None, flops), Mixture.open(data, verify=False))
    clock = Clock()
    model = model_of(job, None)
    start(model, job.recipe, job.data)
    loop = loop_of(job, model)
    found = Curve(str(contender), flops, clock.seconds())
    batches, samples = job.batches(0), job.validation_samples()
    assert samples is not None
    marks = set(np.linspace(0, job.steps, POINTS + 1).round().astype(int)[1:].tolist())
    while loop.done < job.steps:
        loop.step([next(batches)])
        if loop.done in marks:
            since = time.perf_counter()
            with torch.no_grad():
                loss = loop.validate(job.validation_batches(samples))
            clock.pause(since)
            found.points.append((job.flops(loop.done), clock.seconds(), loss))
    return found


def fewest_flops(name: str) -> float:
    """Return what a curve takes whose points are a step apart."""
    recipe = spelled_out(load_recipe(RECIPES[name]), 0)
    return POINTS * recipe.train.batch_size * sequence_flops(recipe).training


# Theirs


def their_flops(recipe: Recipe) -> float:
    """Return FLOPs of a row: like ours, but with logits at every position."""
    flops = sequence_flops(recipe)
    return Flops(flops.encoder, 0, flops.head * recipe.length / recipe.counts.predicted).training


def their_recipe(contender: Contender, data: Any) -> Recipe:
    """Return the shape of a contender as a recipe, for what it costs and for the rows it sees."""
    from latemask.model import complete_recipe

    recipe = load_recipe(RECIPES["early"], {"train": {"batch_size": contender.batch}})
    if contender.name == "hf-roberta":
        encoder = replace(recipe.encoder, family="roberta", ffn_width=4 * recipe.encoder.width)
        recipe = replace(recipe, encoder=encoder)
    return complete_recipe(replace(recipe, mask=MaskRecipe(rate=0.15)), data.vocabulary)


def their_model(name: str, recipe: Recipe, vocabulary: Any) -> Any:
    """Return the stock model from its stock config; only the shape is ours."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM, RobertaConfig, RobertaForMaskedLM

    encoder = recipe.encoder
    shape = {
        "vocab_size": encoder.vocab_size,
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.ffn_width,
        "pad_token_id": vocabulary.pad,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
    }
    if name == "hf-roberta":
        return RobertaForMaskedLM(RobertaConfig(**shape, max_position_embeddings=recipe.length + 2, type_vocab_size=1))
    ends = {"cls_token_id": vocabulary.bos, "sep_token_id": vocabulary.eos}
    return ModernBertForMaskedLM(ModernBertConfig(**shape, **ends, max_position_embeddings=recipe.length))


def their_run(contender: Contender, flops: float, data: Path) -> Curve:
    """Train as transformers' run_mlm.py does."""
    import torch
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, set_seed

    from latemask.text import Mixture
    from latemask.training.job import plan_job

    mixture = Mixture.open(data, verify=False)
    recipe, batch = their_recipe(contender, mixture), contender.batch
    steps = int(flops / (batch * their_flops(recipe)))
    job = plan_job(with_budget(recipe, steps, None, None), mixture)
    set_seed(0)
    model = their_model(contender.name, recipe, mixture.vocabulary)
    samples, validation = job.train_samples(0), job.validation_samples()
    assert validation is not None
    found, clock = Curve(str(contender), flops), Clock()
    marks = set(np.linspace(0, steps, POINTS + 1).round().astype(int)[1:].tolist())

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return steps * batch

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": samples[index]["ids"].tolist()}

    class Validated(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.restart()

        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in marks:
                since = time.perf_counter()
                loss = validated(model, job, validation)
                clock.pause(since)
                found.points.append((state.global_step * batch * their_flops(recipe), clock.seconds(), loss))

    trainer = Trainer(
        model=model,
        args=their_arguments(contender, recipe, steps, data.parent / "hf"),
        data_collator=DataCollatorForLanguageModeling(tokenizer=mixture.tokenizer, mlm_probability=0.15),
        train_dataset=Rows(),
        callbacks=[Validated()],
    )
    trainer.train()
    return found


def their_arguments(contender: Contender, recipe: Recipe, steps: int, out: Path) -> Any:
    """Return the Trainer's defaults, with the optimizer set as ours is."""
    import torch
    from transformers import TrainingArguments

    from latemask.ground.precision import mixed_precision

    return TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=contender.batch,
        learning_rate=contender.rate,
        warmup_steps=round(recipe.train.warmup * steps),
        weight_decay=recipe.train.weight_decay,
        adam_beta2=recipe.train.beta2,
        adam_epsilon=recipe.train.epsilon,
        bf16=mixed_precision("auto") is torch.bfloat16,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        seed=0,
    )


def validated(model: Any, job: Any, samples: Any) -> float:
    """Return the loss on the rows and masks that every run of ours is validated with, in fp32."""
    import torch
    from torch.nn import functional as F

    was_training = model.training
    model.eval()
    losses, counts = [], []
    with torch.inference_mode():
        for batch, rows in job.validation_batches(samples):
            logits = model(input_ids=batch["input_ids"], attention_mask=torch.ones_like(batch["input_ids"])).logits
            places = batch["predicted_slots"][..., None].expand(-1, -1, logits.shape[-1])
            chosen = logits.gather(1, places).float().flatten(0, 1)
            losses.append(float(F.cross_entropy(chosen, batch["labels"].flatten())))
            counts.append(rows)
    model.train(was_training)
    return float(np.average(losses, weights=counts))


# The race


Running = Callable[[Contender, float], Curve]


def in_own_process(work: Path, threads: int, contender: Contender, flops: float) -> Curve:
    """Run one contender where nothing of another is left in memory; one that has run is not run again."""
    words = [str(contender), f"{flops:g}"]
    print(f"{time.strftime('%H:%M:%S')}  {' '.join(words)}", file=sys.stderr, flush=True)
    kept = work / "curves" / f"{'-'.join(words)}.json"
    if not kept.is_file():
        command = [sys.executable, __file__, "--work", str(work), "--one", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
        kept.parent.mkdir(exist_ok=True)
        write_json_atomically(kept, json.loads(done.stdout.strip().splitlines()[-1]))
    found = curve_of(json.loads(kept.read_text("utf-8")))
    print(f"          loss {found.loss:.3f} after {found.seconds:.0f} s", file=sys.stderr, flush=True)
    return found


def curve_of(record: dict[str, Any]) -> Curve:
    """Return what a file says of a run."""
    return Curve(**{**record, "points": [tuple(point) for point in record["points"]]})


def paced(run: Running, file: Path) -> Running:
    """Take the seconds from a race that had the machine for itself."""
    curves = [curve_of(record) for record in json.loads(file.read_text("utf-8"))["contenders"]]
    longest = {curve.contender: curve for curve in sorted(curves, key=lambda curve: curve.flops)}
    return lambda contender, flops: run(contender, flops).at_the_pace_of(longest[str(contender)])


def tuned(run: Running, budget: float) -> list[Curve]:
    """Let transformers' models spend the budget with several settings."""
    first = [Contender.of(f"{name}:{rate}") for name, rates in RATES.items() for rate in rates]
    curves = {contender: run(contender, budget) for contender in first}
    best = min(curves, key=lambda contender: curves[contender].loss)
    rates = RATES[best.name]
    more = [replace(best, batch=best.batch // 2)]
    if best.rate in (rates[0], rates[-1]):
        more.append(replace(best, rate=best.rate * (2 if best.rate == rates[-1] else 0.5)))
    return [*curves.values(), *(run(contender, budget) for contender in more)]


def race(run: Running, budget: float, theirs: list[Curve]) -> dict[str, Any]:
    """Give ours as much of the budget as it takes to be as good as the best of theirs, and then all of it."""
    curves, best = list(theirs), min(theirs, key=lambda curve: curve.loss)
    reached: dict[str, tuple[float, float] | None] = {}
    for name in RECIPES:
        least = fewest_flops(name)
        for part in (*(part for part in PARTS if part * budget > least), 1.0):
            curves.append(run(Contender.of(name), part * budget))
            reached[name] = curves[-1].first_below(best.loss)
            if reached[name]:
                break
        if curves[-1].flops < budget:
            curves.append(run(Contender.of(name), budget))
    ends = {}
    for curve in curves:
        if curve.flops == budget and (curve.name not in ends or curve.loss < ends[curve.name].loss):
            ends[curve.name] = curve
    ours = reached["late"]
    return {
        "budget": budget,
        "loss": round(best.loss, 4),
        "run_mlm": best.contender,
        "seconds_over_run_mlm": round(ours[1] / best.seconds, 4) if ours else None,
        "flops_over_run_mlm": round(ours[0] / best.flops, 4) if ours else None,
        "early_seconds_over_run_mlm": round(reached["early"][1] / best.seconds, 4) if reached["early"] else None,
        "start_seconds": round(next(c.start_seconds for c in reversed(curves) if c.name == "late"), 1),
        "at_the_budget": {
            curve.contender: {"loss": round(curve.loss, 4), "seconds": round(curve.seconds, 1)}
            for curve in ends.values()
        },
        "contenders": [asdict(curve) for curve in curves],
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw loss against seconds: of every contender the run that ended best."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = {
        "hf-modernbert": "transformers, ModernBERT",
        "hf-roberta": "transformers, RoBERTa",
        "early": "latemask, early",
        "late": "latemask, late",
    }
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    whole = [curve_of(record) for record in found["contenders"] if record["flops"] == found["budget"]]
    for name, label in names.items():
        if not any(curve.name == name for curve in whole):
            continue
        best = min((curve for curve in whole if curve.name == name), key=lambda curve: curve.loss)
        axes.plot([p[1] for p in best.points], [p[2] for p in best.points], marker="o", markersize=3, label=label)
    axes.axhline(found["loss"], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="seconds on two cores", ylabel="validation loss, 15 % masked", xlim=(0, None))
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"), help="folder with corpus/")
    parser.add_argument("--work", type=Path, default=Path("race"), help="where the prepared text is kept")
    parser.add_argument("--budget", type=float, default=UNIT, help="FLOPs that transformers may spend")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every contender")
    parser.add_argument("--theirs", nargs="+", metavar="NAME:RATE:BATCH", help="run these instead of tuning")
    parser.add_argument("--pace", type=Path, help="JSON of a race: take the seconds of FLOPs from it")
    parser.add_argument("--resume", action="store_true", help="keep what --work has of an interrupted race")
    parser.add_argument("--figure", type=Path, help="draw the curves into this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    data = arguments.work / "data"
    if arguments.one:
        contender, flops = Contender.of(arguments.one[0]), float(arguments.one[1])
        print(json.dumps(asdict((our_run if contender.name in RECIPES else their_run)(contender, flops, data))))
        return
    if not (data / "manifest.json").is_file():
        words = ["prepare", str(arguments.shared / "corpus"), "--out", str(data), "--vocab-size", "12544"]
        subprocess.run([sys.executable, "-m", "latemask", *words], check=True)
    if not arguments.resume:
        shutil.rmtree(arguments.work / "curves", ignore_errors=True)

    run: Running = partial(in_own_process, arguments.work, arguments.threads)
    if arguments.pace:
        run = paced(run, arguments.pace)
    given = [Contender.of(word) for word in arguments.theirs or []]
    theirs = [run(contender, arguments.budget) for contender in given] or tuned(run, arguments.budget)
    found = race(run, arguments.budget, theirs)
    if arguments.figure:
        draw(found, arguments.figure)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
