"""Text to sound with any voice model, kept loaded, judged, and shown."""
