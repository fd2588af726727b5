"""What stands in the rows behind the base's: rows that learned, or rows that no training reached.

Rows that began as zeros, as the mean row, or as the mean row and almost nothing (the mean resizing of
transformers adds a normal of 1e-9 of the old rows' covariance) and never learned are alike: a model cannot tell
the new letters from each other.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from core.library.diagnosis import NEW_ROWS, TensorFinding
from core.proof.tensor_change import named

_NEAR = 1e-3  # of the old rows' length: rows that are nearer are alike. The mean resizing leaves 5e-5
_AT_ONCE = 1024  # rows held against all others


def examine(name: str, before: torch.Tensor, after: torch.Tensor,
            used: Collection[int] | None = None) -> list[TensorFinding]:
    """A finding for the rows of `after` (M, D) behind those of `before` (N, D); none where there are no more.

    `used` are the ids that have a piece, where the tokenizer is known: rows without one only fill up the table.
    """
    rows, kind = after[len(before):].float(), named(after.dtype)
    if not len(rows):
        return []
    shape, count = tuple(rows.shape), len(rows)
    if broken := int((~torch.isfinite(rows)).any(1).sum()):
        words = f"{broken} of {count} rows hold values that are no numbers"
        return [TensorFinding(name, NEW_ROWS, "broken", words, shape, kind, rows=count)]
    named_rows = sorted(row - len(before) for row in used or () if len(before) <= row < len(after))
    read = rows[named_rows] if named_rows else rows
    length = float(before.float().norm(dim=1).median().clamp(min=1e-12))
    apart = distinct(read, _NEAR * length)
    words = f"their length is {float(read.norm(dim=1).median()) / length:.2f} times that of the old rows"
    if len(read) < count:
        words += f"; {count - len(read)} have no piece and are not counted"
    if apart == 1 < len(read):
        words += "; all of them are alike, so that none can be told from another"
    elif apart < len(read):
        words += f"; only {apart} of them differ from each other, and rows that are alike cannot be told apart"
    state = "untrained" if _untrained(read, apart, bool(named_rows)) else "new"
    return [TensorFinding(name, NEW_ROWS, state, words, shape, kind,  # type: ignore[arg-type]
                          rows=count, distinct=apart)]


def distinct(rows: torch.Tensor, near: float) -> int:
    """How many of the rows (N, D) lie farther than `near` from each one before them."""
    centred = (rows - rows.mean(0)).double()
    count = 0
    for start in range(0, len(centred), _AT_ONCE):
        some = centred[start:start + _AT_ONCE]
        alike = torch.cdist(some, centred[:start + len(some)]) <= near
        count += int((~alike.tril(start - 1).any(1)).sum())
    return count


def _untrained(read: torch.Tensor, apart: int, have_pieces: bool) -> bool:
    """Whether fewer than half differ; a single row is judged where it is known to be read, for many files have a
    spare one."""
    if len(read) == 1:
        return have_pieces and not read.any()
    return apart == 1 or apart * 2 < len(read)
