"""Which clips are kept from training: decided by text, so that no sentence stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from config.errors import UserError
from data.manifest import HELD_OUT, TRAIN
from data.validation import CheckedRow, Finding


def assign(rows: Sequence[CheckedRow], held_out: float, seed: int) -> tuple[str, ...]:
    """The split of each row, deterministic in the texts and `seed`.

    Splits named by the source are kept; rows without one follow their text, or train. Where
    the source names none, the `held_out` share of distinct texts is held out, at least one.
    """
    if any(row.row.split for row in rows):
        held = {row.normal for row in rows if row.row.split == HELD_OUT}
    else:
        texts = sorted({row.normal for row in rows}, key=lambda text: _order(text, seed))
        count = round(held_out * len(texts))
        held = set(texts[:max(1, count) if held_out > 0 and len(texts) > 1 else count])
    splits = tuple(row.row.split or (HELD_OUT if row.normal in held else TRAIN) for row in rows)
    if TRAIN not in splits:
        named = any(row.row.split for row in rows)
        hint = ("The source's own split column did it: mark some rows as train there, or leave the column out."
                if named else "Choose a smaller held-out share, or add recordings of other sentences.")
        raise UserError(f"All {len(rows)} clips are held out, none is left to train on.", hint)
    return splits


def leaks(rows: Sequence[CheckedRow], splits: Sequence[str]) -> tuple[Finding, ...]:
    """Training clips whose text is also held out; only a source that names splits can have them."""
    held = {row.normal for row, split in zip(rows, splits, strict=True) if split == HELD_OUT}
    return tuple(
        Finding("leak", row.row.where, f"{row.row.id} trains on a held-out text: {row.row.text!r}")
        for row, split in zip(rows, splits, strict=True) if split == TRAIN and row.normal in held
    )


def _order(text: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}/{text}".encode()).hexdigest()
