"""Everything that rebuilds the built-in model: texts, synthetic speech and training."""
