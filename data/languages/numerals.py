"""Numerals of any script as the digits 0 to 9, so that one set of rules reads them."""

from __future__ import annotations

import re
import unicodedata

from data.languages.traced import Traced

_GEEZ = {chr(0x1369 + index): value for index, value in enumerate((*range(1, 10), *range(10, 100, 10), 100, 10000))}
_GEEZ_RUN = re.compile(f"[{min(_GEEZ)}-{max(_GEEZ)}]+")
_OTHER = re.compile(r"(?![0-9])\d")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")


def geez_value(numeral: str) -> int:
    """The value of a Ge'ez numeral: ፻ multiplies what stands before it in its group, ፼ all that stands before it.

    Unicode Standard 16.0, section 19.1.
    """
    total, group = 0, 0
    for character in numeral:
        value = _GEEZ[character]
        if value == 10000:
            total, group = (total + group or 1) * value, 0
        elif value == 100:
            group = (group or 1) * value
        else:
            group += value
    return total + group


def as_digits(text: Traced) -> Traced:
    """Ge'ez numerals, decimal digits of any script and fractions such as ½ in ASCII."""
    text = text.sub(_GEEZ_RUN, lambda match: str(geez_value(match.group())), "numeral")
    text = text.sub(_VULGAR, _fraction, "numeral")
    return text.sub(_OTHER, _digit, "numeral")


def _fraction(match: re.Match[str]) -> str:
    before = match.string[match.start() - 1:match.start()]
    return (" " if before.isdigit() else "") + unicodedata.normalize("NFKD", match.group()).replace("\u2044", "/")


def _digit(match: re.Match[str]) -> str:
    return str(unicodedata.decimal(match.group()))
