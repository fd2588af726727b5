"""Text with times: SubRip (SRT), WebVTT, LRC lyrics and Audacity labels, each a part of a recording.

SRT and WebVTT (https://www.w3.org/TR/webvtt1/; SRT has no standard): blocks may lack their index, times may have a
comma or a dot and omit the hours, and positions may follow them. A block that cannot be parsed is skipped with its
number and line, and so is one that describes a sound, such as `[music]`. (pysubs2 drops bad blocks without a word.)
Rolling captions, as YouTube makes them, show each line twice: the one that was the last of the cue before is dropped.
Live captions grow word by word: the cues of one line are read as one.
LRC: `[mm:ss.xx] text` a line, which lasts until the next one begins.
Audacity: begin, end (seconds) and text, separated by tabs; lines of frequencies are ignored.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from data.importers import text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, SourceNote

_CLOCK = r"(?:(\d{1,3})\s*:\s*)?(\d{1,2})\s*:\s*(\d{1,2})(?:\s*[,.:]\s*(\d{1,3}))?"
_TIMES = re.compile(rf"^\s*{_CLOCK}\s*-{{1,3}}>\s*{_CLOCK}(?:\s|$)")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]{1,80})>")
_MARKUP = re.compile(r"<(?:/?[A-Za-z][^<>]{0,200}|[\d:.]+)>|\{\\[^{}]{0,200}\}")
_NOT_SPOKEN = re.compile(r"[\[(（【♪♫*#].*[\])）】♪♫*#]", re.DOTALL)
_NOT_CUES = ("NOTE", "STYLE", "REGION", "X-TIMESTAMP-MAP")  # blocks of WebVTT that are no cues
_MAX_BLOCK_LINES = 200
_STAMP = re.compile(r"\[(\d{1,3}):(\d{1,2})(?:[.:](\d{1,3}))?\]")
_TAG = re.compile(r"\[([A-Za-z#_]+):(.*)\]")
_MAX_STAMPS = 100_000
_LABEL = re.compile(r"^\s*(\d+(?:[.,]\d+)?)\t(\d+(?:[.,]\d+)?)(?:\t(.*))?$")


def looks_like_subtitles(head: str) -> bool:
    """Whether a line of times stands near the start."""
    return any("->" in line and _TIMES.match(line) for line in head.splitlines()[:200])


def read_subtitles(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The blocks of the subtitles at `path`, which belong to the recording `audio`."""
    def read() -> Iterator[_Cue | SkippedRow]:
        return _grown(_cues(path)) if is_growing else _cues(path)

    is_growing = False
    is_rolling = _is_rolling(read())
    if not is_rolling and _growing_cues(read()) > 0:
        # Each cue that only grew is one with the last; that one may have the line before above it.
        is_growing = True
        is_rolling = _is_rolling(read())
        yield SourceNote(path.name, f"growing captions: {_growing_cues(_cues(path))} cues that showed the beginning of "
                         "the cue behind them were taken out")

    previous, removed = _Cue("", 0.0, 0.0, ()), 0
    for item in read():
        if isinstance(item, SkippedRow):
            yield item
            continue

        cue, lines = item, item.lines
        # Rolling captions repeat lines of the cue before.
        if is_rolling:
            repeated = _repeated_lines(previous, cue)
            lines = lines[repeated:]
            removed += repeated
            previous = cue
            if repeated and not "".join(map(_plain, lines)):
                # The cue shows only what the previous cue showed.
                continue
        yield _utterance(cue, lines, audio)
    if removed:
        lines_of = f"{removed} line{'s' * (removed != 1)}"
        yield SourceNote(path.name, f"rolling captions: {lines_of} that the cue before had shown were taken out")


@dataclass(frozen=True)
class _Cue:
    """A block with times; its lines still have their tags."""

    location: str
    begin_s: float
    end_s: float
    lines: tuple[str, ...]


_CONTIGUOUS_S = 0.1  # between two cues of rolling captions
_ROLLING_SHARE = 0.3  # share of the cues


def _is_rolling(items: Iterable[_Cue | SkippedRow]) -> bool:
    """Whether cue after cue begins with the last line of the one before."""
    cues = repeating = 0
    previous = _Cue("", 0.0, -1.0, ())
    for cue in items:
        if isinstance(cue, _Cue):
            cues += 1
            # A line alone may be spoken twice; one with another below it has rolled up.
            repeating += _repeated_lines(previous, cue) > 0 and (len(cue.lines) > 1 or len(previous.lines) > 1
                                                               or cue.end_s - cue.begin_s < _SHORT_S)
            previous = cue
    return repeating > 1 and repeating >= _ROLLING_SHARE * cues


_SHORT_S = 0.05
_GROWING_SHARE = 0.5  # share of the cues: in live captions nearly all grow, in a lesson or a song some


def _grows(previous: _Cue, cue: _Cue) -> bool:
    """Whether a cue shows the lines of the one before, with more in the last one, and without a pause between them."""
    earlier, lines = [*map(_plain, previous.lines)], [*map(_plain, cue.lines)]
    if cue.begin_s > previous.end_s + _CONTIGUOUS_S or len(earlier) != len(lines) or not earlier or not earlier[-1]:
        return False
    return earlier[:-1] == lines[:-1] and lines[-1].startswith(f"{earlier[-1]} ")


def _growing_cues(items: Iterable[_Cue | SkippedRow]) -> int:
    """How many cues grow into the one behind them; 0 if they are few, as where a word is said twice."""
    cues = growing = 0
    previous = _Cue("", 0.0, -1.0, ())
    for cue in items:
        if isinstance(cue, _Cue):
            cues += 1
            growing += _grows(previous, cue)
            previous = cue
    return growing if growing > 1 and growing >= _GROWING_SHARE * cues else 0


def _grown(items: Iterable[_Cue | SkippedRow]) -> Iterator[_Cue | SkippedRow]:
    """Each cue that grows into others as one cue, which begins with the first and has the text of the last."""
    whole: _Cue | None = None
    for item in items:
        if isinstance(item, SkippedRow):
            yield item
        elif whole is not None and _grows(whole, item):
            whole = _Cue(whole.location, whole.begin_s, item.end_s, item.lines)
        else:
            if whole is not None:
                yield whole
            whole = item
    if whole is not None:
        yield whole


def _repeated_lines(previous: _Cue, cue: _Cue) -> int:
    """How many lines at the start of a cue are the last ones of the cue before, which ends where this one begins."""
    if cue.begin_s > previous.end_s + _CONTIGUOUS_S:
        return 0
    earlier, lines = [*map(_plain, previous.lines)], [*map(_plain, cue.lines)]
    longest = min(len(earlier), len(lines))
    return next((count for count in range(longest, 0, -1) if earlier[-count:] == lines[:count]), 0)


def _plain(line: str) -> str:
    """A line as it is shown, without tags."""
    return " ".join(html.unescape(_MARKUP.sub("", line)).split())


def _cues(path: Path) -> Iterator[_Cue | SkippedRow]:
    for number, (first_line, block) in enumerate(_blocks(text_files.lines(path)), start=1):
        cue = _cue(block, f"{path.name} block {number} (line {first_line})")
        if cue is not None:
            yield cue


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """First line number and lines of each block: blocks end at an empty line or before the next line of times.

    A line of white space is not empty: in WebVTT it is text, and yt-dlp writes one into every first cue.
    """
    block: list[str] = []
    first_line = 1
    has_times = False
    for number, raw_line in lines:
        line = raw_line.strip().removeprefix("\ufeff")
        again = has_times and bool(_TIMES.match(line))
        if (not raw_line.strip("\r\n") or again or len(block) >= _MAX_BLOCK_LINES) and block:
            # The number of a cue belongs to the next block.
            index = [block.pop()] if again and block[-1].isdecimal() and not _TIMES.match(block[-2]) else []
            yield first_line, block
            block, has_times = index, False
            first_line = number - len(index)
        if line:
            first_line = first_line if block else number
            block.append(line)
            has_times = has_times or bool(_TIMES.match(line))
    if block:
        yield first_line, block


def _cue(block: list[str], location: str) -> _Cue | SkippedRow | None:
    """A block as a cue; None for the header and the notes of WebVTT."""
    if block[0].startswith("WEBVTT") or block[0].split(" ")[0].split("=")[0] in _NOT_CUES:
        return None
    times_index = next((index for index, line in enumerate(block[:2]) if _TIMES.match(line)), None)
    if times_index is None:
        return SkippedRow(location, f"has no line of times: {block[min(1, len(block) - 1)][:60]!r}")
    match = _TIMES.match(block[times_index])
    assert match is not None
    begin_s, end_s = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
    if end_s <= begin_s:
        return SkippedRow(location, f"ends at {end_s:g} s, not after it begins at {begin_s:g} s")
    return _Cue(location, begin_s, end_s, tuple(block[times_index + 1:]))


def _utterance(cue: _Cue, lines: Sequence[str], audio: str) -> ParsedItem:
    """Lines of a cue as an utterance."""
    joined = " ".join(lines)
    voice = _VOICE.search(joined)
    utterance = " ".join(html.unescape(_MARKUP.sub("", joined)).split())
    if not utterance:
        return SkippedRow(cue.location, "has no text")
    if _NOT_SPOKEN.fullmatch(utterance):
        return SkippedRow(cue.location, f"describes a sound and is not spoken: {utterance[:60]!r}")
    speaker = voice[1].strip() if voice else ""
    return ParsedUtterance(cue.location, audio, utterance, speaker=speaker, begin_s=cue.begin_s, end_s=cue.end_s)


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    seconds_s = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return seconds_s + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def looks_like_lrc(head: str) -> bool:
    """Whether lines begin with time stamps."""
    lines = [line.strip() for line in head.splitlines() if line.strip()][:50]
    stamped = sum(bool(_STAMP.match(line)) for line in lines)
    return stamped > 0 and stamped + sum(bool(_TAG.match(line)) for line in lines) >= 0.8 * len(lines)


def read_lrc(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The lines of the lyrics at `path`, which belong to the recording `audio`."""
    stamps: list[tuple[float, str, str]] = []  # seconds, location, text
    shift_s = 0.0
    for number, line in text_files.lines(path):
        location = f"{path.name} line {number}"
        line = line.strip().removeprefix("\ufeff")
        remainder, offset = line, 0
        stamped = []
        match = _STAMP.match(line)
        # A line may have several stamps, as a refrain has.
        while match:
            stamped.append(_seconds((None, *match.groups())))
            offset = match.end()
            while line[offset:offset + 1] == " ":
                offset += 1
            remainder = line[offset:]
            match = _STAMP.match(line, offset)
        stamps += [(second, location, " ".join(_MARKUP.sub("", remainder).split())) for second in stamped]
        if len(stamps) > _MAX_STAMPS:
            yield SkippedRow(location, f"is after the first {_MAX_STAMPS} lines, more than a recording has")
            return

        # Other tags, such as the title, are not spoken.
        tag = _TAG.fullmatch(line)
        if not stamped and tag and tag[1].lower() == "offset":  # milliseconds: `[offset:+500]`
            shift_s = int(tag[2]) / 1000 if re.fullmatch(r"\s*[+-]?\d{1,9}\s*", tag[2]) else 0.0
        elif line and not stamped and not tag:
            yield SkippedRow(location, f"has no stamp such as [01:23.45]: {line[:60]!r}")
    stamps.sort(key=lambda stamp: stamp[0])

    # Lines at one time are one sentence, which ends at the next stamp.
    at_once = [list(lines) for _, lines in groupby(stamps, key=lambda stamp: stamp[0])]
    for index, group in enumerate(at_once):
        words = " ".join(line for _, _, line in group if line)
        # A stamp without text ends the line before.
        if words:
            end_s = max(0.0, at_once[index + 1][0][0] - shift_s) if index + 1 < len(at_once) else None
            yield ParsedUtterance(group[0][1], audio, words, begin_s=max(0.0, group[0][0] - shift_s), end_s=end_s)


def looks_like_labels(head: str) -> bool:
    """Whether the first lines are labels."""
    lines = [line for line in head.splitlines()[:20] if line.strip() and not line.startswith("\\")]
    labels = [bool(_LABEL.match(line)) for line in lines]
    return bool(labels) and labels[0] and sum(labels) > len(labels) / 2


def read_labels(path: Path, audio: str) -> Iterator[ParsedItem]:
    """The labels at `path`, which belong to the recording `audio`."""
    for number, line in text_files.lines(path):
        location, line = f"{path.name} line {number}", line.strip("\r\n")
        # Audacity writes frequencies in lines that begin with a backslash.
        if not line.strip() or line.startswith("\\"):
            continue
        match = _LABEL.match(line)
        if match is None:
            yield SkippedRow(location, f"is not a label (begin, end and text, separated by tabs): {line[:60]!r}")
            continue

        begin_s, end_s = (float(value.replace(",", ".")) for value in match.groups()[:2])
        words = (match[3] or "").strip()
        if end_s == begin_s:
            yield SkippedRow(location, f"marks the point {begin_s:g} s; label a stretch from begin to end")
        elif end_s < begin_s:
            yield SkippedRow(location, f"ends at {end_s:g} s, before it begins at {begin_s:g} s")
        elif not words:
            yield SkippedRow(location, "has no text")
        else:
            yield ParsedUtterance(location, audio, words, begin_s=begin_s, end_s=end_s)
