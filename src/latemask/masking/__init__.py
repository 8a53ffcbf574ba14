"""Which positions, keyed by (seed, sample index); samples and batches. Knows no model, and loads no torch by itself."""
