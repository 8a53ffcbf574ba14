"""A folder → the pre-training model in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latemask.ground.errors import UserError

_OURS = ("latemask", "earlymask")  # the second is what early models were called before objectives had a table


def load_model(folder: Path, change: Callable[[Any], None] | None = None) -> Any:
    """Load a model of ours that `save_pretrained` or a run wrote; `change` may change its encoder's config before."""
    from latemask.model.pretraining import EncoderForPreTraining

    kind = model_type(folder)
    if kind not in _OURS:
        raise UserError(f"{folder} holds a '{kind}' model; a latemask run or pre-training model is needed here")
    try:
        config = load_config(folder)
        if change:
            change(config.encoder)
        return EncoderForPreTraining.from_pretrained(folder, config=config, use_safetensors=True).eval()
    except UserError:
        raise
    except Exception as error:  # safetensors and transformers raise many kinds for a damaged file
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the model in {folder} cannot be loaded, a file is damaged or missing: {reason}") from None


def load_config(folder: Path) -> Any:
    """Read the config of a model of ours."""
    from latemask.model.pretraining import PreTrainingConfig

    settings = json.loads((folder / "config.json").read_text("utf-8"))
    objective = {"objective": "early"} if model_type(folder) == "earlymask" else {}
    return PreTrainingConfig.from_dict({**settings, **objective, "model_type": PreTrainingConfig.model_type})


def model_type(folder: Path) -> str:
    """Return what kind of model a folder says it holds."""
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: no model there") from None
    except (OSError, ValueError):
        raise UserError(f"{path} is damaged") from None
    if not isinstance(settings, dict) or "model_type" not in settings:
        raise UserError(f"{path} has no model_type: not a model's config, or damaged")
    return str(settings["model_type"])


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a pre-training model, not an encoder."""
    return model_type(folder) in _OURS
