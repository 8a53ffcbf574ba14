"""A folder → the pre-training model in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from latemask.errors import UserError
from latemask.model.base import EncoderForPreTraining
from latemask.model.build import MODELS

_BY_TYPE: dict[str, type[EncoderForPreTraining]] = {cls.config_class.model_type: cls for cls in MODELS.values()}


def load_model(folder: Path) -> Any:
    """Load a model of ours that `save_pretrained` or a run wrote."""
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind not in _BY_TYPE:
        found = f"a '{kind}' model" if kind else "no model"
        raise UserError(f"{folder} holds {found}; a latemask run or pre-training model is needed here")
    try:
        return _BY_TYPE[kind].from_pretrained(folder, use_safetensors=True).eval()
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the model in {folder} cannot be loaded: {reason}") from None
