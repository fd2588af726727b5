"""New rows fitted, without any audio, to what the frozen model makes of the romanised spelling.

Made-up words of the new tokens go through the model once as they are and once spelled with
old ones. The embedding rows of the new tokens learn to leave the model in the state, at each
token, in which the last letter of its spelling leaves it. Rows of the head are not fitted:
made-up words say nothing of what follows what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from core.voice_model.loading import VoiceModel, extended
from core.voice_model.prefix import new_rows
from data.front_end import FrontEnd
from models.base import Sample, Voice

_STEPS, _TEXTS, _WORDS, _LETTERS = 60, 4, 4, 5
_RATE = 0.1  # of the rows' standard deviation


@dataclass(frozen=True)
class Fitted:
    """Rows by table, and how far the states were from those of the spelling, as a share of their own norm."""

    rows: dict[str, torch.Tensor]
    before: float
    after: float


@dataclass(frozen=True)
class _Text:
    """A made-up text in new ids, the same in old ids, and where in the latter each of the former ends."""

    new: np.ndarray
    old: np.ndarray
    ends: list[int]


def fit(base: VoiceModel, front_end: FrontEnd, rows: Mapping[str, torch.Tensor],
        spellings: Sequence[Sequence[int]], seed: int, progress: Callable[[int, int], None]) -> Fitted:
    """Fit `rows`, of which `spellings` are the old ids; changes `base.model`. `progress` gets steps done and in all."""
    voices = base.family.voices(base.base_folder)
    if not voices:
        raise UserError("The rows cannot be fitted: the base model comes without a voice to read with.",
                        "Choose the start `romanised`.")
    speaker, prefix = next(iter(voices.values())), front_end.prefix_size
    voice = extended(base, front_end, rows)
    chance = random.Random(seed)
    spelled = [prefix + index for index, ids in enumerate(spellings) if ids]
    texts = [_text(chance, front_end, spelled, spellings) for _ in range(_STEPS * _TEXTS)]
    unseen = [_text(chance, front_end, spelled, spellings) for _ in range(2 * _TEXTS)]
    table = _embedding(voice)
    table.requires_grad_(True)
    start, scale = table.detach().clone(), float(table.detach().std().clamp(min=1e-6))
    optimizer = torch.optim.Adam([table], lr=_RATE * scale)
    before = _measured(voice, unseen, speaker)
    for step in range(_STEPS):
        optimizer.param_groups[0]["lr"] = _RATE * scale * (1 - step / _STEPS)
        optimizer.zero_grad()
        _distance(voice, texts[step * _TEXTS:(step + 1) * _TEXTS], speaker).backward()
        optimizer.step()
        progress(step + 1, _STEPS)
    table.requires_grad_(False)
    after = _measured(voice, unseen, speaker)
    if after >= before:
        table.data.copy_(start)
    found = {name: value.detach().to(rows[name].dtype).clone()
             for name, value in new_rows(voice.model.module, voice.model.text_tables).items()}
    return Fitted(found, before, min(before, after))


def _embedding(voice: VoiceModel) -> nn.Parameter:
    """The new rows of the table that texts are read with."""
    return new_rows(voice.model.module, voice.model.text_tables)[voice.model.text_tables[0]]


def _text(chance: random.Random, front_end: FrontEnd, spelled: Sequence[int],
          spellings: Sequence[Sequence[int]]) -> _Text:
    """A few words of new tokens that the base can spell, between what begins and ends every text."""
    prefix = front_end.prefix_size
    start, space, stop = (front_end.special_id(name) for name in ("[START]", "[SPACE]", "[STOP]"))
    new = [start]
    for word in range(_WORDS):
        new += [chance.choice(spelled) for _ in range(chance.randint(1, _LETTERS))]
        new += [space] if word + 1 < _WORDS else [stop]
    old: list[int] = []
    ends = []
    for token in new:
        old += [token] if token < prefix else list(spellings[token - prefix])
        ends.append(len(old) - 1)
    return _Text(np.array(new), np.array(old), ends)


def _distance(voice: VoiceModel, texts: Sequence[_Text], speaker: Voice) -> torch.Tensor:
    """Mean squared distance of the states, relative to the squared states of the spelling."""
    with torch.no_grad():
        spelled = voice.model.text_hidden_states([_sample(text.old, speaker) for text in texts])
    wanted = torch.cat([states[text.ends] for states, text in zip(spelled, texts, strict=True)])
    seen = torch.cat(voice.model.text_hidden_states([_sample(text.new, speaker) for text in texts]))
    return (seen - wanted).square().sum() / wanted.square().sum()


@torch.no_grad()
def _measured(voice: VoiceModel, texts: Sequence[_Text], speaker: Voice) -> float:
    return float(_distance(voice, texts, speaker)) ** 0.5


def _sample(ids: np.ndarray, speaker: Voice) -> Sample:
    return Sample(ids, np.zeros(0, np.int64), speaker.speaker_embedding, speaker.prompt_codes)
