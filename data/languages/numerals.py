"""Numerals of any script as the digits 0 to 9, so that one set of rules reads them."""

from __future__ import annotations

import re
import unicodedata

from data.languages.traced import Traced

_GEEZ = {chr(0x1369 + index): value for index, value in enumerate((*range(1, 10), *range(10, 100, 10), 100, 10000))}
_GEEZ_RUN = re.compile(f"[{min(_GEEZ)}-{max(_GEEZ)}]+")
# Tens, then units; ፻ and ፼ after them. ፩፪፫ is three digits, not a numeral.
_NUMERAL = re.compile("(?:[፲-፺]?[፩-፱]?(?:፻[፲-፺]?[፩-፱]?)?፼)*[፲-፺]?[፩-፱]?(?:፻[፲-፺]?[፩-፱]?)?")
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


def well_formed(digits: str) -> bool:
    """Whether Ge'ez digits form one numeral."""
    return _NUMERAL.fullmatch(digits) is not None


def as_digits(text: Traced, version: int) -> Traced:
    """Ge'ez numerals, decimal digits of any script and fractions such as ½ in ASCII.

    Ge'ez digits that form no numeral stand one by one, since version 2 of the rules.
    """
    def geez(match: re.Match[str]) -> str:
        if version == 1 or well_formed(match.group()):
            return str(geez_value(match.group()))
        return " ".join(str(geez_value(digit)) for digit in match.group())

    text = text.sub(_GEEZ_RUN, geez, "numeral")
    text = text.sub(_VULGAR, _fraction, "numeral")
    return text.sub(_OTHER, _digit, "numeral")


def _fraction(match: re.Match[str]) -> str:
    before = match.string[match.start() - 1:match.start()]
    return (" " if before.isdigit() else "") + unicodedata.normalize("NFKD", match.group()).replace("\u2044", "/")


def _digit(match: re.Match[str]) -> str:
    return str(unicodedata.decimal(match.group()))
