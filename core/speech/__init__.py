"""Synthesis with any model, its cache and its server; recognisers and evaluation."""
