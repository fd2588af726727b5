"""Where new rows start: pure functions of the old rows, the front-end and a seed.

A trial at 5 M parameters heard the romanised start ahead of the mean, and the mean ahead of
noise, at every point of training. No two rows are equal, or they could never part: equal
rows get equal gradients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from config.errors import UserError
from config.schema import Initialisation
from core.text.row_sources import AROUND_THE_MEAN, source_ids
from data.front_end import FrontEnd, NewToken
from data.languages.latin import romanise

_SYLLABLE = re.compile("([^aeiou]+)([aeiou]+)")
_NOISE = {"mean": 0.1, "random": 1.0}  # around the mean of all rows, in standard deviations of the old ones
TWIN_NOISE = 0.02  # the same, for rows that would equal another


@dataclass(frozen=True)
class Initialised:
    """New rows by table, and what each token started from."""

    rows: dict[str, torch.Tensor]  # name -> (M, D), as the old rows' type
    spelled: tuple[str, ...]  # tokens that start from the base tokens that spell them
    fallen_back: tuple[str, ...]  # tokens that the base cannot spell: they start from the mean
    tags: tuple[str, ...]  # from the mean of the base's tags
    spellings: tuple[tuple[int, ...], ...] = ()  # old ids of each token's spelling; none for tags and what has none


def initial_rows(tables: Mapping[str, torch.Tensor], base: FrontEnd, extended: FrontEnd,
                 strategy: Initialisation, seed: int) -> Initialised:
    """Rows for the tokens that `extended` adds to `base`, for each table of old rows (N, D).

    Every table gets its rows from the same old ids. Raises `UserError` where tables,
    base and extended do not belong together, with both sizes.
    """
    extended.check_extends(base)
    for name, old in tables.items():
        if len(old) != base.prefix_size:
            raise UserError(
                f"{name} has {len(old)} rows, the base tokenizer {base.prefix_size} ids: they do not belong together.",
                "Use the tokenizer that came with this model.",
            )
    tokens = extended.added_tokens()
    sources = [source_ids(token, base, strategy) for token in tokens]
    factors = [_factors(token, base) if strategy == "factored" else None for token in tokens]
    generator = torch.Generator().manual_seed(seed)
    noise = _NOISE.get(strategy, _NOISE["mean"])
    rows = {name: _rows(old, sources, factors, generator, noise) for name, old in tables.items()}
    return Initialised(
        rows,
        spellings=tuple(tuple(ids) if token.kind != "tag" else () for token, ids in zip(tokens, sources, strict=True)),
        spelled=tuple(t.text for t, ids in zip(tokens, sources, strict=True) if ids and t.kind != "tag"),
        fallen_back=tuple(t.text for t, ids in zip(tokens, sources, strict=True)
                          if not ids and t.kind != "tag" and strategy not in AROUND_THE_MEAN),
        tags=tuple(token.text for token in tokens if token.kind == "tag"),
    )


def _factors(token: NewToken, base: FrontEnd) -> tuple[list[int], list[int]] | None:
    """Old ids of the consonant and of the vowel of a syllable's one letter; None for all else."""
    if token.kind == "tag" or len(token.text) != 1 or not (found := _SYLLABLE.fullmatch(romanise(token.text))):
        return None
    unknown_id = base.special_id("[UNK]")
    consonant, vowel = ([one for one in base.spell(part)[0] if one != unknown_id] for part in found.groups())
    return (consonant, vowel) if consonant and vowel else None


def _rows(old: torch.Tensor, sources: Sequence[Sequence[int]],
          factors: Sequence[tuple[Sequence[int], Sequence[int]] | None], generator: torch.Generator,
          share: float) -> torch.Tensor:
    """New rows (M, D) for old rows (N, D), computed in float32 on the CPU; `share` of noise around the mean of all.

    A syllable has the whole of what sets its consonant apart from the mean of all rows, and the whole of its vowel's;
    the mean of the two would have half of each.
    """
    exact = old.detach().float().cpu()
    mean, spread = exact.mean(0), exact.std(0, correction=0).clamp(min=1e-6)
    rows = torch.empty(len(sources), exact.shape[1])
    for index, ids in enumerate(sources):
        noise = torch.randn(exact.shape[1], generator=generator) * spread
        rows[index] = exact[list(ids)].mean(0) if ids else mean + share * noise
        if (pair := factors[index]) is not None:
            rows[index] = sum(exact[list(part)].mean(0) for part in pair) - mean
    return _part_twins(rows.to(old.dtype), exact.to(old.dtype), spread, generator)


def _part_twins(rows: torch.Tensor, old: torch.Tensor, spread: torch.Tensor,
                generator: torch.Generator) -> torch.Tensor:
    """Add a little noise to each row that equals another, old or new, until none does."""
    while (twins := _twins(rows, old)).any():
        noise = TWIN_NOISE * spread * torch.randn(rows.shape, generator=generator)
        rows = torch.where(twins[:, None], (rows.float() + noise).to(rows.dtype), rows)
    return rows


def _twins(rows: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """(M,) bool: whether a new row equals any other row."""
    together = torch.cat([rows, old]).float()
    _, group, counts = together.unique(dim=0, return_inverse=True, return_counts=True)
    return (counts[group] > 1)[:len(rows)]
