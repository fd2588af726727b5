"""Train, held-out and test clips: no text, no recording and, if asked, no speaker is on two sides.

Clips that share a text, a source recording or, by choice, a speaker form a group and stay together. Groups are held out
in the order of a hash of their own keys (as in Speech Commands, Warden 2018, by speaker) until the share is met, so a
source that grew moves few clips; clips added to a dataset follow the sides there.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from config.errors import UserError
from data.disk_collections import DiskDict, sorted_on_disk
from data.manifest import HELD_OUT, SPLITS, TEST, TRAIN, ManifestClip
from data.validation import CheckedRow, ValidationFinding

_MOST = 0.75  # share of all clips; larger groups are not held out
_KINDS = {"text": 1, "recording": 2, "speaker": 4}
_SIDE_WORDS = {TRAIN: "trained on", HELD_OUT: "held out", TEST: "in the test set"}


class Sides:
    """The side of each group key of a dataset, on disk; for a key on several, the last of SPLITS."""

    def __init__(self) -> None:
        self._of: DiskDict | None = None  # made with the first key
        self.clips = self.held_clips = self.test_clips = 0

    @classmethod
    def gather(cls, clips: Iterable[tuple[ManifestClip, str]], *, by_speaker: bool, language: str = "") -> Sides:
        """From clips, each with its normalised text; `UserError` for a speaker on both sides with `by_speaker`.

        Those in `language`, if it is given, are counted: each language has its own share of held-out clips.
        """
        sides = cls()
        for clip, normal in clips:
            # Clips of other languages have sides too, but are not counted.
            counted = language in ("", clip.language)
            sides.clips += counted
            sides.held_clips += counted and clip.split == HELD_OUT
            sides.test_clips += counted and clip.split == TEST
            sides.put(("text", normal), clip.split)
            if clip.source:
                sides.put(("recording", clip.source), clip.split)
            other = sides.put(("speaker", clip.speaker), clip.split) if by_speaker else None
            if other not in (None, clip.split):
                words = " and ".join(_SIDE_WORDS[side] for side in SPLITS if side in (other, clip.split))
                raise UserError(f"The speaker {clip.speaker!r} of the dataset is {words}.",
                                "Hold out by source here too, or prepare all of it again, held out by speaker.")
        return sides

    def put(self, key: GroupKey, side: str) -> str | None:
        """Record the side of a key; returns the side it had."""
        self._of = self._of or DiskDict()
        previous_side = self._of.put(_storage_key(key), side)
        if previous_side is not None and SPLITS.index(side) > SPLITS.index(previous_side):
            self._of.replace(_storage_key(key), side)
        return previous_side

    def side(self, key: GroupKey) -> str | None:
        return self._of.get(_storage_key(key)) if self._of else None

    def __bool__(self) -> bool:
        return self._of is not None


def _storage_key(key: GroupKey) -> str:
    return f"{key[0]}/{key[1]}"


_NO_SIDES = Sides()


def assign(rows: Sequence[CheckedRow], held_out: float, seed: int, *, by_speaker: bool = False,
           existing: Sides = _NO_SIDES, test: float = 0.0) -> tuple[str, ...]:
    """The split of each row, determined by its keys and `seed`, whatever the order.

    Groups that share a key with `existing` follow its side. The source's own held-out set and test set are kept; rows
    without a split follow their text, or train. A side that the source does not name is drawn from what is left to
    train on: groups until `held_out` of all clips are held out, as nearly as whole groups allow (at least one of two
    or more), then until `test` of them are in the test set.
    """

    # Groups that share a key with the existing clips follow them; splits that the source names are kept.
    groups = SplitGroups(rows, by_speaker=by_speaker, apart=_apart(rows, existing))
    named = {split for split in (HELD_OUT, TEST) if any(row.row.split == split for row in rows)}
    splits = _named(rows) if named else [TRAIN] * len(rows)
    side_of = _followed(groups, existing)
    for index, split in enumerate(splits if named else ()):
        if split != TRAIN and not side_of[groups.group(index)]:
            side_of[groups.group(index)] = _AS_NAMED

    # The free groups are drawn until the share is reached, first for the held-out set, then for the test set.
    for side, share, held_before in ((HELD_OUT, held_out, existing.held_clips), (TEST, test, existing.test_clips)):
        if side in named or (side == TEST and share <= 0):
            continue
        follow = sum(_SIDES[side_of[groups.group(index)]] == side for index in range(len(rows)))
        for group in _chosen(_free(groups, seed, side_of), share, existing.clips + len(rows), held_before + follow,
                             alone=not existing):
            side_of[group] = _SIDES.index(side)
        if by_speaker and share > 0 and not existing and len({row.row.speaker for row in rows}) < 2:
            raise UserError("All clips have one speaker, so no speaker can be held out.",
                            "Hold out by source, or name the speakers in the source.")

    # A row gets the side of its group; without one it keeps the split that the source names.
    for index in range(len(rows)):
        splits[index] = _SIDES[side_of[groups.group(index)]] or splits[index]
    if TRAIN not in splits and not existing:
        hint = ("The source's own split column did it: mark some rows as train there, or leave the column out."
                if named else "Choose a smaller held-out share, or add recordings of other sentences.")
        raise UserError(f"All {len(rows)} clips are held out, none is left to train on.", hint)
    return tuple(splits)


def why_untrainable(clips: Iterable[ManifestClip]) -> str:
    """Why no model can be trained on a dataset, as half a sentence; empty if one can be."""
    train, held_out, speakers = 0, 0, Counter[str]()
    for clip in clips:
        if clip.split == TRAIN:
            train += 1
            speakers[clip.speaker] += 1
        else:
            held_out += 1
    if not any(count > 1 for count in speakers.values()):
        clips_of = f"{train} training clip{'s' * (train != 1)} of {len(speakers)} speaker{'s' * (len(speakers) != 1)}"
        return (f"it has {clips_of} and {held_out} held out, and no speaker has two training clips: a clip is prompted "
                "by another one of its speaker")
    return "" if held_out else "no clip is held out, so no checkpoint could be evaluated"


def holds_out(rows: Sequence[CheckedRow]) -> bool:
    """Whether the source itself holds a row out; the first rows of one that does may all be to train on."""
    return any(row.row.split in (HELD_OUT, TEST) for row in rows)


def overlaps(rows: Sequence[CheckedRow], splits: Sequence[str], *, by_speaker: bool = False,
             existing: Sides = _NO_SIDES) -> dict[int, ValidationFinding]:
    """Rows to leave out, by index, because a key of theirs is on the other side too.

    They arise only from splits named by the source, or from additions to several sides. The smaller sides of a key go.
    """
    apart, by_speaker = _apart(rows, existing), by_speaker and not holds_out(rows)
    groups = SplitGroups(rows, by_speaker=by_speaker, apart=apart)
    lost, staying = _lost(groups, splits)
    findings: dict[int, ValidationFinding] = {}
    if not existing and not any(lost):
        return findings

    for index, row in enumerate(rows):
        for key in group_keys(row, by_speaker, apart):
            side = _side(existing, key)
            # A row is left out for its first key that is on another side.
            if lost[index] & _KINDS[key[0]] or side not in (None, splits[index]):
                other = SPLITS[staying[index]] if lost[index] & _KINDS[key[0]] else side
                findings[index] = _overlap(row, key[0], splits[index], other or TRAIN)
                break
    return findings


def _lost(groups: SplitGroups, splits: Sequence[str]) -> tuple[bytearray, bytearray]:
    """For each row on a smaller side of its group, the kinds of keys that it shares with the side that stays, and the
    place of that side in SPLITS.
    """
    lost, staying = bytearray(len(splits)), bytearray(len(splits))
    if not any(split != splits[groups.group(index)] for index, split in enumerate(splits)):
        return lost, staying

    # The side with the most clips of a group stays, and the other rows of a shared key are lost.
    counts = {side: array("q", bytes(8 * len(splits))) for side in SPLITS}  # keyed by group
    for index, split in enumerate(splits):
        counts[split][groups.group(index)] += 1
    for kind, run in groups.runs():
        sides, group = {splits[index] for index in run}, groups.group(run[0])
        stays = max(sides, key=lambda side: (counts[side][group], SPLITS.index(side)))
        for index in run:
            if splits[index] != stays:
                lost[index] |= _KINDS[kind]
                staying[index] = SPLITS.index(stays)
    return lost, staying


def note_one_recording(rows: Sequence[CheckedRow], splits: Sequence[str]) -> tuple[ValidationFinding, ...]:
    """A warning if all clips are cut from one recording, so that both sides are of it."""
    if HELD_OUT not in splits or not _one_recording(rows):
        return ()
    return (ValidationFinding("leak", rows[0].row.location,
                              f"all clips are cut from one recording, {rows[0].row.audio.name}: "
                    "held-out clips are other sentences of it, and say less than those of another recording would"),)


def with_sources(clips: Iterable[ManifestClip], rows: Sequence[CheckedRow],
                 existing: Sides = _NO_SIDES) -> Iterator[ManifestClip]:
    """`clips` with the recording that each was cut from, by folder and name; whole recordings stay unchanged.

    If all are cut from one recording, it is not named: no clip could be held out.
    """
    groups = SplitGroups(rows, by_speaker=False, apart=_apart(rows, existing))
    for index, (clip, row) in enumerate(zip(clips, rows, strict=True)):
        source = groups.source(index, row)
        yield replace(clip, source=source) if source else clip


def _named(rows: Sequence[CheckedRow]) -> list[str]:
    """The splits that the source names; rows without one follow their text."""
    with DiskDict() as sides:
        for row in rows:
            if row.row.split in (HELD_OUT, TEST):
                sides.put(row.normal, row.row.split)
        return [row.row.split or sides.get(row.normal) or TRAIN for row in rows]


_SIDES = ("", *SPLITS, "")
_AS_NAMED = len(_SIDES) - 1  # a group with a row that the source itself holds out: none of it is drawn


@dataclass(frozen=True)
class _Group:
    """Rows that must stay together, and share no key with the dataset that is added to."""

    draw: int  # integer below 2**56
    clips: int
    name: int

    @classmethod
    def of(cls, line: str) -> _Group:
        return cls(*map(int, line.split()))


def _followed(groups: SplitGroups, existing: Sides) -> bytearray:
    """The side of each group by the keys it shares with `existing`, as an index of `_SIDES`."""
    side_of, more_trained = bytearray(len(groups.rows)), array("q", bytes(8 * len(groups.rows) if existing else 0))
    for index, row in enumerate(groups.rows if existing else ()):
        for key in group_keys(row, groups.by_speaker, True):
            side = _side(existing, key)
            if side is None:
                continue
            group = groups.group(index)
            more_trained[group] += 1 if side == TRAIN else -1
            side_of[group] = max(side_of[group], _SIDES.index(side))

    # A group that is held out by few keys and trained on by more of them is trained on.
    for group in range(len(side_of) if existing else 0):
        if more_trained[group] > 0:
            side_of[group] = _SIDES.index(TRAIN)
        elif side_of[group] == _SIDES.index(TRAIN):
            side_of[group] = _SIDES.index(HELD_OUT)
    return side_of


def _free(groups: SplitGroups, seed: int, side_of: bytearray) -> Iterator[_Group]:
    """The groups without a side, by draw."""
    return map(_Group.of, sorted_on_disk(_drawn(groups, seed, side_of)))


def _drawn(groups: SplitGroups, seed: int, side_of: bytearray) -> Iterator[str]:
    """The free groups as lines: draw, number of clips and name."""
    # Recordings and speakers sort before texts.
    def anchored(anchor: GroupKey) -> str:
        return f"{int(anchor[0] == 'text')}{key_digest(*anchor, salt=f'{seed}/')}"

    rows = (f"{groups.group(index):012d} {anchored(groups.anchor(index, row))}"
            for index, row in enumerate(groups.rows) if not side_of[groups.group(index)])
    for group, lines in groupby(sorted_on_disk(rows), lambda line: line.partition(" ")[0]):
        clips, least = 0, "~"
        for _, anchor in map(str.split, lines):
            clips, least = clips + 1, min(least, anchor)
        yield f"{_draw(least):018d} {clips:012d} {group}"


def _draw(least: str) -> int:
    """A number below 2**56 for a group, from its anchor with the smallest hash.

    One more anchor beside n others changes it with probability 1 / (n + 1).
    """
    return int.from_bytes(hashlib.sha256(bytes.fromhex(least[1:])).digest()[:7], "big")


def _chosen(groups: Iterable[_Group], held_out: float, clips: int, held: int, *, alone: bool) -> list[int]:
    """The names of the groups to hold out. `groups` are sorted by draw; `held` of all `clips` are held out already.

    A group is chosen if it brings the number of held-out clips nearer to the share. If none does, the smallest is,
    unless it is the only group and no other clips exist (`alone`).
    """
    if held_out <= 0:
        return []
    shortfall, count, chosen = round(held_out * clips) - held, 0, array("q")
    smallest = None
    for count, group in enumerate(groups, start=1):  # noqa: B007  counted
        if 0 < group.clips < 2 * shortfall and held + group.clips <= _MOST * clips:
            chosen.append(group.name)
            shortfall, held = shortfall - group.clips, held + group.clips
        smallest = group if smallest is None or group.clips < smallest.clips else smallest

    if count == 0 or (count == 1 and alone):
        return []
    if not chosen and not held and count > 1 and smallest is not None:
        # Every group is larger than the share.
        return [smallest.name]
    return list(chosen)


def _apart(rows: Sequence[CheckedRow], existing: Sides) -> bool:
    """Whether recordings can be kept apart: there are several, or the existing dataset has others."""
    return bool(existing) or not _one_recording(rows)


def _one_recording(rows: Sequence[CheckedRow]) -> bool:
    """Whether several clips are all cut from the same recording."""
    return len(rows) > 1 and all(row.row.audio == rows[0].row.audio for row in rows)


def _side(existing: Sides, key: GroupKey) -> str | None:
    """The side of a key in the dataset that is added to, which names recordings by folder and file name."""
    kind, value = key
    return existing.side((kind, recording_name(Path(value)) if kind == "recording" else value)) if existing else None


def _overlap(row: CheckedRow, kind: str, split: str, other: str) -> ValidationFinding:
    subject = f"the {kind}" + (f" {row.row.audio.name}" if kind == "recording" else f" {row.row.text[:80]!r}"
                            if kind == "text" else f" {row.row.speaker!r}")
    message = f"{row.row.id} would be {_SIDE_WORDS[split]} while {subject} is {_SIDE_WORDS[other]}"
    return ValidationFinding("overlap", row.row.location, message)


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
        self._shared = bytearray(len(rows))
        self._parent = array("q", range(len(rows)))
        for kind, run in self.runs():
            first_row = run[0]
            for row in run[1:]:
                self._parent[self.group(row)] = self.group(first_row)
            if kind == "recording" and len(run) > 1:
                for row in run:
                    self._shared[row] = 1

    def group(self, row: int) -> int:
        """The group of row `row`."""
        parent = self._parent
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    def source(self, index: int, row: CheckedRow) -> str:
        """The recording that a row was cut from; empty for a whole recording, or if all rows are of one."""
        return recording_name(row.row.audio) if self.apart and (self._shared[index] or row.row.is_part) else ""

    def anchor(self, index: int, row: CheckedRow) -> GroupKey:
        """The key by which a row's group is drawn: it stays the same when the group gains clips."""
        if self.by_speaker:
            return "speaker", row.row.speaker
        source = self.source(index, row)
        return ("recording", source) if source else ("text", row.normal)

    def runs(self) -> Iterator[tuple[str, array[int]]]:
        """The kind of each key, and the rows that have it."""
        lines = (f"{kind} {digest} {index}" for kind, digest, index in self._digests())
        for mark, same in groupby(sorted_on_disk(lines), lambda line: line.rpartition(" ")[0]):
            yield mark.partition(" ")[0], array("q", (int(line.rpartition(" ")[2]) for line in same))

    def _digests(self) -> Iterator[tuple[str, str, int]]:
        for index, row in enumerate(self.rows):
            for kind, value in group_keys(row, self.by_speaker, self.apart):
                yield kind, key_digest(kind, value), index
