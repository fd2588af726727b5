"""A source added to a dataset that is there.

What is new to it comes under ids that are free, on the side of the split where its text, recording or (by choice)
speaker is already. What was there stays as it was, ids and all; no id gains a prefix, so adding to what was added to
changes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data.importers import unused
from data.kept import Kept
from data.manifest import Clip, Dataset
from data.normalise import Reading
from data.splits import Sides
from data.validation import CheckedRow, Finding


@dataclass(frozen=True)
class Joined:
    """A dataset that something is added to, and what must be known of it."""

    dataset: Dataset
    by_sound: dict[str, Clip]  # SHA-256 of its recordings
    sides: Sides

    @classmethod
    def of(cls, dataset: Dataset, reading: Reading, *, by_speaker: bool = False) -> Joined:
        clips = ((clip, reading.normal(clip.text)) for clip in dataset.clips)
        return cls(dataset, {clip.sha256: clip for clip in dataset.clips}, Sides.gather(clips, by_speaker=by_speaker))


def join(joined: Joined, rows: Sequence[CheckedRow],
         source: str) -> tuple[tuple[CheckedRow, ...], tuple[Finding, ...], str]:
    """The rows that are new, with ids that are free; what differs from what is there; and a line that counts them."""
    new: list[CheckedRow] = []
    found: list[Finding] = []
    name = joined.dataset.card.name
    with Kept() as ids:
        for clip in joined.dataset.clips:
            ids.put(clip.id.casefold(), clip.id)
        for row in rows:
            there = joined.by_sound.get(row.sha256)
            if there is None:
                new.append(replace(row, row=replace(row.row, id=unused(row.row.id, row.row.where, ids))))
            elif there.text != row.row.text:
                message = f"the recording is in {name} as {there.id}, with a text that stays: {there.text[:80]!r}"
                found.append(Finding("another text", row.row.where, message))
    known = len(rows) - len(new)
    note = f"{len(new)} clips of {source} are added to the {len(joined.dataset.clips)} of {name}"
    return tuple(new), tuple(found), f"{note}; {known} were there already." if known else f"{note}."
