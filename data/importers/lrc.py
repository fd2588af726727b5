"""LRC lyrics: `[mm:ss.xx] text` a line; a line lasts until the next one begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance
from data.importers.subtitles import MARKUP

_STAMP = re.compile(r"\[(\d{1,3}):(\d{1,2})(?:[.:](\d{1,3}))?\]")
_TAG = re.compile(r"\[([A-Za-z#_]+):(.*)\]")
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
        stamps += [(second, where, " ".join(MARKUP.sub("", rest).split())) for second in begun]
        if len(stamps) > _MOST_STAMPS:
            yield Skipped(where, f"is after the first {_MOST_STAMPS} lines, more than a recording has")
            return
        tag = _TAG.fullmatch(line)
        if not begun and tag and tag[1].lower() == "offset":
            shift_s = _offset(tag[2])
        elif line and not begun and not tag:
            yield Skipped(where, f"has no stamp such as [01:23.45]: {line[:60]!r}")
    stamps.sort(key=lambda stamp: stamp[0])
    at_once = [list(lines) for _, lines in groupby(stamps, key=lambda stamp: stamp[0])]  # two lines of one sentence
    for index, group in enumerate(at_once):
        words = " ".join(line for _, _, line in group if line)
        if words:  # a stamp without words ends the line before
            end_s = max(0.0, at_once[index + 1][0][0] - shift_s) if index + 1 < len(at_once) else None
            yield Utterance(group[0][1], audio, words, begin_s=max(0.0, group[0][0] - shift_s), end_s=end_s)


def _seconds(match: re.Match[str]) -> float:
    minutes, seconds, fraction = match.groups()
    return int(minutes) * 60 + int(seconds) + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def _offset(value: str) -> float:
    """Seconds by which the lines come earlier, from `[offset:+500]` in milliseconds."""
    try:
        return int(value.strip()) / 1000
    except ValueError:
        return 0.0
