"""Programs for developers: benchmark, experiments, conformance and the recipe of the built-in model."""
