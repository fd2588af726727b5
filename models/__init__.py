"""Model code: one causal transformer, one speech language model, and a folder per family."""
