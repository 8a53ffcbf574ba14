"""Pre-training: the loop, what turns gradients into steps, checkpoints, runs."""
