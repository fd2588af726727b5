"""What became of the base: certificates of our own runs, diagnoses of models from elsewhere."""
