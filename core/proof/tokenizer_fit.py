"""How a tokenizer from elsewhere fits the rows it is used with and the tokenizer of the base.

Equal sizes prove nothing: each base piece must have the id it had, or its row must have moved with it. One row more
than there are ids is no fault; published checkpoints have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, product
from pathlib import Path

import torch

from config import confinement, foreign
from config.errors import UserError
from core.library.diagnosis import TokenizerFit
from core.library.records import FRONT_END
from data.front_end import read_segmenter
from data.segmenters import highest_id

_NAMED = 6  # pieces named in a report
_ALIKE = 0.9  # cosine from which a row is the one that was there


def find_tokenizer(path_given: str, checkpoint: Path, rows: int) -> Path | None:
    """The tokenizer file: the one given, else the one beside the checkpoint that fits its rows best; None for none.

    An export of Lisan has one file for each language in its front-end.

    Raises `UserError` when the one given is no tokenizer.
    """
    if not path_given and not checkpoint.is_dir():
        # A file beside a single checkpoint file is not known to belong to it.
        return None
    path = confinement.open_path(path_given) if path_given else checkpoint

    sizes = {}
    patterns = product((path, path / FRONT_END), ("*.json", "*.model"))
    beside = sorted(chain.from_iterable(folder.glob(pattern) for folder, pattern in patterns))
    for file in beside if path.is_dir() else [path]:
        # Other JSON files are no tokenizers.
        with suppress(OSError, ValueError, UserError, TypeError):
            ids = read_pieces(file)
            if ids:
                sizes[file] = highest_id(ids) + 1

    if sizes:
        return min(sizes, key=lambda file: (abs(rows - sizes[file]), file.name))
    if path_given and path.is_dir():
        raise UserError(f"{path} holds no BPE tokenizer (JSON or SentencePiece).", "Give the tokenizer's file itself.")
    return path if path_given else None


def read_pieces(path: Path) -> dict[str, int]:
    """Pieces and ids of the tokenizer file `path`; `UserError` when it is none."""
    try:
        content = foreign.read_bytes(path)
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Give the tokenizer's file.") from error
    return dict(read_segmenter(content, str(path)).ids)


def fit_tokenizer(path: Path, base: Mapping[str, int], base_rows: torch.Tensor,
                  new_table: torch.Tensor) -> TokenizerFit:
    """Compare the tokenizer in `path` with that of the base (its pieces and ids) and both text embeddings (N, D)."""
    ids = read_pieces(path)
    size, base_size, rows = highest_id(ids) + 1, len(base_rows), len(new_table)

    moved = [(piece, old, ids[piece]) for piece, old in base.items() if piece in ids and ids[piece] != old]
    lost = [piece for piece in base if piece not in ids]
    base_ids = set(base.values())
    trespassing = [(piece, row) for piece, row in ids.items() if piece not in base and row in base_ids]
    # The number of moved pieces whose row is at their new id.
    following = 0
    pairs = [(old, new) for _, old, new in moved if old < len(base_rows) and new < len(new_table)]
    if pairs and base_rows.shape[1:] == new_table.shape[1:]:
        olds, news = (torch.tensor(rows) for rows in zip(*pairs, strict=True))
        similarity = torch.nn.functional.cosine_similarity(base_rows[olds].float(), new_table[news].float(), dim=1)
        following = int((similarity > _ALIKE).sum())

    return TokenizerFit(
        str(path), size, rows, base_size, spare=rows - len(set(ids.values()) & set(range(rows))),
        moved=tuple(moved[:_NAMED]), moved_count=len(moved), lost=tuple(lost[:_NAMED]), lost_count=len(lost),
        following=following, trespassing=tuple(trespassing[:_NAMED]),
        trespassing_count=len(trespassing), added=sum(base_size <= row < rows for row in ids.values()),
        beyond=sum(row >= rows for row in ids.values()),
    )
