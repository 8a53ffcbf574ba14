"""Plans for people: pages on stdout. Computes nothing new."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from latemask.budget.choice import RULE, Candidate
from latemask.budget.plan import Plan
from latemask.budget.table import LAYERS, LENGTH, MASKS, PAPER, PUBLISHED, SIZES, VOCABULARY, Cell
from latemask.recipe import OBJECTIVES, MaskRecipe, Recipe, bundled_recipes

_UNKNOWN = "-"
_NARROWEST = 79  # columns; a narrower terminal wraps the lines, instead of losing numbers


def show_plan(plan: Plan, command: str | None) -> None:
    """Print a plan; `command` runs it."""
    console = _console()
    recipe, train = plan.recipe, plan.recipe.train
    selected = "" if recipe.select.reference is None else f", the best of {recipe.rows_read:,} rows each,"
    passes = "" if plan.passes is None else f", {_digits(plan.passes)} passes over the data"
    console.print(
        f"{_masking(recipe)}, {recipe.encoder.family} {recipe.encoder.layers} x {recipe.encoder.width}, vocabulary "
        f"{recipe.encoder.vocab_size:,}\n{plan.steps:,} {_plural('step', plan.steps)} of {train.batch_size:,} x "
        f"{recipe.length} tokens{selected or ','} {_amount(plan.tokens)} tokens in all{passes}"
    )
    console.print(_plan_table(plan))
    console.print(f"FLOPs: matrix products, forward and backward. Memory: one device, {plan.run.rows} rows at once.")
    if recipe.encoder.start != "random" and recipe.encoder.init is None:
        seconds = plan.counting_seconds
        about = "seconds to minutes" if seconds is None else f"about {math.ceil(seconds)} s of one core"
        console.print(f"Start: {recipe.encoder.start}, counted in the data before the first step, once: {about}.")
    console.print(_where(plan))
    if plan.machine is not None and plan.memory_missing is not None:
        several = "lower train.micro_batch_size (the rest of a batch is accumulated)"
        remedy = several if plan.run.rows > 1 else "not even one row"
        console.print(f"does not fit: {_amount(plan.memory_missing, 'B')} more than {plan.machine.name} has; {remedy}")
    if command:
        console.print(f"run it:  {command}")


def _plan_table(plan: Plan) -> Table:
    table = _table("", "this run", "MLM at 15 %", "ratio")
    run, mlm = plan.run, plan.mlm
    parts = [
        ("weights trained", run.weights.total, mlm.weights.total, ""),
        ("  kept in the encoder", run.weights.encoder, mlm.weights.encoder, ""),
        ("FLOPs a sequence", run.sequence.training, mlm.sequence.training, ""),
        *((f"  {part}", flops, mlm.sequence.parts[part], "") for part, flops in run.sequence.parts.items()),
        *([(f"FLOPs of an update ({plan.recipe.train.optimizer})", run.update, mlm.update, "")] if run.update else []),
        *([("FLOPs of choosing the rows of a step", run.scoring, mlm.scoring, "")] if run.scoring else []),
        ("FLOPs of the whole run", run.flops, mlm.flops, ""),
        ("  of which validation", run.validation, mlm.validation, ""),
        ("memory at its peak", run.memory.peak, mlm.memory.peak, "B"),
        *((f"  {part}", size, mlm.memory.parts[part], "B") for part, size in run.memory.parts.items()),
    ]
    for name, ours, theirs, unit in parts:
        table.add_row(name, _amount(ours, unit), _amount(theirs, unit), f"{ours / theirs:.2f}" if theirs else "")
    if plan.machine is not None:
        table.add_row("time", _duration(plan.hours(run)), _duration(plan.hours(mlm)), "")
        table.add_row("energy", *(_thousands(plan.kwh(cost), "kWh", "Wh") for cost in (run, mlm)), "")
        table.add_row("CO2", *(_thousands(plan.kg_co2(cost), "kg", "g") for cost in (run, mlm)), "")
    return table


def _masking(recipe: Recipe) -> str:
    mask = recipe.mask
    changed = f", {1 - mask.random - mask.keep:.0%} of them [MASK]" if mask.random or mask.keep else ""
    dropped = f", {mask.drop:.0%} dropped" if mask.drop else ""
    masked = " to ".join(f"{rate * 100:.3g}%" for rate in (mask.rate, mask.rate_end) if rate is not None)
    pattern = f" by {mask.pattern}" if mask.pattern != MaskRecipe.pattern else ""
    how = f" ({mask.rate_schedule})" if mask.rate_schedule != MaskRecipe.rate_schedule else ""
    return f"{masked}{how} masked{pattern}{changed}{dropped}, {OBJECTIVES[recipe.objective].where(recipe)}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _where(plan: Plan) -> str:
    machine = plan.machine
    if machine is None:
        return "time and energy: add --calibrate (this machine), --device h100 or --peak-tflops 100"
    step = plan.seconds_a_step or 0.0
    speed = f"{plan.tokens / plan.steps / step:,.0f} tokens/s, {_duration(step / 3600)} a step"
    start = f", {plan.start_seconds:.0f} s until the first step" if plan.start_seconds else ""
    several = f"{machine.devices} x " if machine.devices > 1 else ""
    share = f"{machine.share:.0%} of a peak of {_amount(machine.peak, 'FLOP/s')}"
    how = "measured" if machine.measured else f"assumed, {machine.number}"
    energy = "add --watts to know it"
    if machine.watts is not None:
        energy = (
            f"{machine.watts:g} W a device, x {machine.pue:g} for the building, {machine.grams_a_kwh:g} g CO2 a kWh "
            "(assumed; --watts, --pue, --co2)"
        )
    return f"time: {speed}{start}, on {several}{machine.name} at {share} ({how})\nenergy: {energy}"


def show_choice(found: Sequence[Candidate], best: Candidate) -> None:
    """Print what a budget would give each recipe, and which it is."""
    table = _table("recipe", "steps", "tokens", "tokens a weight")
    for one in found:
        name = f"{one.name} *" if one is best else one.name
        table.add_row(name, f"{one.steps:,}", _amount(one.tokens), _digits(one.tokens_a_weight))
    console = _console()
    console.print(table)
    console.print(f"* {RULE}")
    if not best.is_sensible:
        console.print(f"  No recipe gets that many: '{best.name}' is the smallest, and will be trained short.")
    console.print()


def show_table(cells: Sequence[Cell]) -> None:
    """Print the ratios, a table a size and accounting."""
    console = _console()
    for size, encoder in SIZES.items():
        here, shape = [cell for cell in cells if cell.size == size], f"{size}: {encoder.layers} x {encoder.width}"
        console.print(_ratios(f"{shape}, with the head", here, lambda cell: f"{cell.ratio:.2f} "))
        paper = PAPER[size]
        title = f"{shape}, layers only; the paper's 3ML: {paper:.2f}"
        console.print(_ratios(title, here, lambda cell, most=paper: _marked(cell.layers_only, most)))  # type: ignore[misc]
    console.print(
        f"FLOPs of a sequence over those of MLM at 15 %, same encoder; RoBERTa, length {LENGTH}, vocabulary "
        f"{VOCABULARY:,}, logits only where predicted, last layer pruned.\n"
        "+ costs more than the paper says of its own. Its numbers seem to leave out the head; counted so, and with "
        f"every layer whole, its shape (2 layers, 50 %, 80/10/10) costs here: {_published(cells)}."
    )


def _published(cells: Sequence[Cell]) -> str:
    """Say what the recipes cost that are called after the paper, as it may have counted."""
    shapes = ((cell, f"3ml-{cell.kind}-{cell.size}") for cell in cells if (cell.layers, cell.masking) == PUBLISHED)
    recipes = bundled_recipes()
    return ", ".join(f"{name} {cell.layers_only_without_pruning:.2f}" for cell, name in shapes if name in recipes)


def _ratios(title: str, cells: Sequence[Cell], shown: Callable[[Cell], str]) -> Table:
    table = _table("where the [MASK]s join", *MASKS, title=title, title_justify="left")
    table.columns[0].no_wrap = True
    found = {(cell.kind, cell.layers, cell.masking): cell for cell in cells}
    for kind, layers in product(dict.fromkeys(cell.kind for cell in cells), LAYERS):
        row = (shown(found[kind, layers, masking]) for masking in MASKS)
        table.add_row(f"{kind}, {layers} {_plural('layer', layers)}", *row)
    return table


def _marked(ratio: float, most: float) -> str:
    return f"{ratio:.2f}{'+' if ratio > most else ' '}"


def _table(name: str, *numbers: str, **layout: Any) -> Table:
    table = Table(name, box=box.SIMPLE_HEAD, **layout)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _console() -> Console:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _NARROWEST)
    return console


def _amount(value: float, unit: str = "") -> str:
    for size, prefix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{_digits(value / size)} {prefix}{unit}"
    return f"{value:,.0f} {unit}".rstrip() if value else _UNKNOWN


def _digits(value: float) -> str:
    """Return three digits that count, or all of a larger number; never an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"


def _duration(hours: float | None) -> str:
    if hours is None:
        return _UNKNOWN
    seconds = hours * 3600
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _thousands(value: float | None, unit: str, thousandth: str) -> str:
    if value is None:
        return _UNKNOWN
    return f"{_digits(value)} {unit}" if value >= 0.1 else f"{_digits(value * 1000)} {thousandth}"
