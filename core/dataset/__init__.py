"""From recordings with texts to a dataset that can be prepared, measured and reviewed."""
