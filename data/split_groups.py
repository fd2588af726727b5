"""What ties rows together, and which rows that makes one group: found by sorting what they share on the disk.

Of each row 9 bytes stay in memory: its group, and whether its recording has other rows.
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
"""What ties clips together: a kind (`text`, `recording`, `speaker`) and its value."""


def group_keys(row: CheckedRow, by_speaker: bool, apart: bool) -> Iterator[GroupKey]:
    """What ties a row to others; its recording where clips of several can be kept `apart`."""
    yield "text", row.normal
    if apart:
        yield "recording", str(row.row.audio)
    if by_speaker:
        yield "speaker", row.row.speaker


def recording_name(audio: Path) -> str:
    """A recording as datasets name it: by its folder and its own name."""
    return "/".join(audio.parts[-2:])


def key_digest(kind: str, value: str, salt: str = "") -> str:
    """A mark in 64 hexadecimal digits."""
    return sha256(f"{salt}{kind}/{value}".encode("utf-8", "surrogatepass")).hexdigest()


class SplitGroups:
    """The groups of rows that share a mark. Each is named by the number of one of its rows."""

    def __init__(self, rows: Sequence[CheckedRow], *, by_speaker: bool, apart: bool) -> None:
        self.rows, self.by_speaker, self.apart = rows, by_speaker, apart
        self.texts = 0  # how many there are
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
        """The group of the row number `at`."""
        parent = self._parent
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    def source(self, at: int, row: CheckedRow) -> str:
        """The recording that a row was cut from; empty where it is one by itself, or all are of one."""
        return recording_name(row.row.audio) if self.apart and (self._shared[at] or row.row.is_part) else ""

    def anchor(self, at: int, row: CheckedRow) -> GroupKey:
        """What a row's group is drawn by: what can gain clips without being another."""
        if self.by_speaker:
            return "speaker", row.row.speaker
        source = self.source(at, row)
        return ("recording", source) if source else ("text", row.normal)

    def runs(self) -> Iterator[tuple[str, array[int]]]:
        """Each mark's kind, and the rows that have it."""
        lines = (f"{kind} {key_digest(kind, value)} {at}" for at, row in enumerate(self.rows)
                 for kind, value in group_keys(row, self.by_speaker, self.apart))
        for mark, same in groupby(sorted_on_disk(lines), lambda line: line.rpartition(" ")[0]):
            yield mark.partition(" ")[0], array("q", (int(line.rpartition(" ")[2]) for line in same))
