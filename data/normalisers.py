"""Named text normalisers, which run before the tokenizer.

A front-end names one for each language, and the name is part of its fingerprint. The style of the base model decides
which one a new language gets: `words` (the built-in model: letters and spaces), `chatterbox` (with punctuation, in
NFKD), `indextts2` (the same in upper case, composed) or `indextts25` (the same, composed). The base languages of
Chatterbox and IndexTTS2 have their own, which give the published ids. Nothing that is spoken is dropped,
so the tokenizer can report unknown characters; `dropped` lists characters that were left out.

A name that ends in `-cased` keeps the case of a new language whose capitals are letters of their own, such as bON and
bon of Ibibio. IndexTTS2's base has rows for capitals, so there the case is exchanged: small letters get these rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from config.errors import MissingTool, UserError
from data.languages import chatterbox_normaliser, indextts2_normaliser
from data.languages.chatterbox_normaliser import CODES_FILE
from data.languages.words import (
    KEPT_MARKS,
    REPLACED_MARKS,
    SPOKEN_PUNCTUATION,
    ScriptKind,
    case_exchanged,
    composed,
    lower_composed,
    punctuated,
    script_kind,
    upper_composed,
    words,
)

Style = Literal["words", "chatterbox", "indextts2", "indextts25"]

STYLES: tuple[Style, ...] = get_args(Style)
KINDS: tuple[ScriptKind, ...] = get_args(ScriptKind)
_NEW = {f"chatterbox-new-{kind}": kind for kind in KINDS}
_NEW_UPPER = {f"indextts2-new-{kind}": kind for kind in KINDS}
_NEW_COMPOSED = {f"indextts25-new-{kind}": kind for kind in KINDS}
_BASE = {"chatterbox": "", **{f"chatterbox-{code}": code for code in chatterbox_normaliser.LANGUAGE_STEPS}}
_ENGLISH = "chatterbox-english"
HEBREW, POINTED_HEBREW = "chatterbox-he", f"chatterbox-{chatterbox_normaliser.POINTED_HEBREW}"
INDEXTTS2 = "indextts2"  # normaliser of both base languages: the text decides which rules read it
INDEXTTS25 = {f"indextts25-{code}": code for code in ("zh", "en", "es", "ar", "ja")}  # IndexTTS 2.5, keyed by language
SPANISH25 = "indextts25-es"
_LIBRARIES: Mapping[str, Callable[[], str]] = {
    INDEXTTS2: lambda: indextts2_normaliser.rules_version(),
    **{f"indextts25-{code}": lambda: indextts2_normaliser.rules_version() for code in ("zh", "en")},
    SPANISH25: lambda: indextts2_normaliser.spanish_rules_version(),
}  # the package that writes out numbers, by normaliser
CASED = "-cased"
NORMALISERS = (*KINDS, *_NEW, *_BASE, _ENGLISH, *_NEW_UPPER, INDEXTTS2, *_NEW_COMPOSED, *INDEXTTS25,
               *(f"{name}{CASED}" for name in (*KINDS, *_NEW, *_NEW_UPPER, *_NEW_COMPOSED)))
_LETTERS = re.compile(r"(?:[^\W\d_]|[\u0300-\u036f])+")
_CASE_SHARE, _FEWEST_CASED = 0.02, 5
"""Share and number of words with capitals within from which they are an orthography. Names such as McDonald are 0 of
75,952 words of the Universal Declaration of Human Rights in 40 languages."""
DATA_FILES = (CODES_FILE,)  # files of a model that a normaliser may need
_NO_FILES: Mapping[str, bytes] = {}


def normalise(text: str, name: str, files: Mapping[str, bytes] = _NO_FILES) -> str:
    """`text` through the normaliser `name`; `files` holds the model's `DATA_FILES`. Empty if nothing is spoken.

    `UserError` for an unknown name, or if a package or file is missing.
    """
    new, keep_case = name.removesuffix(CASED), name.endswith(CASED)
    if new in _NEW:
        return punctuated(text, _NEW[new], keep_case=keep_case)
    if new in _NEW_UPPER:
        marked = punctuated(text, _NEW_UPPER[new], keep_case=keep_case)
        return (case_exchanged if keep_case else upper_composed)(marked, _NEW_UPPER[new])
    if new in _NEW_COMPOSED:
        return unicodedata.normalize("NFC", punctuated(text, _NEW_COMPOSED[new], keep_case=keep_case))
    if name == INDEXTTS2:
        return indextts2_normaliser.normalise(text)
    if name in INDEXTTS25:
        return indextts2_normaliser.normalise_for_2_5(text, INDEXTTS25[name]).strip()
    if name in _BASE:
        return chatterbox_normaliser.normalise_multilingual(text, _BASE[name], files)
    if name == _ENGLISH:
        return chatterbox_normaliser.normalise_english(text)
    return words(text, _kind(new), keep_case=keep_case)


@dataclass(frozen=True)
class CaseUse:
    """How texts use capitals: what tells an orthography whose capitals are letters of their own from names."""

    words: int
    within: int  # words with a capital after a small letter, such as bON
    pairs: int  # other words that differ from one of these in nothing but case, such as bon
    example: str = ""  # a word of the first kind, of such a pair if there is one

    @property
    def is_spelling(self) -> bool:
        """Whether case is part of the spelling, so that a new language keeps it."""
        return self.within >= max(_FEWEST_CASED, _CASE_SHARE * self.words)


def measure_case(texts: Iterable[str]) -> CaseUse:
    """Count the words of `texts` whose case may be spoken."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_LETTERS.findall(unicodedata.normalize("NFC", text)))
    within = {word: count for word, count in counts.items() if has_capital_within(word)}
    lowered = {word.lower(): word for word in within}
    pairs = Counter[str]()
    for word, count in counts.items():
        if word not in within and word.lower() in lowered and not word.isupper():
            pairs[word.lower()] += count
    example = lowered[next(iter(pairs))] if pairs else next(iter(within), "")
    return CaseUse(counts.total(), sum(within.values()), pairs.total(), example)


def has_capital_within(word: str) -> bool:
    """Whether a capital follows a small letter in a word."""
    return any(character.islower() and following.isupper() for character, following in pairwise(word))


@dataclass(frozen=True)
class TextNormaliser:
    """Text of a new language as it is spoken: verbalized by rules, if any, then normalised."""

    normaliser: str
    verbalize: Callable[[str], str] = str
    rules: str = ""  # their name

    def normal(self, text: str) -> str:
        return normalise(self.verbalize(text), self.normaliser)


def missing(name: str, files: Mapping[str, bytes] = _NO_FILES) -> str:
    """What the normaliser `name` lacks on this machine, as a sentence; empty for nothing."""
    try:
        normalise("a b", name, files)  # a single letter needs nothing
    except MissingTool as error:
        return error.message
    return ""


def text_library(names: Iterable[str]) -> str:
    """Name and installed version of the package that writes out numbers for any of the normalisers `names`.

    Empty if none of them uses one, or it is not installed.
    """
    versions = [_LIBRARIES[name]() for name in names if name in _LIBRARIES]
    return ", ".join(dict.fromkeys(filter(None, versions)))


def is_written_out(name: str) -> bool:
    """Whether a package writes out the numbers of text for the normaliser `name`, so that its version matters."""
    return name in _LIBRARIES


def leaves_digits(text: str, name: str) -> bool:
    """Whether the normaliser `name` leaves the digits of `text`, for want of the package that would write them out."""
    return name == SPANISH25 and any(map(str.isdigit, text)) and not indextts2_normaliser.spanish_rules_version()


def normalise_without_packages(text: str, name: str) -> str:
    """What can be done of `normalise` without any optional package; to compare tokenizers, never for the model."""
    def as_it_is(shielded: str, chinese: bool) -> str:
        return shielded

    if name in INDEXTTS25:
        return indextts2_normaliser.normalise_for_2_5(text, INDEXTTS25[name], as_it_is).strip()
    return indextts2_normaliser.normalise(text, as_it_is) if name == INDEXTTS2 else text


def for_language(code: str, style: Style = "words") -> str:
    """Name of the normaliser for a new language, on a base of this style."""
    kind = script_kind(code)
    return kind if style == "words" else f"{style}-new-{kind}"


def for_other_language(name: str, code: str) -> str:
    """The normaliser that is to another new language what `name` is to one."""
    style_of, new, _ = name.rpartition("-new-")
    cased = CASED if name.endswith(CASED) else ""
    return f"{style_of}{new}{script_kind(code)}{cased}" if new or name.removesuffix(CASED) in KINDS else name


def for_base_language(code: str, multilingual: bool) -> str:
    """Name of the normaliser for a base language of Chatterbox."""
    if not multilingual:
        return _ENGLISH
    return f"chatterbox-{code}" if code in chatterbox_normaliser.LANGUAGE_STEPS else "chatterbox"


def dropped(text: str, name: str) -> dict[str, int]:
    """Visible characters of `text` that the normaliser `name` of a new language leaves out, with their counts."""
    new, keep_case = name.removesuffix(CASED), name.endswith(CASED)
    kind = {**_NEW, **_NEW_UPPER, **_NEW_COMPOSED}.get(new)
    full_text = (composed if keep_case else lower_composed)(text, kind or _kind(new))
    if kind:
        full_text = "".join(
            character for character in unicodedata.normalize("NFKD", full_text)
            if character not in KEPT_MARKS and character not in REPLACED_MARKS
        )
    remaining = Counter(punctuated(text, kind, keep_case=keep_case) if kind else normalise(text, name))
    lost = Counter(character for character in full_text if not character.isspace())
    lost.subtract({character: count for character, count in remaining.items() if character != " "})
    return {character: count for character, count in sorted(lost.items()) if count > 0}


def style(name: str) -> Style:
    """`name` as a style; `ValueError` for an unknown one."""
    for style_name in STYLES:
        if style_name == name:
            return style_name
    raise ValueError(f"style {name!r}, not one of {', '.join(STYLES)}")


def is_mark(character: str) -> bool:
    """Whether a character of normalised text is punctuation that is not read aloud."""
    return unicodedata.category(character)[0] == "P" and character != "'" and character not in SPOKEN_PUNCTUATION


def without_marks(text: str) -> str:
    """Normalised text with a space for each mark, for learning tokenizer pieces from words."""
    return "".join(" " if is_mark(character) else character for character in text)


def _kind(name: str) -> ScriptKind:
    for kind in KINDS:
        if kind == name:
            return kind
    raise UserError(f"There is no text normaliser {name!r}.", f"Choose one of: {', '.join(sorted(NORMALISERS))}.")
