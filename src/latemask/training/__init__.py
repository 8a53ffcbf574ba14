"""Pre-training, checkpoints, progress. The only room that knows the Trainer."""

from latemask.run_folder import RunFolder
from latemask.training.pretraining import pretrain

__all__ = ["RunFolder", "pretrain"]
