"""Japanese: words with kanji in hiragana, by `pykakasi`; kana stays as it is written."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from data.languages.packages import missing_package

_KANJI = range(0x4E00, 0xA000)
_PARTICLES = ("は", "へ")  # a reading that begins so is set off by a space, or it would sound like the particle


def kana(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (NFKD) without kanji, NFKD again."""
    return unicodedata.normalize("NFKD", "".join(_reading(word) for word in _converter().convert(text)))


def _reading(word: dict[str, str]) -> str:
    if not any(ord(character) in _KANJI for character in word["orig"]):
        return word["orig"]
    reading = word["hira"]
    return f" {reading}" if reading.startswith(_PARTICLES) else reading


@cache
def _converter() -> Any:
    try:
        from pykakasi import kakasi
    except ImportError as error:
        raise missing_package("Japanese", "pykakasi", "pykakasi==2.3.0") from error
    return kakasi()
