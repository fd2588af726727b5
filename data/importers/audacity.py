"""Audacity's exported labels: begin, end (seconds) and text, parted by tabs. Lines of frequencies are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from data.importers import text
from data.importers.rows import Found, Skipped, Utterance

_LABEL = re.compile(r"^\s*(\d+(?:[.,]\d+)?)\t(\d+(?:[.,]\d+)?)(?:\t(.*))?$")


def looks_like(head: str) -> bool:
    """Whether the first lines are labels."""
    lines = [line for line in head.splitlines()[:20] if line.strip() and not line.startswith("\\")]
    labels = [bool(_LABEL.match(line)) for line in lines]
    return bool(labels) and labels[0] and sum(labels) > len(labels) / 2


def read(path: Path, audio: str) -> Iterator[Found]:
    """The labels at `path`, which belong to the recording `audio`."""
    for number, line in text.lines(path):
        where, line = f"{path.name} line {number}", line.strip("\r\n")
        if not line.strip() or line.startswith("\\"):
            continue
        match = _LABEL.match(line)
        if match is None:
            yield Skipped(where, f"is no label (begin, end and text, parted by tabs): {line[:60]!r}")
            continue
        begin_s, end_s = (float(value.replace(",", ".")) for value in match.groups()[:2])
        words = (match[3] or "").strip()
        if end_s == begin_s:
            yield Skipped(where, f"marks the point {begin_s:g} s; label a stretch from begin to end")
        elif end_s < begin_s:
            yield Skipped(where, f"ends at {end_s:g} s, before it begins at {begin_s:g} s")
        elif not words:
            yield Skipped(where, "has no text")
        else:
            yield Utterance(where, audio, words, begin_s=begin_s, end_s=end_s)
