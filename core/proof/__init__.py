"""Certificates of our own runs, and diagnoses of models from elsewhere."""
