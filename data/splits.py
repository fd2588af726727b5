"""Which clips are kept from training: no sentence and no recording stands on both sides, and no speaker where asked.

Clips that share a text, the recording they were cut from or, by choice, the speaker are one group and stay together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from config.errors import UserError
from data.manifest import HELD_OUT, TRAIN, Clip
from data.validation import CheckedRow, Finding


def assign(rows: Sequence[CheckedRow], held_out: float, seed: int, *, by_speaker: bool = False) -> tuple[str, ...]:
    """The split of each row, deterministic in the texts and `seed`.

    Splits named by the source are kept; rows without one follow their text, or train. Where the source names none,
    whole groups with about the `held_out` share of distinct texts are held out, at least one group where there are two.
    """
    if any(row.row.split for row in rows):
        held = {row.normal for row in rows if row.row.split == HELD_OUT}
        splits = tuple(row.row.split or (HELD_OUT if row.normal in held else TRAIN) for row in rows)
    else:
        chosen = _chosen(rows, _groups(rows, by_speaker), held_out, seed)
        splits = tuple(HELD_OUT if index in chosen else TRAIN for index in range(len(rows)))
        if by_speaker and held_out > 0 and len({row.row.speaker for row in rows}) < 2:
            raise UserError("All clips have one speaker, so none can be held out whom the model did not hear.",
                            "Hold out by source, or name the speakers in the source.")
    if TRAIN not in splits:
        named = any(row.row.split for row in rows)
        hint = ("The source's own split column did it: mark some rows as train there, or leave the column out."
                if named else "Choose a smaller held-out share, or add recordings of other sentences.")
        raise UserError(f"All {len(rows)} clips are held out, none is left to train on.", hint)
    return splits


def with_sources(clips: Sequence[Clip], rows: Sequence[CheckedRow]) -> tuple[Clip, ...]:
    """`clips` with the recording that each was cut from, by folder and name; those that are one by themselves as is.

    Where all are cut from one, none is named: no clip could be held out from it.
    """
    shared = Counter(row.row.audio for row in rows)
    if len(shared) == 1:
        return tuple(clips)
    return tuple(replace(clip, source=_name(row.row.audio)) if shared[row.row.audio] > 1 else clip
                 for clip, row in zip(clips, rows, strict=True))


def leaks(rows: Sequence[CheckedRow], splits: Sequence[str]) -> tuple[Finding, ...]:
    """Training clips whose text or recording is also held out; only a source that names splits, or is one recording."""
    held = {row.normal for row, split in zip(rows, splits, strict=True) if split == HELD_OUT}
    recordings = {row.row.audio for row, split in zip(rows, splits, strict=True) if split == HELD_OUT}
    found = []
    if held and _one_recording(rows) and not any(row.row.split for row in rows):
        recordings = set()
        name = rows[0].row.audio.name
        found.append(Finding("leak", rows[0].row.where, f"all clips are cut from one recording, {name}: held-out clips "
                             "are other sentences of it, and say less than those of another recording would"))
    for row, split in zip(rows, splits, strict=True):
        if split == TRAIN and row.normal in held:
            found.append(Finding("leak", row.row.where, f"{row.row.id} trains on a held-out text: {row.row.text!r}"))
        elif split == TRAIN and row.row.audio in recordings:
            found.append(Finding("leak", row.row.where, f"{row.row.id} trains on a recording that is also held out: "
                                                        f"{row.row.audio.name}"))
    return tuple(found)


def _groups(rows: Sequence[CheckedRow], by_speaker: bool) -> list[list[int]]:
    """Indices of rows that must stay together."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[tuple[str, str], int] = {}
    apart = not _one_recording(rows)
    for index, row in enumerate(rows):
        for mark in _marks(row, by_speaker, apart):
            parent[root(index)] = root(first.setdefault(mark, index))
    found: dict[int, list[int]] = {}
    for index in range(len(rows)):
        found.setdefault(root(index), []).append(index)
    return list(found.values())


def _one_recording(rows: Sequence[CheckedRow]) -> bool:
    """Whether several clips are all cut from the same recording."""
    return len(rows) > 1 and len({row.row.audio for row in rows}) == 1


def _marks(row: CheckedRow, by_speaker: bool, apart: bool) -> Iterator[tuple[str, str]]:
    """What ties a row to others; its recording where clips of several can be kept `apart`."""
    yield "text", row.normal
    if apart:
        yield "recording", str(row.row.audio)
    if by_speaker:
        yield "speaker", row.row.speaker


def _chosen(rows: Sequence[CheckedRow], groups: Sequence[Sequence[int]], held_out: float, seed: int) -> set[int]:
    """Rows of the groups that are held out: drawn one after another, those passed over that would take too many."""
    texts = [{rows[index].normal for index in group} for group in groups]
    total = sum(map(len, texts))
    wanted = round(held_out * total)
    wanted = max(1, wanted) if held_out > 0 and len(groups) > 1 else min(wanted, total)
    order = sorted(range(len(groups)), key=lambda group: _order(min(texts[group]), seed))
    chosen: list[int] = []
    for group in order:
        if len(texts[group]) <= wanted:
            chosen.append(group)
            wanted -= len(texts[group])
    if not chosen and wanted > 0 and len(groups) > 1:
        chosen = [min(order, key=lambda group: len(texts[group]))]  # every group is larger than the share
    return {index for group in chosen for index in groups[group]}


def _name(audio: Path) -> str:
    return "/".join(audio.parts[-2:])


def _order(text: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}/{text}".encode()).hexdigest()
