"""A reference: the model against which a run selects its rows. Where it is, whether it fits, what it costs.

What a run is, is read from its recipe, without torch; only a folder that has none is asked by its config.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latemask.budget.flops import count_weights, sequence_flops
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest, sha256_of
from latemask.ground.sealed import MANIFEST, damage
from latemask.recipe import OBJECTIVES, EncoderRecipe, Recipe, SelectRecipe, load_recipe, spelled_out
from latemask.run_folder import RunFolder

_KINDS = {"latemask": None, "earlymask": "early"}
"""What pre-training models call themselves, and the objective of those that do not say it."""


@dataclass(frozen=True)
class Reference:
    """A pre-training model that somebody else has trained."""

    path: Path
    """What was given: a run, or a model's folder."""
    model: Path
    run: RunFolder
    """The run that it is from; without a recipe, where it is from none."""
    recipe: Recipe
    """Its encoder and objective, on the rows and masks of the run that selects."""

    @classmethod
    def of(cls, recipe: Recipe) -> Reference | None:
        """Find the reference of a recipe, or say why it cannot be one; None where nothing is selected."""
        given = recipe.select.reference
        if given is None:
            return None
        try:
            found = cls._found(Path(given).resolve(), recipe)
            if found.recipe.max_length < recipe.length:
                raise UserError(f"it takes rows of {found.recipe.max_length} tokens, and length is {recipe.length}")
            if problem := OBJECTIVES[found.recipe.objective].problem(found.recipe):
                raise UserError(f"it cannot score the rows as they are masked: {problem}")
        except UserError as error:
            raise UserError(f"select.reference {given}: {error}") from None
        return found

    @classmethod
    def _found(cls, path: Path, recipe: Recipe) -> Reference:
        if not path.is_dir():
            raise UserError("a file, not a folder" if path.exists() else "no such folder")
        run = _run_of(path)
        if run.path == path and run.recipe_file.is_file() and not run.is_finished():
            raise UserError("that run is not finished, so its weights would change; finish it, or give a checkpoint")
        model = run.newest_model() if run.path == path else path
        if run.path != path and (model / MANIFEST).is_file() and (problem := damage(model)):
            raise UserError(problem)
        settings = _settings(model)
        theirs = load_recipe(run.recipe_file) if run.recipe_file.is_file() else _without_recipe(model, settings, recipe)
        theirs = replace(
            theirs,
            objective=settings["objective"],
            encoder=replace(theirs.encoder, max_length=theirs.max_length),  # whatever the length is here
            **{key: getattr(recipe, key) for key in ("length", "seed", "mask", "budget")},
            train=replace(recipe.train, finish_early=0.0),
            select=SelectRecipe(),
        )
        return cls(path, model, run, spelled_out(theirs, run.record.get("data", {}).get("vocabulary", 0)))

    def refuse_itself(self, out: Path) -> None:
        """Refuse a run as its own reference."""
        if self.path.is_relative_to(out.resolve()):
            raise UserError(f"select.reference {self.path} is the run itself, whose weights change; give another run")

    def refuse_another_tokenizer(self, vocabulary: dict[str, int], label: str) -> None:
        """Refuse a reference to which the numbers of the data mean other tokens."""
        from latemask.text.tokenizer import load_tokenizer

        tokenizer: Any = load_tokenizer(self.run.tokenizer_folder(self.model))
        if tokenizer.get_vocab() != vocabulary:
            raise UserError(f"select.reference {self.path} has another tokenizer than {label}; train one on these data")

    @property
    def record(self) -> dict[str, str]:
        """What a run notes of it: another model in its place is noticed."""
        files = [self.model / "config.json", *sorted(self.model.glob("*.safetensors"))]
        return {"folder": str(self.path), "checksum": json_digest({file.name: sha256_of(file) for file in files})}


def with_reference(recipe: Recipe, found: Reference | None = None) -> Recipe:
    """Write down where the reference is and what it costs, so that nobody needs it to know what a run has spent."""
    found = found or Reference.of(recipe)
    if found is None:
        return recipe
    flops, weights = sequence_flops(found.recipe).forward, count_weights(found.recipe).total
    known = SelectRecipe(str(found.path), recipe.select.keep, reference_flops=flops, reference_weights=weights)
    return replace(recipe, select=known)


def _run_of(path: Path) -> RunFolder:
    """Return the run that a folder is, or is from."""
    above = {"model": path.parent}.get(path.name, path.parent.parent if path.parent.name == "checkpoints" else path)
    return RunFolder(above if (above / "recipe.yaml").is_file() else path)


def _settings(model: Path) -> dict[str, Any]:
    """Return what the config of a pre-training model says."""
    path = model / "config.json"
    if not path.is_file():
        raise UserError("neither a run nor a pre-training model (no config.json)")
    try:
        settings = dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged") from None
    if settings.get("model_type") not in _KINDS:
        kind = settings.get("model_type")
        raise UserError(f"a '{kind}' model has no objective to score rows by; give a run or its pre-training model")
    return {"objective": _KINDS[settings["model_type"]] or "late", **settings}


def _without_recipe(model: Path, settings: dict[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe of a model that is from no run, as far as its config tells."""
    from latemask.model import checkpoint_shape  # transformers reads its config

    encoder = checkpoint_shape(EncoderRecipe(init=str(model)), 1)
    objective = OBJECTIVES[settings["objective"]]
    found = Recipe(settings["objective"], encoder=encoder, mask=recipe.mask, options=objective.options_in(settings))
    said = objective.settings(found)
    if unknown := [key for key, value in said.items() if key != "length" and settings.get(key, value) != value]:
        raise UserError(f"it has no recipe.yaml, and config.json does not tell how '{unknown[0]}' came; give its run")
    return found
