"""Chatterbox's published normalisation of its base languages, so that they get the ids it was trained with.

The order of the package (resemble-ai/chatterbox, MIT: `punc_norm` in `mtl_tts.py` and `tts.py`, `MTLTokenizer.encode`):
first letter to upper case, white space, marks, a full stop; then, in the multilingual models only, lower case and NFKD,
and the step of the language. Unlike there, a missing package or file is an error, and a text without words is empty.

Chinese: words are separated by `spacy-pkuseg`, then each character becomes its Cangjie code from a file of the model (a
JSON list of "character, tab, code"). The first character of a code has the code alone, the next one a 1 after it.
Hebrew: as it is written, or with vowel points by `dicta-onnx`. The package means to add the points, but calls
`Dicta()` without the path that every version of dicta-onnx (1.0.0 to 1.0.9) wants, passes over the error and sends the
text as it is written; dicta-onnx is not among its requirements either. So its weights are heard unpointed everywhere.
The code does not tell what they were trained on.
Japanese: kanji to hiragana by `pykakasi`. Korean: jamo, by NFKD. Russian: stress marks (U+0301 after the vowel) by
`russian-text-stresser`.
"""

from __future__ import annotations

import json
import os
import unicodedata
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from config.errors import MissingTool, UserError, missing_model, missing_package
from data.languages.words import is_spoken

_MARKS = (
    ("...", ", "), ("…", ", "), (":", ","), (" - ", ", "), (";", ", "), ("—", "-"), ("–", "-"), (" ,", ","),
    ("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"),
)  # the order matters
_ENDS = (".", "!", "?", "-", ",")
_MULTILINGUAL_ENDS = (*_ENDS, "、", "，", "。", "？", "！")
CODES_FILE = "Cangjie5_TC.json"
_CODE_END = "[cj_.]"
MODEL_VARIABLE = "DICTA_MODEL"
POINTED_HEBREW = "he-pointed"
_HEBREW_MODEL = "~/.cache/dicta/dicta-1.0.onnx"
_HEBREW_SOURCE = "https://github.com/thewh1teagle/dicta-onnx/releases/tag/model-files-v1.0"
_KANJI = range(0x4E00, 0xA000)
_PARTICLES = ("は", "へ")  # such a reading gets a space before it, or it would sound like the particle
_RUSSIAN_COMMIT = "9e064c815373ef6f0360dd97b0d0fc37b52d256f"
_RUSSIAN_INSTALL = f'"russian-text-stresser @ git+https://github.com/Vuizur/add-stress-to-epub@{_RUSSIAN_COMMIT}"'



def normalise_english(text: str) -> str:
    """For the English model: case stays."""
    return _punctuated(text, _ENDS)


def normalise_multilingual(text: str, language: str, files: Mapping[str, bytes]) -> str:
    """For the multilingual models; `UserError` if `language` needs a package or a file that is missing."""
    text = _punctuated(text, _MULTILINGUAL_ENDS)
    if not text:
        return text
    text = unicodedata.normalize("NFKD", text.lower())
    return LANGUAGE_STEPS[language](text, files) if language in LANGUAGE_STEPS else text


def _punctuated(text: str, ends: tuple[str, ...]) -> str:
    """Text with the marks that the model knows, and one at its end; empty if there is nothing to read aloud."""
    if not any(is_spoken(character, "latin") for character in text):
        return ""
    if text[0].islower():
        text = text[0].upper() + text[1:]
    text = " ".join(text.split())
    for mark, replacement in _MARKS:
        text = text.replace(mark, replacement)
    text = text.rstrip(" ")
    return text if text.endswith(ends) else text + "."


def cangjie(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (NFKD) with `[cj_x]` tokens for characters; `UserError` without the package or the codes."""
    if CODES_FILE not in files:
        raise MissingTool(
            f"Chinese text needs {CODES_FILE}, which the model's folder lacks.",
            "Download the model again, or copy the file from the hub's ResembleAI/chatterbox into it.",
        )
    codes = _codes(files[CODES_FILE])
    return "".join(codes.get(character, character) for character in " ".join(_segmenter().cut(text)))


@lru_cache(maxsize=2)
def _codes(content: bytes) -> dict[str, str]:
    """Tokens of every letter (category Lo) that has a code."""
    code_of: dict[str, str] = {}
    places: dict[str, list[str]] = {}
    try:
        for entry in json.loads(content):
            character, code = entry.split("\t")[:2]
            code_of[character] = code
            places.setdefault(code, []).append(character)
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{CODES_FILE} is damaged: {error!r}.", "Download the model again.") from error

    # Characters with the same code are numbered.
    def tokens(character: str, code: str) -> str:
        place = places[code].index(character)
        return "".join(f"[cj_{key}]" for key in code + (str(place) if place else "")) + _CODE_END

    return {character: tokens(character, code) for character, code in code_of.items()
            if len(character) == 1 and unicodedata.category(character) == "Lo"}


@cache
def _segmenter() -> Any:
    try:
        from spacy_pkuseg import pkuseg
    except ImportError as error:
        raise missing_package("Chinese", "spacy-pkuseg", "spacy-pkuseg==1.0.2") from error
    try:
        return pkuseg()
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:  # no network, no room, not the file it should be
        raise missing_model(
            "Chinese", "spacy-pkuseg", error,
            "It fetches the model spacy_ontonotes from GitHub at the first use: try again with a network, or unpack "
            "spacy_ontonotes.zip of https://github.com/explosion/spacy-pkuseg/releases/tag/v0.0.26 into ~/.pkuseg.",
        ) from error


def as_written(text: str, files: Mapping[str, bytes]) -> str:
    """`text`, with the points that are written in it."""
    return text


def diacritics(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (NFKD) with vowel points; existing points are replaced. In the order of `dicta-onnx`, as published."""
    return str(_dicta().add_diacritics(text))


@cache
def _dicta() -> Any:
    try:
        from dicta_onnx import Dicta
    except ImportError as error:
        raise missing_package("Hebrew", "dicta-onnx", "dicta-onnx==1.0.9") from error
    path = Path(os.environ.get(MODEL_VARIABLE) or _HEBREW_MODEL).expanduser()
    hint = f"Download dicta-1.0.onnx from {_HEBREW_SOURCE} to {path}, or give its place in {MODEL_VARIABLE}."
    if not path.is_file():
        raise missing_model("Hebrew", "dicta-onnx", f"there is no file {path}", hint)
    try:
        return Dicta(str(path))
    except (OSError, ValueError, RuntimeError) as error:
        hint += " Its letters (dicta-il/dictabert-large-char-menaked) come from the Hugging Face hub at the first use."
        raise missing_model("Hebrew", "dicta-onnx", error, hint) from error


def kana(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (NFKD) without kanji, NFKD again."""
    parts = []
    for word in _converter().convert(text):
        if any(ord(character) in _KANJI for character in word["orig"]):
            parts.append(" " * word["hira"].startswith(_PARTICLES) + word["hira"])
        else:
            parts.append(word["orig"])
    return unicodedata.normalize("NFKD", "".join(parts))


@cache
def _converter() -> Any:
    try:
        from pykakasi import kakasi
    except ImportError as error:
        raise missing_package("Japanese", "pykakasi", "pykakasi==2.3.0") from error
    return kakasi()


def jamo(text: str, files: Mapping[str, bytes]) -> str:
    """NFKD has taken the syllables apart already; the ends are trimmed as published."""
    return text.strip()


def stress(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (lower case, NFKD) with the stress of each word that the dictionary knows."""
    return str(_stresser().stress_text(text))


@cache
def _stresser() -> Any:
    try:
        from russian_text_stresser.text_stresser import RussianTextStresser
    except ImportError as error:
        raise missing_package("Russian", "russian-text-stresser", _RUSSIAN_INSTALL) from error
    try:
        return RussianTextStresser()
    except OSError as error:  # it fetches its dictionary from GitHub, and looks for a spaCy model
        raise missing_model(
            "Russian", "russian-text-stresser", error,
            "It fetches its dictionary from GitHub at the first use: try again with a network, "
            "and install spaCy's ru_core_news_sm if that is what is missing.",
        ) from error


LANGUAGE_STEPS: dict[str, Callable[[str, Mapping[str, bytes]], str]] = {
    "zh": cangjie, "ja": kana, "ko": jamo, "he": as_written, POINTED_HEBREW: diacritics, "ru": stress,
}
"""The steps of languages after lower case and NFKD: (text, the model's files by name) to text."""
