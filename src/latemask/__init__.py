"""Pre-train text encoders for a fraction of the compute: the encoder never sees a [MASK].

The verbs of the command line are functions here; they are imported on first use, so that
`import latemask` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from latemask.demonstrating import demo
    from latemask.evaluation.finetuning import finetune
    from latemask.evaluation.predicting import predict
    from latemask.evaluation.probing import probe
    from latemask.evaluation.results import Results
    from latemask.evaluation.tabulating import glue
    from latemask.exporting import export
    from latemask.filling import fill
    from latemask.ground.errors import UserError
    from latemask.inspecting import inspect
    from latemask.masking import EarlyMaskCollator, LateMaskCollator, SampleDataset
    from latemask.model import EarlyMaskForPreTraining, LateMaskForPreTraining
    from latemask.planning import plan
    from latemask.recipe import Recipe, load_recipe
    from latemask.reporting import compare, report
    from latemask.sweeping import sweep
    from latemask.text import PreparedData, prepare
    from latemask.training import pretrain

_HOME = {
    "EarlyMaskCollator": "latemask.masking",
    "EarlyMaskForPreTraining": "latemask.model",
    "LateMaskCollator": "latemask.masking",
    "LateMaskForPreTraining": "latemask.model",
    "PreparedData": "latemask.text",
    "Recipe": "latemask.recipe",
    "Results": "latemask.evaluation.results",
    "SampleDataset": "latemask.masking",
    "UserError": "latemask.ground.errors",
    "compare": "latemask.reporting",
    "demo": "latemask.demonstrating",
    "export": "latemask.exporting",
    "fill": "latemask.filling",
    "finetune": "latemask.evaluation.finetuning",
    "glue": "latemask.evaluation.tabulating",
    "inspect": "latemask.inspecting",
    "load_recipe": "latemask.recipe",
    "plan": "latemask.planning",
    "predict": "latemask.evaluation.predicting",
    "prepare": "latemask.text",
    "pretrain": "latemask.training",
    "probe": "latemask.evaluation.probing",
    "report": "latemask.reporting",
    "sweep": "latemask.sweeping",
}

__all__ = [
    "EarlyMaskCollator",
    "EarlyMaskForPreTraining",
    "LateMaskCollator",
    "LateMaskForPreTraining",
    "PreparedData",
    "Recipe",
    "Results",
    "SampleDataset",
    "UserError",
    "compare",
    "demo",
    "export",
    "fill",
    "finetune",
    "glue",
    "inspect",
    "load_recipe",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "probe",
    "report",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'latemask' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
