"""Latin letters for any script, so that old rows can lend their sound to new ones.

The table is the `anyascii` package's. It folds Amharic's homophones (ሀ, ሐ and ኀ are all
"ha") and writes ejectives with an apostrophe (ቀ is "k'e").
"""

from __future__ import annotations

from anyascii import anyascii


def romanise(text: str) -> str:
    """`text` in lower-case ASCII; a character the table does not know gives nothing."""
    return anyascii(text).lower().replace("`", "'")
