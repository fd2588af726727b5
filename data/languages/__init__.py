"""How the text of each language becomes what a tokenizer reads; `data.normalise` puts these together by name."""
