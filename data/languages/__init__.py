"""Normalisation and verbalization of text by language; `data.normalisers` selects a normaliser by name."""
