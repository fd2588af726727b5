"""Long recordings as segments: clips that were cut from them, and the texts that were found for these."""
