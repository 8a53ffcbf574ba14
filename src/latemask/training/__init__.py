"""Pre-training, checkpoints, progress. The only room that knows the Trainer."""

from latemask.training.pretrain import pretrain
from latemask.run_folder import RunFolder

__all__ = ["RunFolder", "pretrain"]
