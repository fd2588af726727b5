"""Chinese: words set apart by `spacy-pkuseg`, then each character as its Cangjie code.

The codes are a file of the model (`Cangjie5_TC.json`: a JSON list of "character, tab, code").
Characters that share a code are told apart by their place in that file: the first has the
code alone, the next a 1 after it.
"""

from __future__ import annotations

import json
import unicodedata
import zipfile
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from config.errors import UserError
from data.languages.packages import MissingTool, missing_model, missing_package

CODES_FILE = "Cangjie5_TC.json"
_END = "[cj_.]"


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
    return {
        character: _tokens(code, places[code].index(character)) for character, code in code_of.items()
        if len(character) == 1 and unicodedata.category(character) == "Lo"
    }


def _tokens(code: str, place: int) -> str:
    return "".join(f"[cj_{key}]" for key in code + (str(place) if place else "")) + _END


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
