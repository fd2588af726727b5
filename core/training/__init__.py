"""One run: what it trains, what it trains on, its step, its checkpoints, its numbers."""
