"""Which clips are kept from training: no sentence and no recording stands on both sides, and no speaker where asked.

Clips that share a text, the recording they were cut from or, by choice, the speaker are one group and stay together. A
group is drawn by a hash of what it is and never by what else there is, so that clips keep their side when others are
added (as in Google's Speech Commands, Warden 2018, by speaker); what is added to a dataset follows the sides there.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from config.errors import UserError
from data.disk_collections import DiskDict, sorted_on_disk
from data.manifest import HELD_OUT, TRAIN, ManifestClip
from data.split_groups import GroupKey, SplitGroups, group_keys, key_digest
from data.split_groups import recording_name as name
from data.validation import CheckedRow, ValidationFinding

_MOST_TIMES, _MOST = 2.0, 0.75  # of the share that was asked for, and of all: large groups are passed over beyond
_KINDS = {"text": 1, "recording": 2, "speaker": 4}


class Sides:
    """On which side of a dataset its marks are, on the disk: held out where a mark is on both."""

    def __init__(self) -> None:
        self._of: DiskDict | None = None  # nothing, as long as there is none
        self.texts = self.held_texts = 0

    @classmethod
    def gather(cls, clips: Iterable[tuple[ManifestClip, str]], *, by_speaker: bool) -> Sides:
        """Of clips, each with its normalised text; a speaker on both sides is a `UserError` where they are apart."""
        made = cls()
        for clip, normal in clips:
            made.put(("text", normal), clip.split)
            if clip.source:
                made.put(("recording", clip.source), clip.split)
            if by_speaker and made.put(("speaker", clip.speaker), clip.split) not in (None, clip.split):
                raise UserError(f"The speaker {clip.speaker!r} of the dataset is trained on and held out.",
                                "Hold out by source here too, or prepare all of it anew, held out by speaker.")
        return made

    def put(self, mark: GroupKey, side: str) -> str | None:
        """Note where a mark is; where it was already."""
        self._of = self._of or DiskDict()
        there = self._of.put(_kept_as(mark), side)
        if there is None:
            self.texts += mark[0] == "text"
        if side == HELD_OUT and there != HELD_OUT:
            self._of.replace(_kept_as(mark), HELD_OUT)
            self.held_texts += mark[0] == "text"
        return there

    def side(self, mark: GroupKey) -> str | None:
        return self._of.get(_kept_as(mark)) if self._of else None

    def __bool__(self) -> bool:
        return self._of is not None


def _kept_as(mark: GroupKey) -> str:
    return f"{mark[0]}/{mark[1]}"


_NOTHING = Sides()


def assign(rows: Sequence[CheckedRow], held_out: float, seed: int, *, by_speaker: bool = False,
           there: Sides = _NOTHING) -> tuple[str, ...]:
    """The split of each row, deterministic in what it is and `seed`, whatever the order.

    What is tied to `there` follows it. Splits named by the source are kept; rows without one follow their text, or
    train. Where the source names none, whole groups are held out with the chance `held_out`: at least one where there
    are two, and none that would bring far more than the share to that side.
    """
    ties = SplitGroups(rows, by_speaker=by_speaker, apart=_apart(rows, there))
    named = any(row.row.split for row in rows)
    splits = _named(rows) if named else [TRAIN] * len(rows)
    side_of, free = _followed(ties, seed, there)
    if not named:
        for group in _chosen(free, held_out, ties.texts, there):
            side_of[group] = _SIDES.index(HELD_OUT)
        if by_speaker and held_out > 0 and not there and len({row.row.speaker for row in rows}) < 2:
            raise UserError("All clips have one speaker, so none can be held out whom the model did not hear.",
                            "Hold out by source, or name the speakers in the source.")
    for at in range(len(rows)):
        splits[at] = _SIDES[side_of[ties.group(at)]] or splits[at]
    if TRAIN not in splits and not there:
        hint = ("The source's own split column did it: mark some rows as train there, or leave the column out."
                if named else "Choose a smaller held-out share, or add recordings of other sentences.")
        raise UserError(f"All {len(rows)} clips are held out, none is left to train on.", hint)
    return tuple(splits)


def overlaps(rows: Sequence[CheckedRow], splits: Sequence[str], *, by_speaker: bool = False,
             there: Sides = _NOTHING) -> dict[int, ValidationFinding]:
    """Rows that stand on the other side of what they are tied to, by index: they are to be left out.

    Only a source that names splits makes them, or what is added to two sides at once. Of a tie, the fewer rows go.
    """
    apart, by_speaker = _apart(rows, there), by_speaker and not any(row.row.split for row in rows)
    ties = SplitGroups(rows, by_speaker=by_speaker, apart=apart)
    lost = _lost(ties, splits)
    found: dict[int, ValidationFinding] = {}
    if not there and not any(lost):
        return found
    for at, row in enumerate(rows):
        other = HELD_OUT if splits[at] == TRAIN else TRAIN
        for mark in group_keys(row, by_speaker, apart):
            if lost[at] & _KINDS[mark[0]] or _side(there, mark) == other:
                found[at] = _overlap(row, mark[0], splits[at])
                break
    return found


def _lost(ties: SplitGroups, splits: Sequence[str]) -> bytearray:
    """Of each row on the side of its group that has fewer, the kinds of marks that it shares with the other side."""
    lost = bytearray(len(splits))
    more_held = array("q", bytes(8 * len(splits)))  # by group
    for at, split in enumerate(splits):
        more_held[ties.group(at)] += 1 if split == HELD_OUT else -1
    if not any(split != splits[ties.group(at)] for at, split in enumerate(splits)):
        return lost
    for kind, run in ties.runs():
        loser = HELD_OUT if more_held[ties.group(run[0])] < 0 else TRAIN
        if any(splits[at] != loser for at in run):
            for at in run:
                if splits[at] == loser:
                    lost[at] |= _KINDS[kind]
    return lost


def note_one_recording(rows: Sequence[CheckedRow], splits: Sequence[str]) -> tuple[ValidationFinding, ...]:
    """What is to be said where all is cut from one recording, so that both sides are of it."""
    if HELD_OUT not in splits or not _one_recording(rows):
        return ()
    return (ValidationFinding("leak", rows[0].row.where,
                              f"all clips are cut from one recording, {rows[0].row.audio.name}: "
                    "held-out clips are other sentences of it, and say less than those of another recording would"),)


def with_sources(clips: Iterable[ManifestClip], rows: Sequence[CheckedRow],
                 there: Sides = _NOTHING) -> Iterator[ManifestClip]:
    """`clips` with the recording that each was cut from, by folder and name; those that are one by themselves as is.

    Where all are cut from one, none is named: no clip could be held out from it.
    """
    ties = SplitGroups(rows, by_speaker=False, apart=_apart(rows, there))
    for at, (clip, row) in enumerate(zip(clips, rows, strict=True)):
        source = ties.source(at, row)
        yield replace(clip, source=source) if source else clip


def _named(rows: Sequence[CheckedRow]) -> list[str]:
    """The sides that the source names; rows without one follow their text."""
    with DiskDict() as held:
        for row in rows:
            if row.row.split == HELD_OUT:
                held.put(row.normal, "")
        return [row.row.split or (TRAIN if held.get(row.normal) is None else HELD_OUT) for row in rows]


_SIDES = ("", TRAIN, HELD_OUT)


@dataclass(frozen=True)
class _Group:
    """Rows that must stay together, and are tied to nothing that is there."""

    draw: int  # of 2**56
    texts: int
    name: int

    @classmethod
    def of(cls, line: str) -> _Group:
        return cls(*map(int, line.split()))


def _followed(ties: SplitGroups, seed: int, there: Sides) -> tuple[bytearray, Iterator[_Group]]:
    """By group the side that most of its rows are tied to (a number of `_SIDES`), and those tied to none, as drawn."""
    side_of, more_trained = bytearray(len(ties.rows)), array("q", bytes(8 * len(ties.rows) if there else 0))
    for at, row in enumerate(ties.rows if there else ()):
        for mark in group_keys(row, ties.by_speaker, True):
            if (side := _side(there, mark)) is not None:
                group = ties.group(at)
                more_trained[group] += 1 if side == TRAIN else -1
                side_of[group] = 1
    for group in range(len(side_of)):
        if side_of[group]:
            side_of[group] = _SIDES.index(TRAIN if more_trained[group] > 0 else HELD_OUT)
    return side_of, map(_Group.of, sorted_on_disk(_drawn(ties, seed, side_of)))


def _drawn(ties: SplitGroups, seed: int, side_of: bytearray) -> Iterator[str]:
    """The free groups as lines: what each draws, its texts and its name."""
    rows = (f"{ties.group(at):012d} {key_digest('text', row.normal)} {_anchored(ties.anchor(at, row), seed)}"
            for at, row in enumerate(ties.rows) if not side_of[ties.group(at)])
    for group, lines in groupby(sorted_on_disk(rows), lambda line: line.partition(" ")[0]):
        texts, text, least = 0, "", "~"
        for _, this, anchor in map(str.split, lines):
            texts += this != text
            text, least = this, min(least, anchor)
        yield f"{_draw(least):018d} {texts:012d} {group}"


def _anchored(anchor: GroupKey, seed: int) -> str:
    """An anchor as a hash; recordings and speakers stand before texts."""
    return f"{int(anchor[0] == 'text')}{key_digest(*anchor, salt=f'{seed}/')}"


def _draw(least: str) -> int:
    """A number below 2**56 of a group: of its recordings or speakers alone, where it has some.

    It is drawn anew from the anchor with the least hash, so that one more of n anchors changes it once in n + 1 times.
    """
    return int.from_bytes(hashlib.sha256(bytes.fromhex(least[1:])).digest()[:7], "big")


def _chosen(groups: Iterable[_Group], held_out: float, texts: int, there: Sides) -> list[int]:
    """The names of the groups, given as they drew, that are held out. `texts`: how many are new."""
    if held_out <= 0:
        return []
    room = all_room = min(_MOST_TIMES * held_out, _MOST) * (there.texts + texts) - there.held_texts
    count, chosen = 0, array("q")
    fitting = smallest = None
    for count, group in enumerate(groups, start=1):  # noqa: B007  counted
        if group.draw / 2**56 < held_out and group.texts <= room:
            chosen.append(group.name)
            room -= group.texts
        fitting = fitting or (group if group.texts <= all_room else None)
        smallest = group if smallest is None or group.texts < smallest.texts else smallest
    if count == 0 or (count == 1 and not there):
        return []
    if not chosen and not there.held_texts and count > 1 and smallest is not None:
        return [(fitting or smallest).name]  # every group is larger than the share, or none drew less
    return list(chosen)


def _apart(rows: Sequence[CheckedRow], there: Sides) -> bool:
    """Whether recordings can be kept apart: there are several, or what is added to holds others."""
    return bool(there) or not _one_recording(rows)


def _one_recording(rows: Sequence[CheckedRow]) -> bool:
    """Whether several clips are all cut from the same recording."""
    return len(rows) > 1 and all(row.row.audio == rows[0].row.audio for row in rows)


def _side(there: Sides, mark: GroupKey) -> str | None:
    """Where a mark is in the dataset that is added to, which knows recordings by folder and name."""
    kind, value = mark
    return there.side((kind, name(Path(value)) if kind == "recording" else value)) if there else None


def _overlap(row: CheckedRow, kind: str, split: str) -> ValidationFinding:
    what = f"the {kind}" + (f" {row.row.audio.name}" if kind == "recording" else f" {row.row.text[:80]!r}"
                            if kind == "text" else f" {row.row.speaker!r}")
    here, other = ("trained on", "held out") if split == TRAIN else ("held out", "trained on")
    return ValidationFinding("overlap", row.row.where, f"{row.row.id} would be {here} while {what} is {other}")
