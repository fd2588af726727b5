"""The first layers of Whisper base's encoder, which turn speech of any language into phonetic features."""
