"""`latemask plan`: what a run will cost, before it runs; and backwards, what a budget buys."""

from __future__ import annotations

import json as json_format
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latemask.budget.choice import candidates, chosen
from latemask.budget.display import show_choice, show_plan, show_table
from latemask.budget.flops import planned_steps, with_budget
from latemask.budget.machines import Assumptions, Machine
from latemask.budget.plan import Plan, steps_for_flops
from latemask.budget.table import cost_table
from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.masking.patterns import vocabulary_for
from latemask.recipe import BudgetRecipe, Recipe, batch_split, bundled_recipes, check_recipe, load_recipe, spelled_out
from latemask.references import with_reference
from latemask.starts import counting_seconds
from latemask.text import Mixture, PreparedData
from latemask.text.tokenizer import DEFAULT_VOCABULARY

_LARGEST_BUDGET = 1e40
_CALIBRATED_WITHOUT_RECIPE = "mini-base"


def plan(
    recipe: Recipe | str | Path | None = None,
    *,
    data: Path | None = None,
    hours: float | None = None,
    kwh: float | None = None,
    max_steps: int | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    calibrate: bool = False,
    device: str | None = None,
    devices: int = 1,
    peak_tflops: float | None = None,
    mfu: float | None = None,
    watts: float | None = None,
    pue: float | None = None,
    co2: float | None = None,
    table: bool = False,
    plot: Path | None = None,
    overwrite: bool = False,
    json: bool = False,
) -> Plan | None:
    """Say what a run will cost, beside masked language modelling with the same encoder; or what a budget buys.

    Args:
        recipe: A recipe file, or the name of one that comes with latemask; without one, say which the budget trains.
        data: Folder that `latemask prepare` made: its vocabulary counts, and how often the run sees it is said.
        hours: Budget in hours of the machine, instead of the recipe's.
        kwh: Budget in energy, instead of the recipe's.
        max_steps: Budget in optimizer steps, instead of the recipe's.
        tokens: Budget in tokens of text, instead of the recipe's.
        flops: Budget in floating-point operations of the steps, instead of the recipe's.
        calibrate: Run a few steps on this machine to know its speed (up to a minute).
        device: Plan for this device instead: a10, a100, b200, h100, h200, l4, l40s, mi300x, rtx3090, rtx4090, t4, v100.
        devices: How many of them.
        peak_tflops: Plan for a device with this peak of matrix products, in 10^12 a second.
        mfu: Share of the peak that a run gets, 0.4 by default.
        watts: What a device draws; by default its data sheet's, and 15 W a core of this machine.
        pue: Energy of the building for each unit that the devices draw, 1.2 by default.
        co2: Grams of CO2 for a kWh, 445 by default (about the world's average).
        table: Show the cost of base and large for every way of joining and masking, instead of a plan.
        plot: Draw the table of --table into this file (.png, .svg, .pdf).
        overwrite: Let --plot replace a file that is there.
        json: Print one JSON object instead of a page.
    """
    assumed = Assumptions(device, devices, peak_tflops, mfu, watts, pue, co2)
    budget = {"hours": hours, "kwh": kwh, "max_steps": max_steps, "tokens": tokens, "flops": flops}
    budget = {name: value for name, value in budget.items() if value is not None}
    _refuse(assumed, budget, calibrate)
    if table or plot:
        if recipe is not None or budget or data or calibrate or assumed != Assumptions():
            raise UserError("--table and --plot are about all shapes: leave out the recipe, the budget and the machine")
        _table(plot, json, overwrite)
        return None
    wish = _Wish(budget, assumed, calibrate, PreparedData.open(data, verify=False) if data else None)
    if recipe is None:
        return _without_recipe(wish, json)
    planned = _with_recipe(load_recipe(recipe) if isinstance(recipe, (str, Path)) else recipe, wish)
    if json:
        _print_json(planned.record())
    else:
        show_plan(planned, wish.command(_name(recipe), planned.steps) if budget else None)
    return planned


def _refuse(assumed: Assumptions, budget: dict[str, Any], calibrate: bool) -> None:
    """Refuse contradictions before anything is measured."""
    assumed.check()
    named = [f"--{name.replace('_', '-')}" for name in budget]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)} are {len(named)} budgets; give one of them")
    for option, value in zip(named, budget.values(), strict=True):
        if not 0 < value <= _LARGEST_BUDGET:
            raise UserError(f"{option} is {value:.4g}; a budget must be positive, {_LARGEST_BUDGET:g} at most")
    machine = assumed.machine()
    if calibrate and machine is not None:
        raise UserError("--calibrate measures this machine, --device and --peak-tflops are for another: give one")
    if calibrate and assumed.mfu is not None:
        raise UserError("--calibrate measures the share of the peak: leave out --mfu")
    if calibrate and assumed.devices != 1:
        raise UserError("--calibrate measures one device here: leave out --devices")
    if machine is not None and machine.kilowatts is None and "kwh" in budget:
        raise UserError("--kwh needs to know what the device draws: add --watts")
    if machine is None and not calibrate:
        _refuse_without_machine(assumed, budget)


def _refuse_without_machine(assumed: Assumptions, budget: dict[str, Any]) -> None:
    for option in ("hours", "kwh"):
        if option in budget:
            raise UserError(f"--{option} needs a speed: add --calibrate (this machine), --device or --peak-tflops")
    for option in ("mfu", "watts", "pue", "co2"):
        if getattr(assumed, option) is not None:
            raise UserError(f"--{option} says nothing without --calibrate, --device or --peak-tflops")
    if assumed.devices != 1:
        raise UserError("--devices says nothing without --device or --peak-tflops")


@dataclass(frozen=True)
class _Wish:
    """What was asked for, whatever the recipe."""

    budget: dict[str, Any]
    assumed: Assumptions
    calibrate: bool
    data: PreparedData | None

    @property
    def vocabulary(self) -> int:
        """Pieces of the data's tokenizer; what `prepare` makes where there is no data."""
        return self.data.vocabulary.size if self.data else DEFAULT_VOCABULARY

    def validation_rows(self, recipe: Recipe) -> int | None:
        """Return how many rows a validation has, where the data says it."""
        if self.data is None:
            return None
        return min(len(self.data.rows("validation", recipe.length)), recipe.train.eval_rows)

    def machine(self, recipe: Recipe) -> tuple[Machine | None, float]:
        """Return where the run will be, and the seconds until its first step."""
        if not self.calibrate:
            return self.assumed.machine(recipe.train.precision), 0.0
        since = time.monotonic()
        from latemask.training.calibration import calibrated  # torch: seconds, as at the start of a run

        found = calibrated(recipe, since)
        machine = self.assumed.measured_machine(
            found.cores,
            peak=found.peak,
            share=found.share,
            memory=found.memory,
            half=found.precision != "fp32",
            number=found.precision,
            on_cpu=found.on_cpu,
        )
        return machine, found.start_seconds

    def steps(self, recipe: Recipe, machine: Machine | None, start: float) -> int:
        """Return the steps that the budget, or else the recipe's, pays for."""
        budget, hours = self.budget, self.budget.get("hours")
        if "kwh" in budget:
            assert machine is not None
            assert machine.kilowatts is not None
            hours = budget["kwh"] / machine.kilowatts
        if hours is None:
            changed = with_budget(recipe, budget.get("max_steps"), budget.get("tokens"), budget.get("flops"))
            check_recipe(changed)
            return planned_steps(changed)
        assert machine is not None
        ((name, value),) = budget.items()
        flops = max(hours * 3600 - start, 0) * machine.speed
        return steps_for_flops(recipe, flops, f"--{name} {value:g} on {machine.name}", self.validation_rows(recipe))

    def plan(self, recipe: Recipe, steps: int, machine: Machine | None, start: float) -> Plan:
        """Cost a recipe."""
        if self.budget:
            recipe = replace(recipe, budget=BudgetRecipe(steps=steps))
        tokens = self.data.tokens("train") if self.data else None
        rows = self.validation_rows(recipe)
        counting = counting_seconds(recipe, tokens) if tokens else None
        known = {"start_seconds": start, "corpus_tokens": tokens, "counting_seconds": counting}
        return Plan.of(recipe, steps, machine, rows, **known)

    def refuse_too_few_words(self, recipe: Recipe) -> None:
        """Refuse a word table that the data's tokenizer does not fit into."""
        size = recipe.encoder.vocab_size or 0
        if self.data is not None and size < self.vocabulary:
            raise UserError(
                f"the data's tokenizer has {self.vocabulary} pieces and the recipe's encoder.vocab_size is {size}"
            )

    def command(self, recipe: str, steps: int) -> str:
        """Return what runs a plan."""
        data = str(self.data.folder) if self.data else "DATA"
        return shlex.join(["latemask", "pretrain", recipe, "--data", data, "--max-steps", str(steps)])


def _with_recipe(recipe: Recipe, wish: _Wish) -> Plan:
    check_recipe(recipe)
    if recipe.encoder.init is not None:
        recipe = _going_on(recipe, recipe.encoder.init, wish.data)
    if recipe.encoder.vocab_size is None and wish.data is None:
        say(f"vocabulary unknown: planned with {DEFAULT_VOCABULARY:,} pieces (--data FOLDER or --encoder.vocab-size)")
    recipe = with_reference(spelled_out(recipe, wish.vocabulary))
    check_recipe(recipe)
    wish.refuse_too_few_words(recipe)
    if wish.data is not None:
        vocabulary_for(recipe.mask.pattern, Mixture((wish.data,), (1.0,)))  # refused, where the data lack something
    machine, start = wish.machine(recipe)
    return wish.plan(recipe, wish.steps(recipe, machine, start), machine, start)


def _going_on(recipe: Recipe, init: str, data: PreparedData | None) -> Recipe:
    """Return the recipe with the shape of the encoder that it goes on with; grown, where the data have new pieces."""
    from latemask.model.stock import checkpoint_shape, complete_recipe  # transformers reads its config
    from latemask.model.vocabulary import pieces_new_to

    if data is None:
        return replace(recipe, encoder=checkpoint_shape(recipe.encoder, recipe.length))
    completed = complete_recipe(recipe, data.vocabulary)
    pieces_new_to(init, data.tokenizer, str(data.folder))
    return completed


def _without_recipe(wish: _Wish, json: bool) -> Plan:
    """Show what the budget gives each of our recipes, and the plan of the one to take."""
    if not wish.budget:
        raise UserError("say what to plan: a recipe, or a budget (--hours, --kwh, --tokens, --flops), or --table")
    if "max_steps" in wish.budget:
        raise UserError("--max-steps says nothing without a recipe; give --hours, --kwh, --tokens or --flops")
    machine, start = wish.machine(spelled_out(load_recipe(_CALIBRATED_WITHOUT_RECIPE), wish.vocabulary))
    if machine is not None and wish.calibrate:  # the speed of one recipe stands for all of them
        machine = replace(machine, name=f"this machine at the speed of {_CALIBRATED_WITHOUT_RECIPE},", measured=False)

    def steps(recipe: Recipe) -> int:
        wish.refuse_too_few_words(recipe)
        batch_split(recipe.train, wish.assumed.devices)
        return wish.steps(recipe, machine, start)

    found = candidates(steps, wish.vocabulary)
    best = chosen(found)
    planned = wish.plan(best.recipe, best.steps, machine, start)
    if json:
        choice = [
            {"recipe": one.name, "steps": one.steps, "tokens": one.tokens, "tokens_per_weight": one.tokens_a_weight}
            for one in found
        ]
        _print_json({"chosen": best.name, "candidates": choice, **planned.record()})
    else:
        show_choice(found, best)
        show_plan(planned, wish.command(best.name, best.steps))
    return planned


def _print_json(record: dict[str, Any]) -> None:
    print(json_format.dumps(record, allow_nan=False))


def _name(recipe: Recipe | str | Path) -> str:
    """Return what to call a recipe on a command line; one that was changed has no name."""
    if not isinstance(recipe, Recipe):
        return str(recipe)
    unchanged = (name for name in bundled_recipes() if load_recipe(name) == recipe)
    return next(unchanged, "RECIPE-AND-ITS-OPTIONS")


def _table(plot: Path | None, json: bool, overwrite: bool) -> None:
    cells = cost_table()
    if plot is not None:
        from latemask.budget.chart import check_picture, draw_table  # matplotlib

        check_picture(plot)
        if plot.exists() and not overwrite:
            raise UserError(f"{plot} is there already; choose another name, or pass --overwrite")
        draw_table(cells, plot)
        say(f"drawn: {plot}")
    if json:
        _print_json({"table": [cell.record() for cell in cells]})
    else:
        show_table(cells)
