"""Russian: stress marks (U+0301 after the vowel), by `russian-text-stresser`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from data.languages.packages import missing_model, missing_package

_COMMIT = "9e064c815373ef6f0360dd97b0d0fc37b52d256f"
_INSTALL = f'"russian-text-stresser @ git+https://github.com/Vuizur/add-stress-to-epub@{_COMMIT}"'


def stress(text: str, files: Mapping[str, bytes]) -> str:
    """`text` (lower case, NFKD) with the stress of each word that the dictionary knows."""
    return str(_stresser().stress_text(text))


@cache
def _stresser() -> Any:
    try:
        from russian_text_stresser.text_stresser import RussianTextStresser
    except ImportError as error:
        raise missing_package("Russian", "russian-text-stresser", _INSTALL) from error
    try:
        return RussianTextStresser()
    except OSError as error:  # it fetches its dictionary from GitHub, and looks for a spaCy model
        raise missing_model(
            "Russian", "russian-text-stresser", error,
            "It fetches its dictionary from GitHub at the first use: try again with a network, "
            "and install spaCy's ru_core_news_sm if that is what is missing.",
        ) from error
