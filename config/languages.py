"""Names of languages, by their codes."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "am": "Amharic", "ar": "Arabic", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "ms": "Malay", "nl": "Dutch", "no": "Norwegian", "om": "Oromo", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "so": "Somali", "sv": "Swedish", "sw": "Swahili", "ti": "Tigrinya",
    "tr": "Turkish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}


def language_name(code: str) -> str:
    """Such as "Amharic"; the code itself when it has no name here."""
    return NAMES.get(code, code)
