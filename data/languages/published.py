"""Chatterbox's own writing of its base languages, so that they get the ids it was trained with.

The order is the published package's (resemble-ai/chatterbox, MIT: `punc_norm` in `mtl_tts.py`
and `tts.py`, `MTLTokenizer.encode`): first letter up, white space, marks, a full stop; then,
in the multilingual models only, lower case and NFKD, and what the language needs. Unlike there,
nothing is skipped: a missing package or file is an error, and a text without words is empty.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping

from data.languages import chinese, hebrew, japanese, korean, russian
from data.languages.words import spoken

_MARKS = (
    ("...", ", "), ("…", ", "), (":", ","), (" - ", ", "), (";", ", "), ("—", "-"), ("–", "-"), (" ,", ","),
    ("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"),
)  # in this order
_ENDS = (".", "!", "?", "-", ",")
_MULTILINGUAL_ENDS = (*_ENDS, "、", "，", "。", "？", "！")

STEPS: dict[str, Callable[[str, Mapping[str, bytes]], str]] = {
    "zh": chinese.cangjie, "ja": japanese.kana, "ko": korean.jamo, "he": hebrew.diacritics, "ru": russian.stress,
}
"""What some languages need after lower case and NFKD: text, and the model's files by name."""


def english(text: str) -> str:
    """As the English model reads it: case stays."""
    return _punctuated(text, _ENDS)


def multilingual(text: str, language: str, files: Mapping[str, bytes]) -> str:
    """As the multilingual models read `language`; `UserError` where it needs a package or a file that is missing."""
    text = _punctuated(text, _MULTILINGUAL_ENDS)
    if not text:
        return text
    text = unicodedata.normalize("NFKD", text.lower())
    return STEPS[language](text, files) if language in STEPS else text


def _punctuated(text: str, ends: tuple[str, ...]) -> str:
    """Text with the marks the model knows, ended by one; empty when there is nothing to read aloud."""
    if not any(spoken(character, "latin") for character in text):
        return ""
    if text[0].islower():
        text = text[0].upper() + text[1:]
    text = " ".join(text.split())
    for mark, replacement in _MARKS:
        text = text.replace(mark, replacement)
    text = text.rstrip(" ")
    return text if text.endswith(ends) else text + "."
