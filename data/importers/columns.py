"""What columns and keys are called in the tables that people have."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from data.manifest import HELD_OUT, TRAIN

COLUMNS = {
    "audio": ("audio", "audio_path", "audio_file", "audio_filepath", "audio_filename", "path", "file", "file_name",
              "filename", "file_path", "filepath", "wav", "wav_path", "wav_file", "mp3", "clip"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text", "text_normalized",
             "raw_transcription", "text_original", "original_text"),
    "spelled": ("normalized", "normalised", "normalized_transcription", "normalized transcription",
                "normalized_text", "text_normalized"),
    "id": ("id", "utterance_id", "utt_id", "segment_id", "index"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "client_id", "spk", "spk_id"),
    "split": ("split", "set", "subset"),
    "begin": ("begin", "begin_s", "begin_time", "start", "start_s", "start_time", "offset"),
    "end": ("end", "end_s", "end_time", "stop"),
    "duration": ("duration", "duration_s"),
}
SPLIT_NAMES = {
    "train": TRAIN, "training": TRAIN, "held_out": HELD_OUT, "held-out": HELD_OUT, "heldout": HELD_OUT,
    "test": HELD_OUT, "validation": HELD_OUT, "valid": HELD_OUT, "dev": HELD_OUT, "val": HELD_OUT, "eval": HELD_OUT,
}


def has(names: Collection[str], meaning: str) -> bool:
    """Whether one of `names` means that."""
    return any(name in COLUMNS[meaning] for name in names)


def names_clips(names: Collection[str]) -> bool:
    """Whether these columns are enough for a table of recordings."""
    return has(names, "text") and (has(names, "audio") or has(names, "id"))


def by_meaning(record: Mapping[str, object]) -> dict[str, str]:
    """The values of a record under the names of `COLUMNS`; the first of each meaning that is not empty."""
    found = {}
    for meaning, names in COLUMNS.items():
        value = next((value for name in names if (value := record.get(name)) not in (None, "")), None)
        if isinstance(value, Mapping):  # a hub's audio: {"path": ..., "bytes": ...}
            value = value.get("path")
        if value is not None and not isinstance(value, list):
            found[meaning] = str(value)
    return found


def times(values: Mapping[str, str]) -> tuple[float, float | None]:
    """Begin and end in seconds; a duration counts only from a begin. `ValueError` names what is no time."""
    begin = _seconds(values.get("begin", "0"))
    if "end" in values:
        return begin, _seconds(values["end"])
    if "begin" in values and "duration" in values:
        return begin, begin + _seconds(values["duration"])
    return begin, None


def _seconds(text: str) -> float:
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is no time in seconds")
    return value
