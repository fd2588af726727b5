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
    found = sorted((re.escape(entry) for entry in entries), key=len, reverse=True)
    return f"(?:{'|'.join(found)})" if found else "(?!)"


def abbreviation(written: str, *, last_dot: bool = False) -> str:
    """A pattern for an abbreviation.

    A dot and a slash between its parts are one, and a space after them may be. Where dots stand inside, the last one
    may lack; with `last_dot` also where the rules have slashes and the text has dots. `ገ/` stands before a name, which
    has more than one letter; what stands before a `*` goes on.
    """
    whole = written.removesuffix("*")
    if whole.endswith("/"):
        return re.escape(whole) + r"(?=\w\w)"
    parts = [re.escape(part) for part in re.split(r"[./]\s*", whole.removesuffix("."))]
    pattern = r"(?:[./][ \u00a0]?)".join(parts)
    if whole != written:
        return pattern
    if "." in whole:
        pattern += r"\.?" if len(parts) > 1 else r"\."
    elif last_dot and len(parts) > 1:
        dotted = r"(?:\.[ \u00a0]?)".join(parts)
        pattern = rf"(?:{dotted}\.|{pattern})"
    return pattern + rf"(?![\w{MARKS}])"


def letters_before(text: str, start: int) -> str:
    """The letters attached before `start`."""
    found = _LETTERS_BEFORE.search(text, max(0, start - 24), start)
    return found.group() if found else ""


def letters_after(text: str, end: int) -> str:
    """The letters attached after `end`."""
    found = _LETTERS_AFTER.match(text, end, end + 24)
    return found.group() if found else ""
