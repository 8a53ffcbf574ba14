"""Plans for people: pages on stdout. Computes nothing new."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from latemask.budget.choice import RULE, Candidate
from latemask.budget.machines import Machine
from latemask.budget.plan import Plan
from latemask.budget.table import LAYERS, LENGTH, MASKS, PAPER, SIZES, VOCABULARY, Cell
from latemask.recipe import OBJECTIVES, Recipe

_UNKNOWN = "-"
_NARROWEST = 79  # columns; a narrower terminal wraps the lines, instead of losing numbers


def show_plan(plan: Plan, command: str | None) -> None:
    """Print a plan; `command` runs it."""
    console = _console()
    recipe, train = plan.recipe, plan.recipe.train
    passes = "" if plan.passes is None else f", {_digits(plan.passes)} passes over the data"
    console.print(
        f"{_masking(recipe)}, {recipe.encoder.family} {recipe.encoder.layers} x {recipe.encoder.width}, vocabulary "
        f"{recipe.encoder.vocab_size:,}\n{plan.steps:,} {_plural('step', plan.steps)} of {train.batch_size:,} x "
        f"{recipe.length} tokens, {_amount(plan.tokens)} tokens in all{passes}"
    )
    console.print(_plan_table(plan))
    console.print(f"FLOPs: matrix products, forward and backward. Memory: one device, {plan.run.rows} rows at once.")
    console.print(_where(plan))
    if (too_much := plan.memory_missing) is not None:
        console.print(
            f"does not fit: {_amount(too_much, 'B')} more than {plan.machine.name if plan.machine else ''} has; "
            + (
                "lower train.micro_batch_size (the rest of a batch is accumulated)"
                if plan.run.rows > 1
                else "not even one row"
            )
        )
    if command:
        console.print(f"run it:  {command}")


def _plan_table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for title in ("this run", "MLM at 15 %", "ratio"):
        table.add_column(title, justify="right")
    run, mlm = plan.run, plan.mlm
    parts = [
        ("weights trained", run.weights.total, mlm.weights.total, ""),
        ("  kept in the encoder", run.weights.encoder, mlm.weights.encoder, ""),
        ("FLOPs a sequence", run.sequence.training, mlm.sequence.training, ""),
        *((f"  {part}", flops, mlm.sequence.parts[part], "") for part, flops in run.sequence.parts.items()),
        ("FLOPs of the whole run", run.flops, mlm.flops, ""),
        ("  of which validation", run.validation, mlm.validation, ""),
        ("memory at its peak", run.memory.peak, mlm.memory.peak, "B"),
        *(
            (f"  {name}", getattr(run.memory, name), getattr(mlm.memory, name), "B")
            for name in ("weights", "gradients", "optimizer", "activations", "logits", "program")
        ),
    ]
    for name, ours, theirs, unit in parts:
        table.add_row(name, _amount(ours, unit), _amount(theirs, unit), f"{ours / theirs:.2f}" if theirs else "")
    if plan.machine is not None:
        table.add_row("time", _duration(plan.hours(run)), _duration(plan.hours(mlm)), "")
        table.add_row("energy", _energy(plan.kwh(run)), _energy(plan.kwh(mlm)), "")
        table.add_row("CO2", _weight(plan.kg_co2(run)), _weight(plan.kg_co2(mlm)), "")
    return table


def _masking(recipe: Recipe) -> str:
    mask = recipe.mask
    changed = f", {1 - mask.random - mask.keep:.0%} of them [MASK]" if mask.random or mask.keep else ""
    dropped = f", {mask.drop:.0%} dropped" if mask.drop else ""
    where = OBJECTIVES[recipe.objective].where(recipe)
    rates = [rate for rate in (mask.rate, mask.rate_end) if rate is not None]
    masked = " to ".join(f"{rate * 100:.3g}%" for rate in rates)
    return f"{masked} masked{changed}{dropped}, {where}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _where(plan: Plan) -> str:
    machine = plan.machine
    if machine is None:
        return "time and energy: add --calibrate (this machine), --device h100 or --peak-tflops 100"
    step = plan.seconds_a_step or 0.0
    speed = f"{plan.tokens / plan.steps / step:,.0f} tokens/s, {_duration(step / 3600)} a step"
    start = f", {plan.start_seconds:.0f} s until the first step" if plan.start_seconds else ""
    return f"time: {speed}{start}, on {_machine(machine)}\n{_energy_assumed(machine)}"


def _machine(machine: Machine) -> str:
    share = f"{machine.share:.0%} of a peak of {_amount(machine.peak, 'FLOP/s')}"
    how = "measured" if machine.measured else f"assumed, {machine.number}"
    several = f"{machine.devices} x " if machine.devices > 1 else ""
    return f"{several}{machine.name} at {share} ({how})"


def _energy_assumed(machine: Machine) -> str:
    if machine.watts is None:
        return "energy: add --watts to know it"
    return (
        f"energy: {machine.watts:g} W a device, x {machine.pue:g} for the building, {machine.grams_a_kwh:g} g CO2 "
        "a kWh (assumed; --watts, --pue, --co2)"
    )


def show_choice(found: Sequence[Candidate], best: Candidate) -> None:
    """Print what a budget would give each recipe, and which it is."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("recipe")
    for title in ("steps", "tokens", "tokens a weight"):
        table.add_column(title, justify="right")
    for candidate in found:
        mark = " *" if candidate is best else ""
        table.add_row(
            candidate.name + mark,
            f"{candidate.steps:,}",
            _amount(candidate.tokens),
            _digits(candidate.tokens_a_weight),
        )
    console = _console()
    console.print(table)
    console.print(f"* {RULE}")
    if not best.is_sensible:
        console.print(f"  No recipe gets that many: '{best.name}' is the smallest, and will be trained short.")
    console.print()


def show_table(cells: Sequence[Cell]) -> None:
    """Print the ratios, one table a size."""
    console = _console()
    found = {(cell.size, cell.kind, cell.layers, cell.masking): cell for cell in cells}
    for size, encoder in SIZES.items():
        table = Table(
            box=box.SIMPLE_HEAD,
            title=f"{size}: {encoder.layers} x {encoder.width}; the paper's 3ML: {PAPER[size]:.2f}",
            title_justify="left",
        )
        table.add_column("where the [MASK]s join", no_wrap=True)
        for masking in MASKS:
            table.add_column(masking, justify="right")
        for kind in dict.fromkeys(cell.kind for cell in cells):
            for layers in LAYERS:
                ratios = [_against_paper(found[size, kind, layers, masking]) for masking in MASKS]
                table.add_row(f"{kind}, {layers} {_plural('layer', layers)}", *ratios)
        console.print(table)
    console.print(
        f"FLOPs of a sequence over those of MLM at 15 %, same encoder; RoBERTa, length {LENGTH}, vocabulary "
        f"{VOCABULARY:,}, logits only where predicted, last layer pruned.\n+ costs more than the paper says of its own."
    )


def _against_paper(cell: Cell) -> str:
    return f"{cell.ratio:.2f}{'+' if cell.ratio > PAPER[cell.size] else ' '}"


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


def _energy(kwh: float | None) -> str:
    if kwh is None:
        return _UNKNOWN
    return f"{_digits(kwh)} kWh" if kwh >= 0.1 else f"{_digits(kwh * 1000)} Wh"


def _weight(kg: float | None) -> str:
    if kg is None:
        return _UNKNOWN
    return f"{_digits(kg)} kg" if kg >= 0.1 else f"{_digits(kg * 1000)} g"
