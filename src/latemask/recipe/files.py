"""Recipes in YAML, in and out: one file is one run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from latemask.ground.console import say
from latemask.ground.errors import UserError, nearest
from latemask.ground.files import read_yaml
from latemask.ground.typed import built
from latemask.recipe import OBJECTIVES, Recipe
from latemask.recipe.checks import check_recipe

RECIPE_FOLDER = Path(__file__).parent.parent / "recipes"
_FORMER_NAMES = {"3ml-base": "late-base", "3ml-large": "late-large"}
"""Of recipes that come with the package."""
_BEFORE_THERE_WAS = {("encoder", "start"): "random"}
"""What runs did before a key existed. Their recipes have every key of the section that there was."""
_ENCODER_KEYS_THEN = {"family", "init", "layers", "width", "heads", "ffn_width", "init_std", "rotary_base", "dropout"}


def bundled_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPE_FOLDER.glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe given by path or by the name of one that comes with the package."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    bundled = RECIPE_FOLDER / f"{name_or_path}.yaml"
    if bundled.is_file():
        return bundled
    if name := _FORMER_NAMES.get(str(name_or_path)):
        say(f"the recipe {name_or_path} is now called {name}")
        return RECIPE_FOLDER / f"{name}.yaml"
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a recipe file")
    raise UserError(f"no recipe at '{name_or_path}'{nearest(path.stem, bundled_recipes())}")


def load_recipe(name_or_path: str | Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe and lay nested `overrides` ({"mask": {"rate": 0.5}}) over it; refuse what it cannot be."""
    path, over = find_recipe(name_or_path), overrides or {}
    tree = _as_it_was_meant(read_yaml(path, "recipe") or {})
    _recipe_of(over, "overrides")
    _recipe_of(tree, str(path))
    if "budget" in over:
        tree["budget"] = {}  # one budget replaces another
    if over.get("encoder", {}).get("init") and not tree.get("encoder", {}).get("init"):
        tree.get("train", {}).pop("learning_rate", None)  # the file's is for fresh weights
    recipe = _recipe_of(_merged(tree, over), str(path))
    check_recipe(recipe)
    return recipe


def _as_it_was_meant(tree: Any) -> Any:
    """Complete a recipe that an older version spelled out: a new key's default says nothing about an old run."""
    for (section, key), value in _BEFORE_THERE_WAS.items():
        found = tree.get(section) if isinstance(tree, dict) else None
        if isinstance(found, dict) and key not in found and set(found) >= _ENCODER_KEYS_THEN:
            tree = {**tree, section: {**found, key: value}}
    return tree


def _recipe_of(tree: Any, where: str) -> Recipe:
    """Make a recipe of a tree of plain values. Sections of other objectives are checked, and mean nothing."""
    if not isinstance(tree, dict):
        return built(Recipe, tree, where)  # which says what it should be
    plain, own = dict(tree), {}
    for section, owner in sections_of_objectives().items():
        if section in plain:
            own[owner] = built(OBJECTIVES[owner].Options, plain.pop(section), where, f"{section}.")
    if "options" in plain:
        raise UserError(f"{where}: unknown key 'options'; an objective's own section has its own name")
    objective = str(plain.get("objective", Recipe.objective))
    try:
        return built(Recipe, {**plain, "options": own.get(objective)}, where)
    except UserError as error:  # a name that is in no table does not know its file
        raise error if str(error).startswith(where) else UserError(f"{where}: {error}") from None


def sections_of_objectives() -> dict[str, str]:
    """Return the sections that objectives bring with them, and whose each is."""
    return {OBJECTIVES[name].section: name for name in OBJECTIVES.names() if OBJECTIVES[name].section}


def dump_recipe(recipe: Recipe) -> str:
    """Write a recipe as YAML, every key spelled out."""
    return yaml.safe_dump(tree_of(recipe), sort_keys=False)


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, as its file has them: the objective's section by its own name."""
    section = OBJECTIVES[recipe.objective].section
    tree = asdict(recipe)
    return {section if key == "options" else key: value for key, value in tree.items() if section or key != "options"}


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return every key of a recipe with its value, as `mask.rate`: 0.4."""
    return _flat(tree_of(recipe))


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Say which keys of two recipes differ, as `mask.rate: 0.4 -> 0.5`."""
    before, after = flat(old), flat(new)
    keys = dict.fromkeys([*before, *after])
    return [f"{key}: {before.get(key)} -> {after.get(key)}" for key in keys if before.get(key) != after.get(key)]


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        out[key] = _merged(out.get(key) or {}, value) if isinstance(value, dict) else value
    return out


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return out
