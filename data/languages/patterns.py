"""Regular expressions from the tables of rules: alternatives, abbreviations, attached letters."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LETTERS_BEFORE = re.compile(r"[^\W\d_]+$")
_LETTERS_AFTER = re.compile(r"[^\W\d_]+")
NEVER = re.compile(r"(?!)")
MARKS = "\u0300-\u036f"  # a letter may go on with these


def one_of(entries: Iterable[str]) -> str:
    """A group that matches any of `entries`, the longest first; it never matches without entries."""
    alternatives = sorted((re.escape(entry) for entry in entries), key=len, reverse=True)
    return f"(?:{'|'.join(alternatives)})" if alternatives else "(?!)"


def abbreviation(entry: str, *, last_dot: bool = False) -> str:
    """A pattern for an abbreviation.

    A dot and a slash between its parts are equal, and a space may follow them. If dots stand inside, the last dot may
    be missing; with `last_dot` also if the rules have slashes and the text has dots. `ገ/` stands before a name, which
    has more than one letter. A word that ends with `*` may continue.
    """
    stem = entry.removesuffix("*")
    if stem.endswith("/"):
        return re.escape(stem) + r"(?=\w\w)"
    parts = [re.escape(part) for part in re.split(r"[./]\s*", stem.removesuffix("."))]
    pattern = r"(?:[./][ \u00a0]?)".join(parts)
    if stem != entry:
        return pattern

    # A single dot belongs to the abbreviation; among several, the last may be missing.
    if "." in stem:
        pattern += r"\.?" if len(parts) > 1 else r"\."
    elif last_dot and len(parts) > 1:
        dotted = r"(?:\.[ \u00a0]?)".join(parts)
        pattern = rf"(?:{dotted}\.|{pattern})"
    return pattern + rf"(?![\w{MARKS}])"


def letters_before(text: str, start: int) -> str:
    """The letters attached before `start`."""
    match = _LETTERS_BEFORE.search(text, max(0, start - 24), start)
    return match.group() if match else ""


def letters_after(text: str, end: int) -> str:
    """The letters attached after `end`."""
    match = _LETTERS_AFTER.match(text, end, end + 24)
    return match.group() if match else ""
