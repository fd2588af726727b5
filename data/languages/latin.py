"""Romanisation, and Latin words in a text of a syllabic script: by the names of their letters, or by sound.

The sound follows the table of the rules, not the spelling of one language. The output has no Latin letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from functools import lru_cache

from anyascii import anyascii

from config.text_rules import Latin
from data.languages.patterns import letters_after, letters_before, one_of
from data.languages.span_map import SpanMap

_WORD = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff'\u2019\u0300-\u036f]*")
_DOT = re.compile(r"(?<=[A-Za-z0-9])\.(?=[A-Za-z])")
_VOWELS = frozenset("aeiouy")
_LONGEST_NAME = 5  # letters; a longer word in capitals is shouted, not spelled


def say_latin(text: SpanMap, latin: Latin, attached: tuple[Set[str], Set[str]]) -> SpanMap:
    """Latin words as `latin.words` says; `attached`: what may be attached before and after a word."""
    if latin.words == "keep":
        return text
    if latin.dot:
        text = text.sub(_DOT, lambda match: f" {latin.dot} ", "foreign word")
    return text.sub(_WORD, lambda match: _between(match, pronounce_word(match.group(), latin), *attached),
                    "foreign word")


def pronounce_word(word: str, latin: Latin) -> str:
    """One Latin word in the letters of the script."""
    plain = "".join(character for character in romanise(word) if "a" <= character <= "z")
    if not plain:
        return ""
    capitals = word.isupper() and 1 < len(plain) <= _LONGEST_NAME
    spelled = latin.words == "letters" or (
        latin.words == "auto" and (capitals or len(plain) == 1 or not _VOWELS & set(plain)))
    return " ".join(latin.letters[letter] for letter in plain) if spelled else by_sound(plain, latin)


def by_sound(plain: str, latin: Latin) -> str:
    """Lower-case letters a to z as syllables: a consonant takes the vowel after it, or none."""
    words = []
    for match in _syllable(tuple(latin.consonants), tuple(latin.vowels)).finditer(_readable(plain)):
        consonant, vowel = match[1], match[2] or match[3]
        order = latin.vowels[vowel] if vowel else "-"
        words.append(latin.consonants[consonant][latin.orders.index(order)] if consonant else latin.alone[order])
    return "".join(words)


def sound_of(text: str, latin: Latin) -> str:
    """Letters of any script by their Latin spelling; without rows the Latin letters themselves."""
    plain = "".join(character for character in romanise(text) if "a" <= character <= "z")
    return by_sound(plain, latin) if latin.consonants else plain


def _readable(plain: str) -> str:
    """Common rules of Latin spelling: c before e, i and y is s, x is ks, y without a vowel after it is i.

    Double consonants are one, and a final e is silent after a vowel and a consonant (`phone`), and in `-gle`.
    """
    plain = re.sub(r"c(?=[eiy])", "s", plain).replace("x", "ks")
    plain = re.sub(r"y(?![aeiou])", "i", plain)
    plain = re.sub(r"([b-df-hj-np-tv-z])\1+", r"\1", plain)
    return re.sub(r"(?:(?<=[aeiouy][b-df-hj-np-tv-z])|(?<=[bdfgkpt]l))e$", "", plain)


def _between(match: re.Match[str], words: str, attached_before: Set[str], attached_after: Set[str]) -> str:
    """`words` with a space beside a letter of another script that does not belong to it."""
    preceding, following = match.string[:match.start()][-1:], match.string[match.end():][:1]
    space_before = preceding.isalnum() and letters_before(match.string, match.start()) not in attached_before
    space_after = following.isalnum() and letters_after(match.string, match.end()) not in attached_after
    return f"{' ' if space_before else ''}{words}{' ' if space_after else ''}"


@lru_cache(maxsize=16)
def _syllable(consonants: tuple[str, ...], vowels: tuple[str, ...]) -> re.Pattern[str]:
    consonant, vowel = one_of(consonants), one_of(vowels)
    return re.compile(rf"({consonant})({vowel})?|({vowel})")


def romanise(text: str) -> str:
    """`text` in lower-case ASCII by anyascii; unknown characters are dropped.

    The table merges Amharic homophones (ሀ, ሐ and ኀ are "ha") and writes ejectives with an apostrophe (ቀ is "k'e").
    """
    return anyascii(text).lower().replace("`", "'")


def romanise_by_order(text: str) -> str:
    """`romanise`, with the vowel of each Ethiopic syllable as its order has it, for the rows of new tokens.

    The table writes the orders 1 and 5 alike (ለ and ሌ are "le"), እ and ዕ as a bare apostrophe, and ኧ as "'wa". Here ሌ
    is "lie", እ and ዕ are "'i" as in BGN/PCGN, and ኧ is "'e". The order is that of the character's name in Unicode.
    Letters that are still spelled alike are homophones, ኢ and እ, and ኲ and ኵ with the other labialised ones.
    Recognisers that were trained on the spelling of the table keep it.
    """
    return "".join(map(_syllable_by_order, text))


@lru_cache(maxsize=4096)
def _syllable_by_order(character: str) -> str:
    spelled, name = romanise(character), unicodedata.name(character, "")
    if not name.startswith("ETHIOPIC SYLLABLE "):
        return spelled
    if name.endswith("EE"):
        return spelled[:-1] + "ie"
    # ኧ is the first order of አ, which is said as its fourth.
    if name.endswith(" GLOTTAL WA"):
        return "'e"
    return spelled + "i" if spelled == "'" else spelled
