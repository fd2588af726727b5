"""Named text normalisers: what stands between written text and the tokenizer.

A normaliser folds writing variants and turns punctuation into spaces. It never drops
anything that is spoken: letters, marks, digits and symbols stay, so that the tokenizer
can report those that it does not know. `dropped` names what was left out. Homophones
(Amharic ሀ and ሐ) are not folded: spelling is the tokenizer's business, sound the model's.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable

from config.errors import UserError

APOSTROPHES = "\u2018\u2019\u02bc\u2032\u00b4`\uff07"
SPOKEN_PUNCTUATION = frozenset("%‰&@#*/\\§٪")  # category P, but read aloud: kept, so that encoding reports them
SILENT_SYMBOLS = frozenset("|~^")  # category S, but never read aloud
JOINERS = "\u200c\u200d"  # part of the spelling in Persian and Indic scripts, noise elsewhere
_FOLD = {ord(character): "'" for character in APOSTROPHES}
_QUOTED = re.compile(r"(?<!\w)'(.+?)'(?!\w)")
_LONE_APOSTROPHE = re.compile(r"(?<!\w)'+(?!\w)")
_SPACES = re.compile(r" {2,}")
_TURKIC_CAPITALS = str.maketrans({"I": "ı", "İ": "i"})


def normalise(text: str, name: str) -> str:
    """`text` through the normaliser `name`: composed, lower case, one space between words."""
    if name not in NORMALISERS:
        raise UserError(f"There is no text normaliser {name!r}.", f"Choose one of: {', '.join(sorted(NORMALISERS))}.")
    return NORMALISERS[name](text)


def dropped(text: str, name: str) -> dict[str, int]:
    """Visible characters of `text` that the normaliser `name` leaves out, with their counts."""
    kept = Counter(normalise(text, name))
    composed = _fold(_lower(unicodedata.normalize("NFC", text), name))
    lost = Counter(character for character in composed if not character.isspace())
    lost.subtract({character: count for character, count in kept.items() if character != " "})
    return {character: count for character, count in sorted(lost.items()) if count > 0}


def for_language(code: str) -> str:
    """Name of the normaliser for a language: by script, `generic` where nothing special is known."""
    if code in _ETHIOPIC:
        return "ethiopic"
    if code in _TURKIC:
        return "turkic"
    return "latin" if code in _LATIN else "generic"


def _latin(text: str) -> str:
    return _clean(unicodedata.normalize("NFC", text).lower(), keep_joiners=False)


def _turkic(text: str) -> str:
    return _clean(_lower(unicodedata.normalize("NFC", text), "turkic"), keep_joiners=False)


def _ethiopic(text: str) -> str:
    # The word space U+1361 and the stops up to U+1368 are punctuation to Unicode, so they become spaces.
    return _clean(unicodedata.normalize("NFC", text).lower(), keep_joiners=False)


def _generic(text: str) -> str:
    return _clean(unicodedata.normalize("NFC", text).lower(), keep_joiners=True)


def _lower(text: str, name: str) -> str:
    return (text.translate(_TURKIC_CAPITALS) if name == "turkic" else text).lower()


def _fold(text: str) -> str:
    return text.translate(_FOLD)


def _clean(text: str, keep_joiners: bool) -> str:
    """Apostrophes that belong to a word stay; other punctuation and all white space is one space."""
    text = _QUOTED.sub(r"\1", _fold(text))
    text = "".join(_replacement(character, keep_joiners) for character in text)
    return _SPACES.sub(" ", _LONE_APOSTROPHE.sub(" ", text)).strip()


def _replacement(character: str, keep_joiners: bool) -> str:
    if character == "'" or character in SPOKEN_PUNCTUATION:
        return character
    category = unicodedata.category(character)
    if character in SILENT_SYMBOLS:
        return " "
    if category[0] in "LMNS":
        return character
    if category == "Cf":
        return character if keep_joiners and character in JOINERS else ""
    return " " if category[0] in "PZ" or character.isspace() else character


_ETHIOPIC = frozenset({"am", "ti", "tig", "gez", "byn", "sgw"})
_TURKIC = frozenset({"tr", "az"})
_LATIN = frozenset({
    "af", "ca", "cs", "cy", "da", "de", "en", "es", "et", "eu", "fi", "fr", "ga", "ha", "hr", "hu", "id", "ig",
    "is", "it", "lg", "ln", "lt", "lv", "mg", "ms", "mt", "nl", "no", "om", "pl", "pt", "ro", "rw", "sk", "sl",
    "sn", "so", "sq", "st", "sv", "sw", "tl", "tn", "vi", "wo", "xh", "yo", "zu",
})

NORMALISERS: dict[str, Callable[[str], str]] = {
    "latin": _latin, "turkic": _turkic, "ethiopic": _ethiopic, "generic": _generic,
}
