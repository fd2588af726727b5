"""Words alone, in lower case, with one space between them: what a model without punctuation reads.

Anything spoken stays: letters, marks, digits and symbols. Homophones (Amharic ሀ and ሐ) are
not folded: spelling is the tokenizer's business, sound the model's.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Kind = Literal["latin", "turkic", "ethiopic", "generic"]

APOSTROPHES = "\u2018\u2019\u02bc\u2032\u00b4`\uff07"
SPOKEN_PUNCTUATION = frozenset("%‰&@#*/\\§٪၌၍၎၏")  # category P, but read aloud: kept, so that encoding reports them
SILENT_SYMBOLS = frozenset("|~^")  # category S, but never read aloud
JOINERS = "\u200c\u200d"  # part of the spelling in Persian and Indic scripts, noise elsewhere
QUOTED = re.compile(r"(?<!\w)'(.+?)'(?!\w)")
LONE_APOSTROPHE = re.compile(r"(?<!\w)'+(?!\w)")
_FOLD = {ord(character): "'" for character in APOSTROPHES}
_SPACES = re.compile(r" {2,}")
_TURKIC_CAPITALS = str.maketrans({"I": "ı", "İ": "i"})

_ETHIOPIC = frozenset({"am", "ti", "tig", "gez", "byn", "sgw"})
_TURKIC = frozenset({"tr", "az"})
_LATIN = frozenset({
    "af", "ca", "cs", "cy", "da", "de", "en", "es", "et", "eu", "fi", "fr", "ga", "ha", "hr", "hu", "id", "ig",
    "is", "it", "lg", "ln", "lt", "lv", "mg", "ms", "mt", "nl", "no", "om", "pl", "pt", "ro", "rw", "sk", "sl",
    "sn", "so", "sq", "st", "sv", "sw", "tl", "tn", "vi", "wo", "xh", "yo", "zu",
})


def kind_of(code: str) -> Kind:
    """What a language needs: by script, `generic` where nothing special is known."""
    if code in _ETHIOPIC:
        return "ethiopic"
    if code in _TURKIC:
        return "turkic"
    return "latin" if code in _LATIN else "generic"


def words(text: str, kind: Kind) -> str:
    """Apostrophes that belong to a word stay; other punctuation and all white space is one space.

    The Ethiopic word space U+1361 and the stops up to U+1368 are punctuation to Unicode.
    """
    text = QUOTED.sub(r"\1", folded(text, kind))
    text = "".join(_replacement(character, kind) for character in text)
    return _SPACES.sub(" ", LONE_APOSTROPHE.sub(" ", text)).strip()


def folded(text: str, kind: Kind) -> str:
    """Composed, in lower case, with one kind of apostrophe."""
    text = unicodedata.normalize("NFC", text)
    return (text.translate(_TURKIC_CAPITALS) if kind == "turkic" else text).lower().translate(_FOLD)


def spoken(character: str, kind: Kind) -> bool:
    """Whether a character is part of what is read aloud, and stays."""
    category = unicodedata.category(character)
    if category == "Cf":
        return kind == "generic" and character in JOINERS
    if character in SILENT_SYMBOLS or character.isspace():
        return False
    return character in SPOKEN_PUNCTUATION or category[0] not in "PZ"


def _replacement(character: str, kind: Kind) -> str:
    if character == "'" or spoken(character, kind):
        return character
    return "" if unicodedata.category(character) == "Cf" else " "
