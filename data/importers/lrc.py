"""LRC lyrics: `[mm:ss.xx] text` a line; a line lasts until the next one begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance

_STAMP = re.compile(r"\[(\d{1,3}):(\d{1,2})(?:[.:](\d{1,3}))?\]")
_TAG = re.compile(r"\[([A-Za-z#]+):(.*)\]")
_WORD = re.compile(r"<\d{1,3}:\d{1,2}(?:[.:]\d{1,3})?>")
_MOST_STAMPS = 100_000


def looks_like(head: str) -> bool:
    """Whether lines begin with stamps."""
    lines = [line.strip() for line in head.splitlines() if line.strip()][:50]
    stamped = sum(bool(_STAMP.match(line)) for line in lines)
    return stamped > 0 and stamped + sum(bool(_TAG.match(line)) for line in lines) >= 0.8 * len(lines)


def read(path: Path, audio: str) -> Iterator[Found]:
    """The lines of the lyrics at `path`, which belong to the recording `audio`."""
    stamps: list[tuple[float, str, str]] = []  # seconds, where, text
    shift_s = 0.0
    for number, line in text.lines(path):
        where = f"{path.name} line {number}"
        line = line.strip().removeprefix("\ufeff")
        rest, at = line, 0
        begun = []
        while match := _STAMP.match(line, at):
            begun.append(_seconds(match))
            at = match.end()
            while line[at:at + 1] == " ":
                at += 1
            rest = line[at:]
        stamps += [(second, where, " ".join(_WORD.sub("", rest).split())) for second in begun]
        if len(stamps) > _MOST_STAMPS:
            yield Skipped(where, f"is after the first {_MOST_STAMPS} lines, more than a recording has")
            return
        tag = _TAG.fullmatch(line)
        if not begun and tag and tag[1].lower() == "offset":
            shift_s = _offset(tag[2])
        elif line and not begun and not tag:
            yield Skipped(where, f"has no stamp such as [01:23.45]: {line[:60]!r}")
    stamps.sort(key=lambda stamp: stamp[0])
    for index, (second, where, words) in enumerate(stamps):
        later = next((other for other, _, _ in stamps[index + 1:index + 50] if other > second), None)
        if words:  # a stamp without words ends the line before
            end_s = None if later is None else max(0.0, later - shift_s)
            yield Utterance(where, audio, words, begin_s=max(0.0, second - shift_s), end_s=end_s)


def _seconds(match: re.Match[str]) -> float:
    minutes, seconds, fraction = match.groups()
    return int(minutes) * 60 + int(seconds) + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def _offset(value: str) -> float:
    """Seconds by which the lines come earlier, from `[offset:+500]` in milliseconds."""
    try:
        return int(value.strip()) / 1000
    except ValueError:
        return 0.0
