"""Groups of rows that a split must keep together because they share a text, a recording or a speaker.

A union-find over rows; shared keys are found by sorting on disk. 9 bytes a row stay in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from data.disk_collections import sorted_on_disk
from data.validation import CheckedRow

GroupKey = tuple[str, str]
"""A kind (`text`, `recording`, `speaker`) and its value."""


def group_keys(row: CheckedRow, by_speaker: bool, apart: bool) -> Iterator[GroupKey]:
    """The keys of a row; its recording where clips of several recordings can be kept `apart`."""
    yield "text", row.normal
    if apart:
        yield "recording", str(row.row.audio)
    if by_speaker:
        yield "speaker", row.row.speaker


def recording_name(audio: Path) -> str:
    """A recording as datasets name it: its folder and file name."""
    return "/".join(audio.parts[-2:])


def key_digest(kind: str, value: str, salt: str = "") -> str:
    """A key as 64 hexadecimal digits."""
    return sha256(f"{salt}{kind}/{value}".encode("utf-8", "surrogatepass")).hexdigest()


class SplitGroups:
    """The groups of rows that share a key. A group is named by the index of one of its rows."""

    def __init__(self, rows: Sequence[CheckedRow], *, by_speaker: bool, apart: bool) -> None:
        self.rows, self.by_speaker, self.apart = rows, by_speaker, apart
        self.texts = 0  # distinct texts
        self._shared = bytearray(len(rows))
        self._parent = array("q", range(len(rows)))
        for kind, run in self.runs():
            self.texts += kind == "text"
            first = run[0]
            for at in run[1:]:
                self._parent[self.group(at)] = self.group(first)
            if kind == "recording" and len(run) > 1:
                for at in run:
                    self._shared[at] = 1

    def group(self, at: int) -> int:
        """The group of row `at`."""
        parent = self._parent
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    def source(self, at: int, row: CheckedRow) -> str:
        """The recording that a row was cut from; empty for a whole recording, or if all rows are of one."""
        return recording_name(row.row.audio) if self.apart and (self._shared[at] or row.row.is_part) else ""

    def anchor(self, at: int, row: CheckedRow) -> GroupKey:
        """The key by which a row's group is drawn: it stays the same when the group gains clips."""
        if self.by_speaker:
            return "speaker", row.row.speaker
        source = self.source(at, row)
        return ("recording", source) if source else ("text", row.normal)

    def runs(self) -> Iterator[tuple[str, array[int]]]:
        """The kind of each key, and the rows that have it."""
        lines = (f"{kind} {key_digest(kind, value)} {at}" for at, row in enumerate(self.rows)
                 for kind, value in group_keys(row, self.by_speaker, self.apart))
        for mark, same in groupby(sorted_on_disk(lines), lambda line: line.rpartition(" ")[0]):
            yield mark.partition(" ")[0], array("q", (int(line.rpartition(" ")[2]) for line in same))
