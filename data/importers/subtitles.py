"""SubRip (SRT) and WebVTT: blocks of a line of times and lines of text, each a part of a film or recording.

Blocks may lack their index, times may have a comma or a dot and leave the hours out, and positions may follow them. A
block that cannot be read is skipped under its number and line; so is one that describes a sound, such as `[music]`.
Shapes: https://www.w3.org/TR/webvtt1/ and what players accept as SRT, which has no standard.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance

_CLOCK = r"(?:(\d{1,3})\s*:\s*)?(\d{1,2})\s*:\s*(\d{1,2})(?:\s*[,.:]\s*(\d{1,3}))?"
TIMES = re.compile(rf"^\s*{_CLOCK}\s*-{{1,3}}>\s*{_CLOCK}(?:\s|$)")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]{1,80})>")
MARKUP = re.compile(r"<(?:/?[A-Za-z][^<>]{0,200}|[\d:.]+)>|\{\\[^{}]{0,200}\}")
_NOT_SPOKEN = re.compile(r"[\[(（【♪♫*#].*[\])）】♪♫*#]", re.DOTALL)
_ASIDE = ("NOTE", "STYLE", "REGION", "X-TIMESTAMP-MAP")  # blocks of WebVTT that are no cues
_MOST_LINES = 200  # of one block


def looks_like(head: str) -> bool:
    """Whether there is a line of times near the start."""
    return any("->" in line and TIMES.match(line) for line in head.splitlines()[:200])


def read(path: Path, audio: str) -> Iterator[Found]:
    """The blocks of the subtitles at `path`, which belong to the recording `audio`."""
    for number, (first, block) in enumerate(_blocks(text.lines(path)), start=1):
        found = _cue(block, f"{path.name} block {number} (line {first})", audio)
        if found is not None:
            yield found


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """The line number and the lines of each block: parted by blank lines, or by the next line of times."""
    block: list[str] = []
    first = 1
    has_times = False
    for number, line in lines:
        line = line.strip().removeprefix("\ufeff")
        again = has_times and bool(TIMES.match(line))
        if (not line or again or len(block) >= _MOST_LINES) and block:
            index = [block.pop()] if again and block[-1].isdecimal() and not TIMES.match(block[-2]) else []
            yield first, block
            block, has_times = index, False
            first = number - len(index)
        if line:
            first = first if block else number
            block.append(line)
            has_times = has_times or bool(TIMES.match(line))
    if block:
        yield first, block


def _cue(block: list[str], where: str, audio: str) -> Found | None:
    """A block as an utterance; None for the head and the notes of WebVTT."""
    if block[0].startswith("WEBVTT") or block[0].split(" ")[0].split("=")[0] in _ASIDE:
        return None
    at = next((index for index, line in enumerate(block[:2]) if TIMES.match(line)), None)
    if at is None:
        return Skipped(where, f"has no line of times: {block[min(1, len(block) - 1)][:60]!r}")
    match = TIMES.match(block[at])
    assert match is not None
    begin_s, end_s = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
    if end_s <= begin_s:
        return Skipped(where, f"ends at {end_s:g} s, not after it begins at {begin_s:g} s")
    joined = " ".join(block[at + 1:])
    voice = _VOICE.search(joined)
    spoken = " ".join(html.unescape(MARKUP.sub("", joined)).split())
    if not spoken:
        return Skipped(where, "has no text")
    if _NOT_SPOKEN.fullmatch(spoken):
        return Skipped(where, f"describes a sound and is not spoken: {spoken[:60]!r}")
    return Utterance(where, audio, spoken, speaker=voice[1].strip() if voice else "", begin_s=begin_s, end_s=end_s)


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
