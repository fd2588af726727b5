"""Named text normalisers, which run before the tokenizer.

A front-end names one for each language, and the name is part of its fingerprint. The style of the base model decides
which one a new language gets: `words` (the built-in model: letters and spaces) or `chatterbox` (with punctuation, in
NFKD). The base languages of Chatterbox have their own, which give the published ids. Nothing that is spoken is dropped,
so the tokenizer can report unknown characters; `dropped` lists what was left out.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from config.errors import UserError
from data.languages import MissingTool, chatterbox_normaliser
from data.languages.chatterbox_normaliser import CODES_FILE
from data.languages.words import (
    KEPT_MARKS,
    REPLACED_MARKS,
    SPOKEN_PUNCTUATION,
    ScriptKind,
    lower_composed,
    punctuated,
    script_kind,
    words,
)

Style = Literal["words", "chatterbox"]

STYLES: tuple[Style, ...] = get_args(Style)
KINDS: tuple[ScriptKind, ...] = get_args(ScriptKind)
_NEW = {f"chatterbox-new-{kind}": kind for kind in KINDS}
_BASE = {"chatterbox": "", **{f"chatterbox-{code}": code for code in chatterbox_normaliser.LANGUAGE_STEPS}}
_ENGLISH = "chatterbox-english"
NORMALISERS = (*KINDS, *_NEW, *_BASE, _ENGLISH)
DATA_FILES = (CODES_FILE,)  # of a model, which a normaliser may need
_NO_FILES: Mapping[str, bytes] = {}


def normalise(text: str, name: str, files: Mapping[str, bytes] = _NO_FILES) -> str:
    """`text` through the normaliser `name`; `files` holds the model's `DATA_FILES`. Empty if nothing is spoken.

    `UserError` for an unknown name, or if a package or file is missing.
    """
    if name in _NEW:
        return punctuated(text, _NEW[name])
    if name in _BASE:
        return chatterbox_normaliser.normalise_multilingual(text, _BASE[name], files)
    if name == _ENGLISH:
        return chatterbox_normaliser.normalise_english(text)
    return words(text, _kind(name))


@dataclass(frozen=True)
class TextNormaliser:
    """Text of a new language as it is spoken: verbalized by rules, if any, then normalised."""

    normaliser: str
    verbalize: Callable[[str], str] = str

    def normal(self, text: str) -> str:
        return normalise(self.verbalize(text), self.normaliser)


def missing(name: str, files: Mapping[str, bytes] = _NO_FILES) -> str:
    """What the normaliser `name` lacks on this machine, as a sentence; empty for nothing."""
    try:
        normalise("a", name, files)
    except MissingTool as error:
        return error.message
    return ""


def for_language(code: str, style: Style = "words") -> str:
    """Name of the normaliser for a new language, on a base of this style."""
    kind = script_kind(code)
    return kind if style == "words" else f"{style}-new-{kind}"


def for_base_language(code: str, multilingual: bool) -> str:
    """Name of the normaliser for a base language of Chatterbox."""
    if not multilingual:
        return _ENGLISH
    return f"chatterbox-{code}" if code in chatterbox_normaliser.LANGUAGE_STEPS else "chatterbox"


def dropped(text: str, name: str) -> dict[str, int]:
    """Visible characters of `text` that the normaliser `name` of a new language leaves out, with their counts."""
    composed = lower_composed(text, _NEW.get(name) or _kind(name))
    if name in _NEW:
        composed = "".join(
            character for character in unicodedata.normalize("NFKD", composed)
            if character not in KEPT_MARKS and character not in REPLACED_MARKS
        )
    remaining = Counter(normalise(text, name))
    lost = Counter(character for character in composed if not character.isspace())
    lost.subtract({character: count for character, count in remaining.items() if character != " "})
    return {character: count for character, count in sorted(lost.items()) if count > 0}


def style(name: str) -> Style:
    """`name` as a style; `ValueError` for an unknown one."""
    for known in STYLES:
        if known == name:
            return known
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
