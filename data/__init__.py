"""From files to tensors: manifests, audio, text, validation, splits, cached features, batches."""
