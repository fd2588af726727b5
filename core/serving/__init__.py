"""The speech server: OpenAI's speech API over the models of a workspace."""
