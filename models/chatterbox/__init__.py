"""Chatterbox Multilingual (resemble-ai/chatterbox, MIT) in plain torch, key for key with the published files."""
