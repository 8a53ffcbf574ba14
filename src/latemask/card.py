"""The model card of an exported encoder: what, data, recipe, compute spent, how to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latemask import __version__
from latemask.ground.console import printable
from latemask.recipe import OBJECTIVES, load_recipe
from latemask.run_folder import PROGRESS, RunFolder

_TEMPLATE = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [latemask, {kind}, {family}]
---

# {title}

A {what} ({family}, {layers} layers x {width}, {parameters:.1f} M weights, up to {longest} tokens), pre-trained
with latemask {version}: {how}.{cut_note}

## Use

```python
{code}
```

{others} and `sentence_transformers` load it the same
way, with no code of latemask. {advice}
"""

_ENCODER_CODE = """from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
encoder = AutoModel.from_pretrained("path/to/this/folder")
states = encoder(**tokenizer("Some text.", return_tensors="pt")).last_hidden_state"""

_MLM_CODE = """from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
fill(f"Some {fill.tokenizer.mask_token} here.")"""

_TRAINING = """
## Data

{documents:,} documents, {tokens:,} tokens to train on{sources}; vocabulary {vocabulary:,} pieces.

## Training

| | |
|---|---|
| steps | {steps:,} |
| tokens of text seen | {seen:,} |{selected}
| compute, forward and backward | {flops:.3g} FLOPs |
| start | {start} |
| validation loss, 15 % masked | {validation} |{finish}
{history}
```yaml
{recipe}```
"""


def model_card(run: RunFolder, source: Path, model: Any, layers: int, mlm: bool = False) -> str:
    """Return the card as Markdown, of an encoder that was trained with so many layers; text from files is escaped.

    `mlm` where the folder holds the head as well.
    """
    config = model.encoder.config
    left_out = layers - config.num_hidden_layers
    card = _TEMPLATE.format(
        title=_safe(run.path.resolve().name),
        family=config.model_type,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        parameters=model.encoder.num_parameters() / 1e6,
        longest=model.family.longest(config),
        version=__version__,
        how=_how(run, model),
        **_uses(model, mlm),
        cut_note=f" It was trained with {layers} layers, of which the last {left_out} are left out."
        if left_out
        else "",
    )
    return card + _training(run, source) if run.recipe_file.is_file() else card


def _uses(model: Any, mlm: bool) -> dict[str, str]:
    """Say what a folder can do."""
    classes = "`AutoModelForSequenceClassification`, `AutoModelForTokenClassification`"
    if mlm:
        return {
            "pipeline": "fill-mask",
            "kind": "masked-lm",
            "what": "masked language model",
            "code": _MLM_CODE,
            "others": f"`AutoModelForMaskedLM` opens all of it; `AutoModel`, {classes}",
            "advice": "They take the encoder without the head: fine-tune it before you judge it.",
        }
    mask = model.objective.mask_note or " `latemask export --mlm` writes it with its head, for `fill-mask` pipelines."
    return {
        "pipeline": "feature-extraction",
        "kind": "encoder",
        "what": "text encoder",
        "code": _ENCODER_CODE,
        "others": classes,
        "advice": f"It is a pre-trained encoder: fine-tune it before you judge it.{mask}",
    }


def _how(run: RunFolder, model: Any) -> str:
    """Say how it was trained: the model itself knows only how it ended."""
    recipe = load_recipe(run.recipe_file) if run.recipe_file.is_file() else None
    if recipe is None or OBJECTIVES[recipe.objective] is model.objective:
        return str(model.objective.card)
    share = f"{100 * recipe.train.finish_early:.2g} %"
    return f"{OBJECTIVES[recipe.objective].card}; in the last {share} of the steps the [MASK]s stood in its input"


def _finish(run: RunFolder, steps: int, validated: list[dict[str, Any]]) -> str:
    """Say what the loss was before the [MASK]s moved to the input."""
    turn = load_recipe(run.recipe_file).last_part(run.record["steps"])
    before = [row for row in validated if row["step"] <= turn]
    if steps <= turn or not before:
        return ""
    return f"\n| the same after step {turn:,}, with late masks | {before[-1]['eval_loss']:.3f} |"


def _training(run: RunFolder, source: Path) -> str:
    data, progress = run.record["data"], source / PROGRESS
    steps = json.loads(progress.read_text("utf-8"))["step"] if progress.is_file() else run.record["steps"]
    rows = run.metrics()
    last = next((row for row in reversed(rows) if row["step"] <= steps), {"step": 1, "tokens": 0, "flops": 0})
    stem = run.stem
    since = (steps - stem.step) / max(1, last["step"] - stem.step)  # log lines may end before the steps do
    validated = [row for row in rows if "eval_masked" in row and row["step"] <= steps]
    return _TRAINING.format(
        documents=data["documents"],
        tokens=data["tokens"],
        sources=f" ({', '.join(map(_safe, data['sources']))})" if data["sources"] else "",
        vocabulary=data["vocabulary"],
        steps=steps,
        seen=stem.tokens + round((last["tokens"] - stem.tokens) * since),
        flops=stem.flops + (last["flops"] - stem.flops) * since,
        selected=_selected(run),
        start=_start(run),
        validation=f"{validated[-1]['eval_loss']:.3f}" if validated else "not measured",
        finish=_finish(run, steps, validated),
        history=_history(run),
        recipe=run.recipe_file.read_text("utf-8", errors="replace"),
    )


def _selected(run: RunFolder) -> str:
    """Say how the rows were chosen, if they were."""
    recipe = load_recipe(run.recipe_file)
    if recipe.select.reference is None:
        return ""
    rows = f"{recipe.train.batch_size:,} of {recipe.rows_read:,} rows a step"
    by = f"those with the most loss above that of {_safe(Path(recipe.select.reference).name)}"
    return f"\n| chosen to be trained on | {rows}: {by} |"


def _start(run: RunFolder) -> str:
    if init := load_recipe(run.recipe_file).encoder.init:
        return f"an encoder: {_safe(init)}" + (", with its head" if run.record.get("head") == "kept" else "")
    if name := run.record.get("start"):
        return f"{_safe(name)}, counted in {run.record['start_seconds']:.0f} s"
    return "random"


def _history(run: RunFolder) -> str:
    """Tell where a branch comes from, run by run."""
    lines = [
        f"- steps {one['from'] + 1:,} to {one['step']:,}: {_safe(Path(one['run']).name)} ({_safe(one['data'])}), "
        f"{one['own_flops']:.3g} FLOPs. Then: {_safe('; '.join(one['changed'])) or 'nothing changed'}"
        for one in run.record.get("branch", {}).get("history", [])
    ]
    return "\n".join(["", "A branch; all of it is in the numbers above:", "", *lines, ""]) if lines else ""


def _safe(text: str) -> str:
    """Keep Markdown and HTML in a file's name from becoming Markdown and HTML in the card."""
    return "".join(f"&#{ord(c)};" if c in "<>&`*_[]|#" else c for c in printable(text))
