"""A job's results under names that people read, with their units. Pure functions, without Gradio."""

from __future__ import annotations

import math
from collections.abc import Mapping

from config.languages import NAMES, language_name

_TITLES: Mapping[str, str] = {
    "train": "Clips to train on", "held_out": "Clips held out", "left_out": "Rows left out", "features": "Clips read",
    "features_failed": "Clips that could not be read", "state": "Outcome", "ref": "Reference", "size": "Tokens",
    "base_size": "Tokens of the base", "unknown_rate_before": "Unknown letters, before",
    "unknown_rate": "Unknown letters, now", "tokens_per_character_before": "Tokens a letter, before",
    "tokens_per_character": "Tokens a letter, now", "base_unchanged": "Old languages read as before",
    "old_rows_equal": "Old rows unchanged", "from_spelling": "Rows from their spelling",
    "from_mean": "Rows from the mean",
    "best_step": "Best step", "best_value": "Best value", "chosen_by": "Best by", "train_seconds": "Trained for",
    "seconds": "Took", "duration_s": "Length", "real_time_factor": "Seconds a second of speech", "megabytes": "Size",
    "bytes": "Size", "bytes_fetched": "Fetched", "minutes": "Length", "level_db": "Level", "error": "Misheard",
    "ready": "Ready to train", "features_alike": "Codes as in the cache", "checkpoint": "Size of a checkpoint",
    "spoken_s": "Spoken", "memory_bytes": "Memory", "training": "The training will take", "too_long": "Clips too long",
    "error_on_originals": "Misheard in recordings", "heard": "Heard", "cut": "Cut off", "not_tried": "Not tried",
}
_WHEN = {"before": "before", "after": "after", "original": "in recordings"}
_SHARES = ("unknown_rate_before", "unknown_rate", "features_alike")


def fact(name: str, value: object) -> tuple[str, str]:
    """The title and the words of one result."""
    return _title(name), _words(name, value)


def _title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    kind, _, rest = name.partition("_")
    if kind == "error":
        return _error_title(rest)
    return name.replace("_", " ").capitalize()


def _error_title(rest: str) -> str:
    """Of `error_am`, `error_am_before` or `error_originals_am`."""
    if rest.startswith("originals_"):
        return f"Misheard in recordings, {language_name(rest.removeprefix('originals_'))}"
    language, _, when = rest.partition("_")
    named = language_name(language) if language in NAMES else language
    return f"Misheard, {named}{f', {_WHEN.get(when, when)}' if when else ''}"


def _words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not measured" if name.startswith("error") else "–"
    if not isinstance(value, int | float):
        return str(value)
    if name.startswith("error") or name in _SHARES:
        return f"{value:.1%}"
    if name in ("bytes", "bytes_fetched", "memory_bytes"):
        return f"{value / 1e6:,.1f} MB"
    unit = {"megabytes": "MB", "minutes": "min", "duration_s": "s", "seconds": "s", "train_seconds": "s",
            "level_db": "dB",
            "spoken_s": "s"}.get(name, "")
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
