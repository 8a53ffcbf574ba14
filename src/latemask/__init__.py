"""Pre-train text encoders for a fraction of the compute: the encoder never sees a [MASK].

The verbs of the command line are functions here. They are imported on first use, so that `import latemask` costs
nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Every verb once: where its function lives, and what it does. The command line is made from this.
VERBS = {
    "demo": ("demonstrating", "the whole job on text already on this machine, in minutes"),
    "prepare": ("text", "text -> tokenizer + token shards"),
    "inspect": ("inspecting", "what is in a data folder, in numbers and as a model sees it"),
    "plan": ("planning", "what a run will cost, and what a budget buys"),
    "pretrain": ("training.pretraining", "recipe + data -> a pre-trained encoder"),
    "resume": ("training.resuming", "go on with a run that was stopped, with all that it knows"),
    "status": ("reporting.status", "which runs are running, how far, how fast, until when"),
    "fill": ("filling", "what a pre-trained model puts in the place of <mask>"),
    "export": ("exporting", "run -> a stock Hugging Face folder"),
    "grammar": ("evaluation.grammar", "which of two sentences is right, zero-shot: BLiMP and its like"),
    "probe": ("evaluation.probing", "what a frozen encoder knows, in minutes and with no file"),
    "finetune": ("evaluation.finetuning", "encoder + labelled task -> scores and a model"),
    "glue": ("evaluation.tabulating", "encoders -> the GLUE table"),
    "report": ("reporting", "run -> a page: how far, losses, compute; also while it runs"),
    "compare": ("reporting", "runs -> a page: curves, scores, what differs, a verdict"),
    "sweep": ("sweeping", "a grid of recipes x seeds at the same FLOPs -> runs and a page"),
    "predict": ("evaluation.predicting", "label a file with a fine-tuned model"),
}
_PARTS = {
    "EarlyMaskCollator": "masking.batches",
    "EarlyMaskForPreTraining": "model",
    "LateMaskCollator": "masking.batches",
    "LateMaskForPreTraining": "model",
    "PreparedData": "text",
    "Protocol": "evaluation.protocol",
    "Recipe": "recipe",
    "Results": "evaluation.results",
    "SampleDataset": "masking.samples",
    "UserError": "ground.errors",
    "load_recipe": "recipe",
}
_HOME = {**{name: module for name, (module, _) in VERBS.items()}, **_PARTS}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'latemask' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"latemask.{_HOME[name]}"), name)
    globals()[name] = value
    return value
