"""A source added to a dataset that is there.

What is new to it comes under ids that are free, on the side of the split where its text, recording or (by choice)
speaker is already. What was there stays as it was, ids and all; no id gains a prefix, so adding to what was added to
changes none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data.disk_collections import DiskDict
from data.importers import unused_id
from data.manifest import PreparedDataset
from data.normalisers import TextNormaliser
from data.splits import Sides
from data.validation import CheckedRow, ValidationFinding, checked_rows_on_disk


class Joined:
    """A dataset that something is added to, and what must be known of it, which lies on the disk."""

    def __init__(self, dataset: PreparedDataset, reading: TextNormaliser, *, by_speaker: bool = False) -> None:
        self.dataset = dataset
        clips = ((clip, reading.normal(clip.text)) for clip in dataset.clips)
        self.sides = Sides.gather(clips, by_speaker=by_speaker)
        self._by_sound = DiskDict()
        for clip in dataset.clips:
            self._by_sound.put(clip.sha256, json.dumps([clip.id, clip.text]))

    def same_sound(self, sha256: str) -> tuple[str, str] | None:
        """Id and text of the clip with these bytes."""
        kept = self._by_sound.get(sha256)
        return tuple(json.loads(kept)) if kept is not None else None


def join(joined: Joined, rows: Sequence[CheckedRow], source: str,
         folder: Path | None = None) -> tuple[Sequence[CheckedRow], tuple[ValidationFinding, ...], str]:
    """The rows that are new, with ids that are free; what differs from what is there; and a line that counts them."""
    new = checked_rows_on_disk(folder)
    found: list[ValidationFinding] = []
    name = joined.dataset.card.name
    with DiskDict() as ids:
        for clip in joined.dataset.clips:
            ids.put(clip.id.casefold(), clip.id)
        for row in rows:
            there = joined.same_sound(row.sha256)
            if there is None:
                new.add(replace(row, row=replace(row.row, id=unused_id(row.row.id, row.row.where, ids))))
            elif there[1] != row.row.text:
                message = f"the recording is in {name} as {there[0]}, with a text that stays: {there[1][:80]!r}"
                found.append(ValidationFinding("another text", row.row.where, message))
    known = len(rows) - len(new)
    note = f"{len(new)} clips of {source} are added to the {len(joined.dataset.clips)} of {name}"
    return new, tuple(found), f"{note}; {known} were there already." if known else f"{note}."
