"""Recordings with a text file of the same name beside each: plain text, subtitles, lyrics or labels.

The content decides what a text file is: a `.txt` may also hold Audacity labels or subtitles. A name may contain the
language, as in `film.am.srt`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config.errors import UserError
from data.importers import annotation_files, subtitles, text_files
from data.importers.rows import (
    AUDIO_FOLDERS,
    ParsedItem,
    ParsedUtterance,
    SkippedRow,
    is_audio,
    split_of_folders,
)

TIMED_SUFFIXES = (".srt", ".vtt", ".lrc", ".textgrid", ".eaf")
SUFFIXES = (*TIMED_SUFFIXES, ".txt", ".lab", ".json")
_LONGEST_TEXT = 20_000  # characters of one recording's plain text
_TIMIT = re.compile(r"\s*0\s+\d{4,7}\s+(\D.*)")  # its first and last sample stand before the text
_HTK = re.compile(r"\s*\d+\s+\d+\s+\S")
_LONGEST_LANGUAGE = 12  # letters of a language in a file's name


@dataclass(frozen=True)
class SidecarKind:
    """The format of a sidecar; `read` gets its path and the recording's name."""

    title: str
    read: Callable[[Path, str], Iterator[ParsedItem]]
    timed: bool = True


def _plain(path: Path, audio: str) -> Iterator[ParsedItem]:
    try:
        words = text_files.read(path, _LONGEST_TEXT)
    except UserError as error:
        yield SkippedRow(audio, error.message)
        return
    lines = [line for line in words.splitlines() if line.strip()]
    # TIMIT writes the first and last sample before the text.
    timit = _TIMIT.fullmatch(lines[0]) if len(lines) == 1 else None
    if timit:
        words = timit[1]
    elif len(lines) > 1 and all(map(_HTK.match, lines)):
        yield SkippedRow(audio, f"{path.name} beside it holds labels with times (HTK), which are no text to speak")
        return
    utterance = " ".join(words.split())
    if utterance:
        yield ParsedUtterance(audio, audio, utterance)
    else:
        yield SkippedRow(audio, f"there is nothing in {path.name} beside it")


SRT = SidecarKind("subtitles (SRT)", subtitles.read_subtitles)
VTT = SidecarKind("subtitles (WebVTT)", subtitles.read_subtitles)
LRC = SidecarKind("lyrics (LRC)", subtitles.read_lrc)
LABELS = SidecarKind("Audacity labels", subtitles.read_labels)
TEXTGRID = SidecarKind("TextGrid (Praat)", annotation_files.read_textgrid)
ELAN = SidecarKind("ELAN", annotation_files.read_elan)
JSON = SidecarKind("JSON beside each recording", annotation_files.read_json)
PLAIN = SidecarKind("a text beside each recording", _plain, timed=False)


def kind_of(path: Path) -> SidecarKind:
    """The format of the file at `path`, by its content, then by its suffix."""
    start = text_files.head(path)
    if start.startswith("WEBVTT"):
        return VTT
    named = {".textgrid": TEXTGRID, ".eaf": ELAN, ".json": JSON}.get(path.suffix.lower())
    if named is not None:
        return named
    # The content decides, as formats share suffixes.
    if subtitles.looks_like_subtitles(start):
        return SRT
    if subtitles.looks_like_lrc(start):
        return LRC
    if subtitles.looks_like_labels(start):
        return LABELS
    return {".srt": SRT, ".vtt": VTT, ".lrc": LRC}.get(path.suffix.lower(), PLAIN)


def walk_folders(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """`folder` and each folder below it with its sorted file names; links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        yield Path(place), sorted(name for name in names if not name.startswith("."))


def speaker_folders(folder: Path) -> frozenset[str]:
    """The top folders of `folder` if each can be a speaker; else none.

    All recordings must lie in one of several, at least two in each (a single one has no prompt), and no folder may have
    the name of a split or a usual name for a folder of audio.
    """
    counts: Counter[str] = Counter()
    for place, names in walk_folders(folder):
        parts = place.relative_to(folder).parts
        counts[parts[0] if parts else ""] += sum(map(is_audio, names))
    folders = {name for name, count in counts.items() if count}
    unlike = any(name == "" or name.lower() in AUDIO_FOLDERS or split_of_folders([name]) or counts[name] < 2
                 for name in folders)
    return frozenset() if unlike or len(folders) < 2 else frozenset(folders)


def read_sidecars(folder: Path, language: str = "", speakers: Collection[str] = ()) -> Iterator[ParsedItem]:
    """The utterances of every recording with a sidecar; files without a partner are skipped. `speakers`: folders."""
    tops = {split_of_folders([path.name]) for path in folder.iterdir() if path.is_dir()}
    named = "train" in tops and len(tops - {""}) > 1
    for item in _read_sidecars(folder, language):
        if isinstance(item, ParsedUtterance):
            top, *inside = Path(item.audio).parts
            item = replace(item, speaker=item.speaker or (top if top in speakers else ""),
                           split=split_of_folders([top]) if named and inside else "")
        yield item


def _read_sidecars(folder: Path, language: str) -> Iterator[ParsedItem]:
    for place, names in walk_folders(folder):
        recordings = [name for name in names if is_audio(name)]
        texts = [name for name in names if name.lower().endswith(SUFFIXES)]
        used = set()
        by_stem = by_stems(texts)
        for name in recordings:
            location = str((place / name).relative_to(folder))
            matches = matching_sidecars(name, by_stem, recordings, texts, language)
            if not matches:
                yield SkippedRow(location, f"there is no {os.path.splitext(name)[0]}.txt beside it")
                continue

            # The best text is read; other texts of the recording are named.
            used.update(matches)
            beside = [other for other in matches[1:] if other.lower().endswith(".json")]
            speaker = annotation_files.speaker_of(place / beside[0]) if beside else ""
            for item in kind_of(place / matches[0]).read(place / matches[0], location):
                if speaker and isinstance(item, ParsedUtterance) and not item.speaker:
                    item = replace(item, speaker=speaker)
                yield item
            for other in (name for name in matches[1:] if name not in beside):
                yield SkippedRow(str((place / other).relative_to(folder)), f"{matches[0]} was taken for {name}")

        # A text without a recording is reported too.
        for name in texts:
            if name not in used:
                location = str((place / name).relative_to(folder))
                yield SkippedRow(location, "there is no recording of the same name beside it")


def by_stems(texts: Sequence[str]) -> dict[str, list[str]]:
    """Texts by the possible names of their recording."""
    texts_of: dict[str, list[str]] = {}
    for name in texts:
        stem = os.path.splitext(name)[0].casefold()
        shorter, _, tag = stem.rpartition(".")  # the stem without its language
        for possible_stem in [stem, shorter] if shorter and len(tag) <= _LONGEST_LANGUAGE else [stem]:
            texts_of.setdefault(possible_stem, []).append(name)
    return texts_of


def matching_sidecars(recording: str, by_stem: dict[str, list[str]], recordings: Sequence[str], texts: Sequence[str],
                      language: str) -> list[str]:
    """The texts of a recording, the best first; a single text and a single recording may differ in name."""
    candidates = by_stem.get(os.path.splitext(recording)[0].casefold(), [])
    if not candidates and len(recordings) == len(texts) == 1 and texts[0].lower().endswith((*TIMED_SUFFIXES, ".txt")):
        candidates = list(texts)
    return sorted(candidates, key=lambda name: (_other_language(name, recording, language), next(
        index for index, suffix in enumerate(SUFFIXES) if name.lower().endswith(suffix)), name))


def _other_language(name: str, recording: str, language: str) -> int:
    """0 if the name contains the language, 1 without a language, 2 for another one."""
    tag = os.path.splitext(name)[0].casefold().removeprefix(os.path.splitext(recording)[0].casefold()).strip(".")
    if not tag:
        return 1
    return 0 if tag == language or tag.split("-")[0] == language.split("-")[0] else 2
