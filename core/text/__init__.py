"""A language's text: its rules, its pieces, and how its tokenizers compare."""
