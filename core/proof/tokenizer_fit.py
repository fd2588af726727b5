"""A tokenizer from elsewhere beside the rows it is used with and the tokenizer of the base.

Equal sizes say nothing: each base piece must have the id it had, or its row must have moved
with it. One row more than there are ids is no fault; published checkpoints have one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from config.errors import UserError
from core.library.diagnosis import TokenizerFit
from data.bpe import highest_id, vocabulary

_NAMED = 6  # pieces named in a report
_ALIKE = 0.9  # cosine from which a row is the one that was there


def find(given: str, checkpoint: Path, rows: int) -> Path | None:
    """The tokenizer file: the one given, else the one beside the checkpoint that fits its rows best; None for none.

    Raises `UserError` when the one given is no tokenizer.
    """
    if given:
        path = Path(given)
        candidates = sorted(path.glob("*.json")) if path.is_dir() else [path]
        fitting = _fitting(candidates, rows)
        if not fitting and path.is_dir():
            raise UserError(f"{path} holds no BPE tokenizer file (JSON).", "Give the tokenizer's file itself.")
        return fitting[0] if fitting else path
    if not checkpoint.is_dir():
        return None  # beside a single file lies anything; it is not known to belong to it
    fitting = _fitting(sorted(checkpoint.glob("*.json")), rows)
    return fitting[0] if fitting else None


def _fitting(paths: list[Path], rows: int) -> list[Path]:
    """Those that are BPE files, the one whose size is nearest to `rows` first."""
    sizes = {path: highest_id(ids) + 1 for path in paths if (ids := _ids(path))}
    return sorted(sizes, key=lambda path: (abs(rows - sizes[path]), path.name))


def _ids(path: Path) -> dict[str, int]:
    """Pieces and ids of a file; empty when it is no BPE tokenizer."""
    try:
        content = path.read_bytes()
        return vocabulary(content, str(path)) if "model" in json.loads(content) else {}
    except (OSError, ValueError, UserError, TypeError):
        return {}


def read(path: Path) -> dict[str, int]:
    """Pieces and ids of the tokenizer file `path`; `UserError` when it is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Give the tokenizer's JSON file.") from error
    return vocabulary(content, str(path))


def fit(path: Path, base: Mapping[str, int], before: torch.Tensor, after: torch.Tensor) -> TokenizerFit:
    """The tokenizer in `path` beside that of the base (its pieces and ids) and both text embeddings (N, D)."""
    ids = read(path)
    size, base_size, rows = highest_id(ids) + 1, len(before), len(after)
    moved = [(piece, old, ids[piece]) for piece, old in base.items() if piece in ids and ids[piece] != old]
    lost = [piece for piece in base if piece not in ids]
    taken = set(base.values())
    trespassing = [(piece, row) for piece, row in ids.items() if piece not in base and row in taken]
    return TokenizerFit(
        str(path), size, rows, base_size, spare=rows - len(set(ids.values()) & set(range(rows))),
        moved=tuple(moved[:_NAMED]), moved_count=len(moved), lost=tuple(lost[:_NAMED]), lost_count=len(lost),
        following=_following(moved, before, after), trespassing=tuple(trespassing[:_NAMED]),
        trespassing_count=len(trespassing), added=sum(base_size <= row < rows for row in ids.values()),
        beyond=sum(row >= rows for row in ids.values()),
    )


def _following(moved: list[tuple[str, int, int]], before: torch.Tensor, after: torch.Tensor) -> int:
    """How many of the moved pieces find their own row at their new id."""
    there = [(old, new) for _, old, new in moved if old < len(before) and new < len(after)]
    if not there or before.shape[1:] != after.shape[1:]:
        return 0
    olds, news = (torch.tensor(ids) for ids in zip(*there, strict=True))
    pairs = before[olds].float(), after[news].float()
    alike = torch.nn.functional.cosine_similarity(*pairs, dim=1)
    return int((alike > _ALIKE).sum())
