"""What an upload holds, before anything is imported: its amount, three clips to play, and what is odd about it.

All texts are read, and the recordings of up to `MEASURED` clips, evenly spread: seconds, where the import takes
minutes. Never loads torch.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import soundfile

from config import confinement
from config.errors import UserError
from core.sources import source_preview
from core.sources.archives import is_archive, unpack_archive
from core.sources.dataset_source import demo_dataset
from data.importers import SourceRow, import_source
from data.measures import Powers, Samples, clipped_share, frame_powers, silence_at_ends
from data.sound_files import read_sound, read_spans
from data.text_match import text_length

MEASURED = 16  # clips whose recordings are measured
PLAYED = 3  # clips that are offered to be played
_LEAST_S, _MOST_S = 2.0, 12.0  # Clips of this length are easy to learn from.
_EDGE_S = 0.4  # silence at an end that is worth trimming
QUIET_DB, _CLIPPED_SHARE = -35.0, 0.001  # dB of full scale, of the loud frames
_RARE = 3  # occurrences
_NAMED_CHARACTERS = 12
_LARGEST_FILE = 200_000_000  # bytes of a recording that is read for a look


@dataclass(frozen=True)
class PlayedClip:
    """A clip to play: its text, and its file in the folder that the assessment was written to."""

    text: str
    path: str
    duration_s: float
    speaker: str


@dataclass(frozen=True)
class SourceAssessment:
    """The facts of an upload. Counts of silent, quiet and clipped clips are of those that were `measured`."""

    clips: int
    is_whole: bool  # whether all entries were read; else only the first ones
    duration_s: float | None  # All clips, at the mean of the measured ones.
    measured: int
    unreadable: int
    silent_edges: int
    quiet: int
    clipped: int
    level_db: float | None  # median of the loud frames, of full scale
    short: int
    long: int
    speakers: int
    with_digits: int  # texts
    rare_characters: tuple[str, ...]
    played: tuple[PlayedClip, ...] = ()


def assess(source: str, language: str, folder: Path) -> SourceAssessment | None:
    """The facts of `source`, whose three clips are written to `folder`; None for one that cannot be read here.

    `UserError` for a source that is no dataset, as the preview says it.
    """
    with _rows(source, language) as rows:
        if not rows:
            return None
        chosen = _spread(rows, MEASURED)
        with _with_recordings(source, chosen) as readable:
            return _assess(rows, readable, folder)


def sample_clips(source: str, language: str, count: int, folder: Path) -> list[PlayedClip]:
    """`count` clips of one speaker as WAV files in `folder`, those of 3 to 12 s first; for a listener or a measurement.
    """
    with _rows(source, language) as rows:
        if not rows:
            raise UserError(f"{Path(source).name} has no clip with a text that can be read before the import.",
                            "Prepare it as a dataset, and name that.")
        speaker = Counter(row.speaker for row in rows).most_common(1)[0][0]
        chosen = _spread([row for row in rows if row.speaker == speaker], max(MEASURED, 4 * count))
        with _with_recordings(source, chosen) as readable:
            read = _read_all(readable)
    return _write(_best(read, count), folder)


def demo_clips(count: int) -> list[tuple[Path, str]]:
    """Path below its folder and text of some clips of the included demo."""
    folder = demo_dataset("am")
    rows = [entry for entry in import_source(folder, "am") if isinstance(entry, SourceRow)]
    return [(row.audio.relative_to(folder), row.text) for row in _spread(rows, count)]


@contextmanager
def _rows(source: str, language: str) -> Iterator[list[SourceRow]]:
    """The first entries of the source that have a recording and a text; none of one that is read by the import only."""
    place = str(demo_dataset(language)) if source == "demo" else source
    if source != "demo" and source_preview.unread(place):
        yield []
        return
    with source_preview.opened(place) as path:
        entries = islice(import_source(path, language, foreign=source_preview.is_foreign(place)),
                         source_preview.MOST_ENTRIES) if path else ()
        yield [entry for entry in entries if isinstance(entry, SourceRow) and entry.text.strip()]


def _spread(rows: Sequence[SourceRow], count: int) -> list[SourceRow]:
    """`count` of the rows, evenly spread."""
    if len(rows) <= count:
        return list(rows)
    return [rows[number * len(rows) // count] for number in range(count)]


@contextmanager
def _with_recordings(source: str, rows: Sequence[SourceRow]) -> Iterator[list[SourceRow]]:
    """The rows with recordings that can be read: those of an archive are unpacked, and only those."""
    if source == "demo":
        yield list(rows)
        return
    with confinement.opened(source, in_place=True) as path:
        if not (path.is_file() and is_archive(path)):
            yield list(rows)
            return
        with confinement.temporary_folder() as temporary:
            folder = temporary / path.name
            folder.mkdir()
            inside = {row.audio: _inside(row.audio, path.name) for row in rows}
            unpack_archive(path, folder, shutil.disk_usage(folder).free, only=frozenset(inside.values()))
            yield [replace(row, audio=folder / inside[row.audio]) for row in rows]


def _inside(audio: Path, archive: str) -> str:
    """The path of a recording below the folder into which its archive was unpacked, which is named like it."""
    parts = audio.parts
    place = parts.index(archive)
    return "/".join(parts[place + 1:])


def _read_all(rows: Sequence[SourceRow]) -> list[tuple[SourceRow, Samples, int]]:
    """The rows that can be read, with waveform (S,) and sample rate."""
    recordings = []
    for row in rows:
        try:
            if row.audio.stat().st_size > _LARGEST_FILE:
                continue
            sound = read_sound(row.audio)
            waveform, rate = sound.waveform, sound.facts.sample_rate
            if row.is_part:
                waveform = next(iter(read_spans(row.audio, [(row.begin_s, row.end_s or sound.facts.duration_s)])))
            if len(waveform):
                recordings.append((row, waveform, rate))
        except (UserError, OSError, StopIteration):
            continue
    return recordings


def loud_level(powers: Powers) -> float:
    """The level of the loud frames in dB of full scale, from frame powers (F,)."""
    return 10 * math.log10(max(float(np.percentile(powers, 95)), 1e-10))


def _assess(rows: Sequence[SourceRow], readable: Sequence[SourceRow], folder: Path) -> SourceAssessment:
    read = _read_all(readable)
    powers = [frame_powers(waveform, rate) for _, waveform, rate in read]
    levels = [loud_level(power) for power in powers]
    edges = [max(silence_at_ends(waveform, rate, power))
             for (_, waveform, rate), power in zip(read, powers, strict=True)]
    durations = [len(waveform) / rate for _, waveform, rate in read]

    texts = [row.text for row in rows]
    counts = Counter(filter(str.isalpha, "".join(texts).casefold()))
    rare = sorted(letter for letter, count in counts.items() if count < _RARE)

    return SourceAssessment(
        clips=len(rows), is_whole=len(rows) < source_preview.MOST_ENTRIES,
        duration_s=statistics.fmean(durations) * len(rows) if durations else None,
        measured=len(read), unreadable=len(readable) - len(read),
        silent_edges=sum(edge > _EDGE_S for edge in edges),
        quiet=sum(level < QUIET_DB for level in levels),
        clipped=sum(clipped_share(waveform) > _CLIPPED_SHARE for _, waveform, _ in read),
        level_db=statistics.median(levels) if levels else None,
        short=sum(duration < _LEAST_S for duration in durations),
        long=sum(duration > _MOST_S for duration in durations),
        speakers=len({row.speaker for row in rows}),
        with_digits=sum(any(map(str.isdigit, text)) for text in texts),
        rare_characters=tuple(rare[:_NAMED_CHARACTERS]) if len(texts) > _RARE * 10 else (),
        played=tuple(_write(_best(read, PLAYED), folder)),
    )


def _best(read: Sequence[tuple[SourceRow, Samples, int]], count: int) -> list[tuple[SourceRow, Samples, int]]:
    """`count` of the clips, those of a usual duration first, in their order."""
    def unusual(item: tuple[SourceRow, Samples, int]) -> bool:
        return not 3.0 <= len(item[1]) / item[2] <= _MOST_S or text_length(item[0].text) < 5

    usual = [item for item in read if not unusual(item)]
    pool = usual if len(usual) >= count else [*usual, *filter(unusual, read)]
    return [pool[number * len(pool) // count] for number in range(count)] if len(pool) > count else pool


def _write(clips: Sequence[tuple[SourceRow, Samples, int]], folder: Path) -> list[PlayedClip]:
    """The clips as 16-bit WAV files, which every browser plays."""
    folder.mkdir(parents=True, exist_ok=True)
    played_clips = []
    for number, (row, waveform, rate) in enumerate(clips):
        path = f"{number}.wav"
        soundfile.write(folder / path, np.clip(waveform, -1.0, 1.0), rate, subtype="PCM_16")
        played_clips.append(PlayedClip(row.text.strip(), path, round(len(waveform) / rate, 2), row.speaker))
    return played_clips
