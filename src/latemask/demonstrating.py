"""`latemask demo`: builtin text → tokenizer → pre-training → fill → exported encoder → probes, in minutes."""

from __future__ import annotations

import time
from pathlib import Path

from latemask.evaluation.probing import probe
from latemask.filling import Filler
from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.recipe import load_recipe
from latemask.reporting import write_page
from latemask.run_folder import RunFolder
from latemask.text import prepare
from latemask.training.pretraining import pretrain

VOCABULARY = 4096
PROBE_EXAMPLES = 1600
EXAMPLES = (
    "It can <mask> used to read a file.",
    "The argument <mask> be a string.",
    "Return a list <mask> all the nodes in the graph.",
    "Return the number of <mask> in the graph.",
)


def demo(*, out: Path = Path("latemask-demo"), overwrite: bool = False) -> RunFolder:
    """Do the whole job on text that is already on this machine: prepare, pre-train, fill, export, probe.

    Args:
        out: Folder to write everything into.
        overwrite: Start again where a demo ran before.
    """
    out, started = Path(out), time.monotonic()
    say("1/4  preparing text")
    data = prepare(builtin=True, out=out / "data", vocab_size=VOCABULARY, validation=0.03, overwrite=overwrite)
    say("\n2/4  pre-training a small encoder that never sees a [MASK] (a few minutes)")
    run = RunFolder(out / "run")
    if run.recipe_file.is_file() and not overwrite:  # a demo that was interrupted, or is there already
        pretrain(run.recipe_file, data=data.folder, out=run.path, resume=True)
    else:
        pretrain(load_recipe("demo"), data=data.folder, out=run.path, overwrite=overwrite)
    say("\n3/4  what it learnt to put in the place of <mask>")
    filler = Filler(run.path)
    for text in EXAMPLES:
        (predictions,) = filler.predict(text, top=4)
        say(f"  {text}\n      " + ", ".join(f"{p.token or '(space)'} {p.probability:.0%}" for p in predictions))
    say("\n4/4  what the frozen encoder knows, by a linear classifier on top of it")
    probe(str(run.path), examples=PROBE_EXAMPLES)
    _show_result(run, time.monotonic() - started)
    return run


def _show_result(run: RunFolder, seconds: float) -> None:
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    if not losses:
        raise UserError(f"{run.metrics_file} holds no losses; pass --overwrite to start again")
    say(
        f"\nloss {losses[0]:.2f} -> {losses[-1]:.2f}, {seconds / 60:.1f} minutes\n"
        f"  run      {run.path}      (recipe.yaml, metrics.jsonl, tensorboard/, model/)\n"
        f"  encoder  {run.encoder}  (opens with AutoModel.from_pretrained)\n\n"
        "next:\n"
        f'  latemask fill {run.path} "The name of <mask> file to read."\n'
        f"  tensorboard --logdir {run.path}/tensorboard\n"
        f"  latemask finetune {run.path} --train YOUR.csv --dev YOUR-DEV.csv --text TEXT --label LABEL\n"
        "  latemask prepare YOUR-TEXT/ --out data && latemask pretrain small --data data\n\n"
        f"report: {write_page(run.path)}  (open it in a browser)"
    )
