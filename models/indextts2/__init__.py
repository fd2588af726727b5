"""IndexTTS2: a GPT-2 over text and semantic codes, with a speaker and an emotion (index-tts/index-tts)."""
