"""Small deterministic stand-ins for language packages whose models come from the network.

The same ones serve the published package and ours, so that everything around them is compared.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

VOWELS = "аеиоуыэюя"


class Segmenter:
    """As `spacy_pkuseg.pkuseg`: words of two characters."""

    def cut(self, text: str) -> list[str]:
        return [part[at:at + 2] for part in text.split() for at in range(0, len(part), 2)]


class Dicta:
    """As `dicta_onnx.Dicta`, which wants a path: a point after each Hebrew letter."""

    def __init__(self, model_path: str) -> None:
        self.model_path = model_path

    def add_diacritics(self, text: str) -> str:
        return re.sub("([א-ת])", "\\1\u05b8", text)


class Stresser:
    """As `russian_text_stresser`: stress on the first vowel of each word."""

    def stress_text(self, text: str) -> str:
        return re.sub(rf"(?<!\w)([^\W{VOWELS}]*[{VOWELS}])", "\\1\u0301", text)


def modules() -> dict[str, ModuleType]:
    """Modules by the names under which the packages are imported."""
    parts: dict[str, dict[str, object]] = {
        "spacy_pkuseg": {"pkuseg": Segmenter}, "dicta_onnx": {"Dicta": Dicta}, "russian_text_stresser": {},
        "russian_text_stresser.text_stresser": {"RussianTextStresser": Stresser},
    }
    found = {}
    for name, contents in parts.items():
        found[name] = ModuleType(name)
        vars(found[name]).update(contents)
    return found


def install() -> None:
    """Put them where imports look."""
    sys.modules.update(modules())
