"""Ways to draw a text: from the grammar, from paragraphs, or from syllables that make no word.

Each takes a generator of random numbers, and gives the same text for the same state of it.
"""

import random
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

HERE = Path(__file__).parent
LANGUAGES = ("en", "fr", "am")
FORBIDDEN = {
    "en": re.compile(r"[^a-z' ]"),
    "fr": re.compile(r"[^a-zàâçéèêëîïôùûüœ' ]"),
    "am": re.compile(r"[^\u1200-\u135a ]"),
}
FRENCH_VOWEL = (
    r"(?!oui|onze)"
    r"(?=[aeiouàâéèêëîïôùûœ]|h(?:abi|erbe|eure|iver|isto|omme|ô[pt]|orloge|uile))"
)
FRENCH_CONTRACTIONS = (
    (re.compile(rf"\b([djlmnst]|qu)e {FRENCH_VOWEL}"), r"\1'"),
    (re.compile(rf"\bla {FRENCH_VOWEL}"), "l'"),
    (re.compile(rf"\b([mts])a {FRENCH_VOWEL}"), r"\1on "),
    (re.compile(rf"\bce {FRENCH_VOWEL}"), "cet "),
    (re.compile(rf"\bdu {FRENCH_VOWEL}"), "de l'"),
    (re.compile(rf"\b(b|nouv)eau {FRENCH_VOWEL}"), r"\1el "),
    (re.compile(rf"\bvieux {FRENCH_VOWEL}"), "vieil "),
    (re.compile(r"\bde le "), "du "),
    (re.compile(r"\bà le "), "au "),
)
ENGLISH_AN = re.compile(r"\ba (?=(?!use|uni|one|eu)[aeiou]|hour|honest)")
SLOT = re.compile(r"\{(\w+)\}")


def check_language(language: str) -> None:
    """Raise ValueError for a language that has no grammar."""
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {LANGUAGES}, not {language!r}")


def normalise(text: str, language: str) -> str:
    """Lower-case NFC text in the language's own alphabet, with single spaces."""
    text = unicodedata.normalize("NFC", text.lower()).replace("\u2019", "'")
    return " ".join(FORBIDDEN[language].sub(" ", text).split())


@cache
def lexicon(language: str) -> dict[str, tuple[str, ...]]:
    """Grammar slots by name, each with its alternatives, which may name `{slots}`."""
    check_language(language)
    slots = yaml.safe_load((HERE / "lexicon.yaml").read_text(encoding="utf-8"))[language]
    return {name: tuple(map(str.strip, text.split(","))) for name, text in slots.items()}


def template(rng: random.Random, language: str) -> str:
    """A sentence of the grammar."""
    slots = lexicon(language)
    text = "{sentence}"
    while "{" in text:
        text = SLOT.sub(lambda match: rng.choice(slots[match.group(1)]), text)
    if language == "en":
        text = ENGLISH_AN.sub("an ", text)
    if language == "fr":
        for pattern, replacement in FRENCH_CONTRACTIONS:
            text = pattern.sub(replacement, text)
    return normalise(text, language)


def pseudo(rng: random.Random, language: str, words: tuple[str, ...]) -> str:
    """Two to four words, most of which are none but can be said."""
    def word() -> str:
        if rng.random() < 0.3:
            return rng.choice(words)
        return "".join(_syllable(rng, lexicon(language)) for _ in range(rng.choice((1, 2, 2, 3))))

    return " ".join(word() for _ in range(rng.randint(2, 4)))


def _syllable(rng: random.Random, parts: dict[str, tuple[str, ...]]) -> str:
    coda = rng.choice(parts["coda"]) if rng.random() < 0.5 else ""
    return rng.choice(parts["onset"]) + rng.choice(parts["nucleus"]) + coda


def word_window(
    rng: random.Random, paragraphs: Sequence[str], n_min: int = 1, n_max: int = 4
) -> str:
    """Words that follow one another in a paragraph."""
    words = rng.choices(paragraphs, weights=[len(p) for p in paragraphs])[0].split()
    start = rng.randrange(max(1, len(words) - n_min + 1))
    return " ".join(words[start : start + rng.randint(n_min, n_max)])


def character_window(rng: random.Random, paragraphs: Sequence[str]) -> str:
    """Characters that follow one another in a paragraph that has no spaces."""
    text = rng.choice(paragraphs)
    start = rng.randrange(max(1, len(text) - 8))
    return text[start : start + rng.randint(8, 12)]
