"""What forked processes have imported already: all that a run imports, also at its first step."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


import latemask.cli
import latemask.evaluation.grid
import latemask.text.preparing
import latemask.training.running  # noqa: F401
