"""Datasets of many formats as rows: the format is recognised, its reader parses it, recordings are looked up.

Every row that cannot be used becomes a `SkippedRow` with its place and the reason. Texts stay as given. No recording is
opened here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from config.errors import UserError, join_names
from config.foreign import reading
from data.importers.recognise import TABLE_NAMES, WANTED, recognise
from data.importers.rows import (
    AUDIO_SUFFIXES,
    FILM_SUFFIXES,
    SOUND_SUFFIXES,
    ImportedSource,
    RecordingLookup,
    Reread,
    SkippedRow,
    SourceEntry,
    SourceNote,
    SourceRow,
    is_audio,
    is_film,
    notation_of,
    resolve_rows,
    safe_id,
    unused_id,
)

__all__ = ["AUDIO_SUFFIXES", "FILM_SUFFIXES", "SOUND_SUFFIXES", "TABLE_NAMES", "WANTED", "ImportedSource",
           "Reread", "SkippedRow", "SourceEntry", "SourceNote", "SourceRow", "import_source", "is_audio", "is_film",
           "safe_id", "unused_id"]

_FIRST = 20  # entries whose texts are looked at


def import_source(source: Path, language: str = "", *, foreign: bool = False, title: str = "") -> ImportedSource:
    """Read a folder or a file; raises `UserError` when there is nothing that could be a dataset.

    `language` selects among subtitles, and among rows that name theirs. `foreign`: the source was downloaded, so it may
    not name absolute paths. `title`: the archive that `source` was unpacked from.
    """
    with reading(source, "Look at the file; if it is damaged, get it again."):
        return _import(source, language, foreign, title)


def _import(source: Path, language: str, foreign: bool, title: str) -> ImportedSource:

    folder, forms = recognise(source, language)
    form, alternatives = forms[0], forms[1:]
    notes = [f"Recognised as {form.title}: {form.description}."]
    if alternatives:
        also = "; ".join(f"{alternative.title} ({alternative.description})" for alternative in alternatives)
        notes.append(f"It could be read as {also} too. {form.title} was taken, because {form.reason}.")

    def read() -> Iterator[SourceEntry]:
        with reading(source, "Look at the file; if it is damaged, get it again."):
            lookup = RecordingLookup(folder, foreign=foreign, title=title)
            yield from resolve_rows(form.read(), lookup, language)

    # The first entries show whether the source has rows, and what is unusual about them.
    entries = Reread(read)
    first_entries = list(islice(entries, _FIRST))
    if not first_entries:
        raise UserError(f"{source} has no rows.", "Write one recording a line: its audio file and its text.")

    # Phonemes in place of text and tiers in place of speakers are common surprises, so both are noted.
    texts = [entry.text for entry in first_entries if isinstance(entry, SourceRow)]
    notation = notation_of(texts)
    if notation:
        notes.append(f"Its texts are {notation}, such as {texts[0][:40]!r}: who learns these reads no ordinary text.")
    voices = dict.fromkeys(entry.speaker for entry in first_entries
                           if isinstance(entry, SourceRow) and " tier " in entry.location)
    if len(voices) > 1:
        notes.append(f"Its tiers are taken for speakers: {join_names([repr(voice) for voice in voices], 4)}.")
    return ImportedSource(entries, form.title, tuple(notes))
