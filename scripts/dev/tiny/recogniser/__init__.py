"""The recipe of the built-in recogniser: speech and texts, phonetic features, training, test."""
