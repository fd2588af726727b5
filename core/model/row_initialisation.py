"""Initialisation of the new rows: from old rows, the front-end and a seed; on request fitted to the frozen model.

In a trial at 5 M parameters the romanised start was ahead of the mean, and the mean ahead of noise, at every point of
training. No two rows are equal: equal rows get equal gradients and would stay equal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from config.errors import UserError
from config.schema import Initialisation
from core.model.loading import TTSModel, extend_model
from core.model.prefix import new_rows, parameter_name
from core.text.row_sources import AROUND_THE_MEAN, source_ids
from data.front_end import FrontEnd, NewToken
from data.languages.latin import romanise_by_order
from models.base import Sample

_SYLLABLE = re.compile("([^aeiou]+)([aeiou]+)")
_NOISE = {"mean": 0.1, "random": 1.0}  # around the mean of all rows, in standard deviations of the old ones
DUPLICATE_NOISE = 0.02  # the same, for rows that would equal another
_FIT_STEPS, _FIT_TEXTS, _WORDS, _LETTERS = 60, 4, 4, 5
_FIT_LR = 0.1  # fraction of the rows' standard deviation


@dataclass(frozen=True)
class InitialRows:
    """New rows by table, and what each token started from."""

    rows: dict[str, torch.Tensor]  # name -> (M, D), or (M,) of a bias, as the old rows' type
    spelled: tuple[str, ...]  # tokens that start from the base tokens that spell them
    fallen_back: tuple[str, ...]  # tokens that the base cannot spell: they start from the mean
    tags: tuple[str, ...]  # tags that start from the mean of the base's tags
    spellings: tuple[tuple[int, ...], ...] = ()  # old ids of each token's spelling; none for tags and what has none


def initial_rows(tables: Mapping[str, torch.Tensor], base: FrontEnd, extended: FrontEnd,
                 strategy: Initialisation, seed: int, language_table: str = "") -> InitialRows:
    """Rows for the tokens that `extended` adds to `base`, for each table of old rows (N, D), or (N,) of a bias.

    Every table gets its rows from the same old ids. The `language_table` among them has one row a language; the row of
    a new language is a copy of the base's row of that language, or else the mean of the base languages' rows. Raises
    `UserError` if tables, base and extended do not belong together, with both sizes.
    """
    extended.check_extends(base)

    of_languages = {name: old for name, old in tables.items() if name == language_table}
    tables = {name: old for name, old in tables.items() if name != language_table}
    for name, old in tables.items():
        if len(old) != base.size:
            raise UserError(
                f"{name} has {len(old)} rows, the base tokenizer {base.size} ids: they do not belong together.",
                "Use the tokenizer that came with this model.",
            )

    # The ids of a token's spelling are its sources in every table.
    tokens = extended.added_to(base)
    sources = [source_ids(token, base, strategy, extended.by_code[token.language].variant_of) for token in tokens]
    factors = [_factors(token, base) if strategy == "factored" else None for token in tokens]
    generator = torch.Generator().manual_seed(seed)
    noise = _NOISE.get(strategy, _NOISE["mean"])
    rows = {name: _rows(old, sources, factors, generator, noise) for name, old in tables.items()}

    # The table of languages gets copies or means of the base's rows.
    for name, old in of_languages.items():
        languages = [base.language_rows(token.language) for token in tokens if token.kind == "tag"]
        exact = old.detach().float().cpu()
        rows[name] = torch.stack([exact[list(indices)].mean(0) for indices in languages]).to(old.dtype)

    return InitialRows(
        rows,
        spellings=tuple(tuple(ids) if token.kind != "tag" else () for token, ids in zip(tokens, sources, strict=True)),
        spelled=tuple(token.text for token, ids in zip(tokens, sources, strict=True) if ids and token.kind != "tag"),
        fallen_back=tuple(token.text for token, ids in zip(tokens, sources, strict=True)
                          if not ids and token.kind != "tag" and strategy not in AROUND_THE_MEAN),
        tags=tuple(token.text for token in tokens if token.kind == "tag"),
    )


def _factors(token: NewToken, base: FrontEnd) -> tuple[list[int], list[int]] | None:
    """Old ids of the consonant and of the vowel of a syllable's one letter; None for all else."""
    if token.kind == "tag" or len(token.text) != 1:
        return None
    syllable = _SYLLABLE.fullmatch(romanise_by_order(token.text))
    if syllable is None:
        return None
    consonant, vowel = (base.spell_piece(base.cased(part))[0] for part in syllable.groups())
    consonant = [index for index in consonant if index != base.unknown_id]
    vowel = [index for index in vowel if index != base.unknown_id]
    return (consonant, vowel) if consonant and vowel else None


def _rows(old: torch.Tensor, sources: Sequence[Sequence[int]],
          factors: Sequence[tuple[Sequence[int], Sequence[int]] | None], generator: torch.Generator,
          share: float) -> torch.Tensor:
    """New rows (M, D) for old rows (N, D), computed in float32 on the CPU; `share` of noise around the mean of all.

    Biases (M,) have no noise, and may be equal: the rows that they belong to tell the tokens apart. A syllable has the
    full difference of its consonant from the mean of all rows, and the full difference of its vowel; the mean of the
    two would have half of each.
    """
    exact = old.detach().float().cpu()
    mean, spread = exact.mean(0), exact.std(0, correction=0).clamp(min=1e-6)
    rows, is_bias = torch.empty(len(sources), *exact.shape[1:]), exact.ndim == 1
    for index, ids in enumerate(sources):
        noise = torch.zeros(()) if is_bias else torch.randn(exact.shape[1], generator=generator) * spread
        rows[index] = exact[list(ids)].mean(0) if ids else mean + share * noise
        pair = factors[index]
        if pair is not None:
            rows[index] = sum(exact[list(part)].mean(0) for part in pair) - mean
    if is_bias:
        return rows.to(old.dtype)
    return _separate_duplicates(rows.to(old.dtype), exact.to(old.dtype), spread, generator)


def _separate_duplicates(rows: torch.Tensor, old: torch.Tensor, spread: torch.Tensor,
                         generator: torch.Generator) -> torch.Tensor:
    """Add a little noise to each row that equals another, old or new, until all differ."""
    duplicates = _duplicates(rows, old)
    while duplicates.any():
        noise = DUPLICATE_NOISE * spread * torch.randn(rows.shape, generator=generator)
        rows = torch.where(duplicates[:, None], (rows.float() + noise).to(rows.dtype), rows)
        duplicates = _duplicates(rows, old)
    return rows


def _duplicates(rows: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """(M,) bool: whether a new row equals any other row."""
    together = torch.cat([rows, old]).float()
    _, group, counts = together.unique(dim=0, return_inverse=True, return_counts=True)
    return (counts[group] > 1)[:len(rows)]


@dataclass(frozen=True)
class FittedRows:
    """Rows by table, and how far the states were from those of the spelling, as a share of their own norm."""

    rows: dict[str, torch.Tensor]
    before: float
    after: float


@dataclass(frozen=True)
class _PseudoText:
    """A random text in new ids, the same in old ids, and where in the latter each of the former ends."""

    new: np.ndarray
    old: np.ndarray
    ends: list[int]


def fit_rows(base: TTSModel, front_end: FrontEnd, rows: Mapping[str, torch.Tensor],
             spellings: Sequence[Sequence[int]], seed: int, progress: Callable[[int, int], None]) -> FittedRows:
    """Fit `rows`, without audio, to what the frozen model computes for the romanised spelling; changes `base.model`.

    Pseudo-words of the new tokens go through the model as they are and as `spellings` in old ids. The embedding rows
    learn to give, at each token, the state that the last letter of its spelling gives. Rows of the head are not fitted:
    pseudo-words do not show which token follows which. `progress` gets the steps done and their total.
    """
    voice = next(iter(base.family.load_voices(base.base_folder).values()), None)
    features = base.lm.probe_features(voice)
    if features is None:
        raise UserError("The rows cannot be fitted: the base model comes without a voice to read with.",
                        "Choose the start `romanised`.")

    conditioning, prefix = voice.conditioning if voice else features.conditioning, base.front_end.size
    model = extend_model(base, front_end, rows)

    # Pseudo-texts to fit on, and unseen ones to measure on.
    rng = random.Random(seed)
    spelled = [prefix + index for index, ids in enumerate(spellings) if ids]
    texts = [_pseudo_text(rng, front_end, prefix, spelled, spellings) for _ in range(_FIT_STEPS * _FIT_TEXTS)]
    unseen = [_pseudo_text(rng, front_end, prefix, spelled, spellings) for _ in range(2 * _FIT_TEXTS)]

    # Only the rows of the text embedding are trained.
    table = model.lm.module.get_parameter(parameter_name(model.lm.text_tables[0]))
    table.requires_grad_(True)
    start, scale = table.detach().clone(), float(table.detach().std().clamp(min=1e-6))
    optimizer = torch.optim.Adam([table], lr=_FIT_LR * scale)
    base_distance = _measured(model, unseen, conditioning)
    for step in range(_FIT_STEPS):
        optimizer.param_groups[0]["lr"] = _FIT_LR * scale * (1 - step / _FIT_STEPS)
        optimizer.zero_grad()
        _distance(model, texts[step * _FIT_TEXTS:(step + 1) * _FIT_TEXTS], conditioning).backward()
        optimizer.step()
        progress(step + 1, _FIT_STEPS)
    table.requires_grad_(False)
    fitted_distance = _measured(model, unseen, conditioning)

    # Rows that do not generalise to unseen pseudo-texts are dropped.
    if fitted_distance >= base_distance:
        table.data.copy_(start)
    fitted = {name: value.detach().to(rows[name]).clone()
             for name, value in new_rows(model.lm.module, model.lm.text_tables).items()}
    return FittedRows(fitted, base_distance, min(base_distance, fitted_distance))


def _pseudo_text(rng: random.Random, front_end: FrontEnd, prefix: int, spelled: Sequence[int],
                 spellings: Sequence[Sequence[int]]) -> _PseudoText:
    """A few words of new tokens that the base can spell, between what begins and ends every text."""
    start, space, stop = front_end.start_id, front_end.space_id, front_end.stop_id
    new = [start]
    for word in range(_WORDS):
        new += [rng.choice(spelled) for _ in range(rng.randint(1, _LETTERS))]
        new += [space] if word + 1 < _WORDS else [stop]
    old: list[int] = []
    ends = []
    for token in new:
        old += [token] if token < prefix else list(spellings[token - prefix])
        ends.append(len(old) - 1)
    return _PseudoText(np.array(new), np.array(old), ends)


def _distance(model: TTSModel, texts: Sequence[_PseudoText], conditioning: Mapping[str, np.ndarray]) -> torch.Tensor:
    """Mean squared distance of the states, relative to the squared states of the spelling."""
    with torch.no_grad():
        spelled = model.lm.text_hidden_states([_sample(text.old, conditioning) for text in texts])
    target = torch.cat([states[text.ends] for states, text in zip(spelled, texts, strict=True)])
    seen = torch.cat(model.lm.text_hidden_states([_sample(text.new, conditioning) for text in texts]))
    return (seen - target).square().sum() / target.square().sum()


@torch.no_grad()
def _measured(model: TTSModel, texts: Sequence[_PseudoText], conditioning: Mapping[str, np.ndarray]) -> float:
    return float(_distance(model, texts, conditioning)) ** 0.5


def _sample(ids: np.ndarray, conditioning: Mapping[str, np.ndarray]) -> Sample:
    return Sample(ids, np.zeros(0, np.int64), conditioning)
