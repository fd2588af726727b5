"""Datasets of many formats as rows: the format is recognised, its reader parses it, recordings are looked up.

Every row that cannot be used becomes a `SkippedRow` with its place and the reason. Texts stay as given. No recording is
opened here. `KNOWN_FORMS` lists the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from config.errors import UserError
from data.importers.recognise import KNOWN_FORMS, TABLE_NAMES, recognise
from data.importers.rows import (
    AUDIO_SUFFIXES,
    FILM_SUFFIXES,
    SOUND_SUFFIXES,
    ImportedSource,
    RecordingLookup,
    SkippedRow,
    SourceEntry,
    SourceRow,
    is_audio,
    resolve_rows,
    safe_id,
    unused_id,
)

__all__ = ["AUDIO_SUFFIXES", "FILM_SUFFIXES", "KNOWN_FORMS", "SOUND_SUFFIXES", "TABLE_NAMES", "ImportedSource",
           "SkippedRow",
           "SourceEntry", "SourceRow", "import_source", "is_audio", "safe_id", "unused_id"]


class _Reread:
    """Entries that are read again on each pass."""

    def __init__(self, read: Callable[[], Iterator[SourceEntry]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[SourceEntry]:
        return self._read()


def import_source(source: Path, language: str = "", *, foreign: bool = False) -> ImportedSource:
    """Read a folder or a file; raises `UserError` when there is nothing that could be a dataset.

    `language` selects among subtitles. `foreign`: the source was downloaded, so it may not name absolute paths.
    """
    folder, forms = recognise(source, language)
    form, others = forms[0], forms[1:]
    notes = [f"Recognised as {form.title}: {form.what}."]
    if others:
        also = "; ".join(f"{other.title} ({other.what})" for other in others)
        notes.append(f"It could be read as {also} too. {form.title} was taken, because {form.why}.")
    entries = _Reread(lambda: resolve_rows(form.read(), RecordingLookup(folder, foreign=foreign)))
    if next(iter(entries), None) is None:
        raise UserError(f"{source} has no rows.", "Write one recording a line: its audio file and its text.")
    return ImportedSource(entries, form.title, tuple(notes))
