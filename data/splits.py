"""Which clips are kept from training: no sentence and no recording stands on both sides, and no speaker where asked.

Clips that share a text, the recording they were cut from or, by choice, the speaker are one group and stay together. A
group is drawn by a hash of what it is and never by what else there is, so that clips keep their side when others are
added (as in Google's Speech Commands, Warden 2018, by speaker); what is added to a dataset follows the sides there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from config.errors import UserError
from data.manifest import HELD_OUT, TRAIN, Clip
from data.validation import CheckedRow, Finding

Mark = tuple[str, str]
"""What ties clips together: a kind (`text`, `recording`, `speaker`) and its value."""

_MOST_TIMES, _MOST = 2.0, 0.75  # of the share that was asked for, and of all: large groups are passed over beyond


@dataclass(frozen=True)
class Sides:
    """On which side of a dataset its marks are: held out where a mark is on both."""

    of: Mapping[Mark, str] = field(default_factory=dict)
    texts: int = 0
    held_texts: int = 0

    @classmethod
    def gather(cls, clips: Iterable[tuple[Clip, str]], *, by_speaker: bool) -> Sides:
        """Of clips, each with its normalised text; a speaker on both sides is a `UserError` where they are apart."""
        of: dict[Mark, str] = {}
        for clip, normal in clips:
            marks = [("text", normal), *([("recording", clip.source)] if clip.source else [])]
            for mark in [*marks, *([("speaker", clip.speaker)] if by_speaker else [])]:
                there = of.setdefault(mark, clip.split)
                if there != clip.split and mark[0] == "speaker":
                    raise UserError(f"The speaker {clip.speaker!r} of the dataset is trained on and held out.",
                                    "Hold out by source here too, or prepare all of it anew, held out by speaker.")
                if there != clip.split:
                    of[mark] = HELD_OUT
        texts = [side for (kind, _), side in of.items() if kind == "text"]
        return cls(of, len(texts), texts.count(HELD_OUT))


_NOTHING = Sides()


def assign(rows: Sequence[CheckedRow], held_out: float, seed: int, *, by_speaker: bool = False,
           there: Sides = _NOTHING) -> tuple[str, ...]:
    """The split of each row, deterministic in what it is and `seed`, whatever the order.

    What is tied to `there` follows it. Splits named by the source are kept; rows without one follow their text, or
    train. Where the source names none, whole groups are held out with the chance `held_out`: at least one where there
    are two, and none that would bring far more than the share to that side.
    """
    groups = _groups(rows, by_speaker, apart=_apart(rows, there))
    splits = _named(rows) if any(row.row.split for row in rows) else [TRAIN] * len(rows)
    free = []
    for group in groups:
        if (side := _followed(rows, group, by_speaker, there)) is not None:
            for index in group:
                splits[index] = side
        else:
            free.append(group)
    if not any(row.row.split for row in rows):
        for index in _chosen(rows, free, held_out, seed, by_speaker, there):
            splits[index] = HELD_OUT
        if by_speaker and held_out > 0 and not there.of and len({row.row.speaker for row in rows}) < 2:
            raise UserError("All clips have one speaker, so none can be held out whom the model did not hear.",
                            "Hold out by source, or name the speakers in the source.")
    if TRAIN not in splits and not there.of:
        named = any(row.row.split for row in rows)
        hint = ("The source's own split column did it: mark some rows as train there, or leave the column out."
                if named else "Choose a smaller held-out share, or add recordings of other sentences.")
        raise UserError(f"All {len(rows)} clips are held out, none is left to train on.", hint)
    return tuple(splits)


def overlaps(rows: Sequence[CheckedRow], splits: Sequence[str], *, by_speaker: bool = False,
             there: Sides = _NOTHING) -> dict[int, Finding]:
    """Rows that stand on the other side of what they are tied to, by index: they are to be left out.

    Only a source that names splits makes them, or what is added to two sides at once. Of a tie, the fewer rows go.
    """
    apart, by_speaker = _apart(rows, there), by_speaker and not any(row.row.split for row in rows)
    found: dict[int, Finding] = {}
    for group in _groups(rows, by_speaker, apart=apart):
        counts = Counter(splits[index] for index in group)
        loser = HELD_OUT if counts[HELD_OUT] < counts[TRAIN] else TRAIN
        winning = {mark for index in group if splits[index] != loser for mark in _marks(rows[index], by_speaker, apart)}
        for index in group:
            for mark in _marks(rows[index], by_speaker, apart):
                other = HELD_OUT if splits[index] == TRAIN else TRAIN
                if (splits[index] == loser and mark in winning) or _side(there, mark) == other:
                    found[index] = _overlap(rows[index], mark[0], splits[index])
                    break
    return found


def note_one_recording(rows: Sequence[CheckedRow], splits: Sequence[str]) -> tuple[Finding, ...]:
    """What is to be said where all is cut from one recording, so that both sides are of it."""
    if HELD_OUT not in splits or not _one_recording(rows):
        return ()
    return (Finding("leak", rows[0].row.where, f"all clips are cut from one recording, {rows[0].row.audio.name}: "
                    "held-out clips are other sentences of it, and say less than those of another recording would"),)


def with_sources(clips: Sequence[Clip], rows: Sequence[CheckedRow], there: Sides = _NOTHING) -> tuple[Clip, ...]:
    """`clips` with the recording that each was cut from, by folder and name; those that are one by themselves as is.

    Where all are cut from one, none is named: no clip could be held out from it.
    """
    shared = Counter(row.row.audio for row in rows)
    if not _apart(rows, there):
        return tuple(clips)
    return tuple(replace(clip, source=_name(row.row.audio)) if shared[row.row.audio] > 1 or row.row.is_part else clip
                 for clip, row in zip(clips, rows, strict=True))


def _named(rows: Sequence[CheckedRow]) -> list[str]:
    held = {row.normal for row in rows if row.row.split == HELD_OUT}
    return [row.row.split or (HELD_OUT if row.normal in held else TRAIN) for row in rows]


def _followed(rows: Sequence[CheckedRow], group: Sequence[int], by_speaker: bool, there: Sides) -> str | None:
    """The side that most rows of a group are tied to; None where nothing ties them."""
    tied = Counter(side for index in group for mark in _marks(rows[index], by_speaker, True)
                   if (side := _side(there, mark)) is not None)
    return None if not tied else TRAIN if tied[TRAIN] > tied[HELD_OUT] else HELD_OUT


def _groups(rows: Sequence[CheckedRow], by_speaker: bool, *, apart: bool) -> list[list[int]]:
    """Indices of rows that must stay together."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[Mark, int] = {}
    for index, row in enumerate(rows):
        for mark in _marks(row, by_speaker, apart):
            parent[root(index)] = root(first.setdefault(mark, index))
    found: dict[int, list[int]] = {}
    for index in range(len(rows)):
        found.setdefault(root(index), []).append(index)
    return list(found.values())


def _apart(rows: Sequence[CheckedRow], there: Sides) -> bool:
    """Whether recordings can be kept apart: there are several, or what is added to holds others."""
    return bool(there.of) or not _one_recording(rows)


def _one_recording(rows: Sequence[CheckedRow]) -> bool:
    """Whether several clips are all cut from the same recording."""
    return len(rows) > 1 and len({row.row.audio for row in rows}) == 1


def _marks(row: CheckedRow, by_speaker: bool, apart: bool) -> Iterator[Mark]:
    """What ties a row to others; its recording where clips of several can be kept `apart`."""
    yield "text", row.normal
    if apart:
        yield "recording", str(row.row.audio)
    if by_speaker:
        yield "speaker", row.row.speaker


def _side(there: Sides, mark: Mark) -> str | None:
    """Where a mark is in the dataset that is added to, which knows recordings by folder and name."""
    kind, value = mark
    return there.of.get((kind, _name(Path(value)) if kind == "recording" else value)) if there.of else None


def _chosen(rows: Sequence[CheckedRow], groups: Sequence[Sequence[int]], held_out: float, seed: int,
            by_speaker: bool, there: Sides) -> list[int]:
    """Rows of the groups that are held out."""
    if held_out <= 0 or not groups or (len(groups) == 1 and not there.of):
        return []
    shared = Counter(row.row.audio for row in rows) if _apart(rows, there) else Counter()
    texts = [len({rows[index].normal for index in group}) for group in groups]
    total = there.texts + len({row.normal for row in rows})
    room = min(_MOST_TIMES * held_out, _MOST) * total - there.held_texts
    draws = [_draw({_anchor(rows[index], by_speaker, shared) for index in group}, seed) for group in groups]
    order = sorted(range(len(groups)), key=draws.__getitem__)
    chosen: list[int] = []
    for group in order:
        if draws[group] < held_out and texts[group] <= room:
            chosen.append(group)
            room -= texts[group]
    if not chosen and not there.held_texts and len(groups) > 1:
        small = [group for group in order if texts[group] <= room]
        chosen = small[:1] or [min(order, key=texts.__getitem__)]  # every group is larger than the share
    return [index for group in chosen for index in groups[group]]


def _anchor(row: CheckedRow, by_speaker: bool, shared: Mapping[Path, int]) -> Mark:
    """What a group is drawn by: what can gain clips without being another; no recording where all are of one."""
    if by_speaker:
        return "speaker", row.row.speaker
    if shared and (shared[row.row.audio] > 1 or row.row.is_part):
        return "recording", _name(row.row.audio)
    return "text", row.normal


def _draw(anchors: set[Mark], seed: int) -> float:
    """A number in [0, 1) of a group: of its recordings or speakers alone, where it has some.

    It is drawn anew from the anchor with the least hash, so that one more of n anchors changes it once in n + 1 times.
    """
    coarse = {mark for mark in anchors if mark[0] != "text"} or anchors
    least = min(hashlib.sha256(f"{seed}/{kind}/{value}".encode("utf-8", "surrogatepass")).digest()
                for kind, value in coarse)
    return int.from_bytes(hashlib.sha256(least).digest()[:7], "big") / 2**56


def _overlap(row: CheckedRow, kind: str, split: str) -> Finding:
    what = f"the {kind}" + (f" {row.row.audio.name}" if kind == "recording" else f" {row.row.text[:80]!r}"
                            if kind == "text" else f" {row.row.speaker!r}")
    here, other = ("trained on", "held out") if split == TRAIN else ("held out", "trained on")
    return Finding("overlap", row.row.where, f"{row.row.id} would be {here} while {what} is {other}")


def _name(audio: Path) -> str:
    return "/".join(audio.parts[-2:])
