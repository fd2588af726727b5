"""Clips of the base languages that come with a model: some to probe it with, some for `full` to rehearse.

Every second clip probes and is never trained on, so that drift is not measured on what was rehearsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.loading import VoiceModel
from core.training_data import Utterance, nearest, sample, utterance
from models.base import Sample, Voice


@dataclass(frozen=True)
class Replay:
    """Base-language clips by use."""

    rehearsed: tuple[Utterance, ...]
    probing: tuple[Utterance, ...]


@dataclass(frozen=True)
class ProbeSample:
    """One teacher-forced sample of a base language."""

    language: str
    text: str
    sample: Sample


def load(voice: VoiceModel, voices: Mapping[str, Voice]) -> Replay:
    """The clips that came with the base of `voice`; the speaker of a clip is the nearest of the model's voices."""
    clips: list[Utterance] = []
    for index, (language, text, features) in enumerate(voice.family.replay(voice.base_folder)):
        if language in voice.front_end.base_languages:
            speaker = f"{language} {_nearest_voice(features.speaker_embedding, voices)}"
            clips.append(utterance(f"replay-{index}", text, language, speaker, features, voice.front_end))
    probing: list[Utterance] = []
    rehearsed: list[Utterance] = []
    for language in dict.fromkeys(item.language for item in clips):
        own = [item for item in clips if item.language == language]
        probing += own[::2]
        rehearsed += own[1::2]
    return Replay(_with_company(rehearsed), tuple(probing))


def probes(clips: Sequence[Utterance], prompt_length: int) -> list[ProbeSample]:
    """The sample of each probing clip, prompted by the clip of its language with the nearest voice."""
    found = []
    for item in clips:
        others = [other for other in clips if other is not item and other.language == item.language]
        prompt = nearest(item, others or [item])
        found.append(ProbeSample(item.language, item.text, sample(item, prompt, prompt_length)))
    return found


def _nearest_voice(speaker_embedding: np.ndarray, voices: Mapping[str, Voice]) -> str:
    return max(voices, key=lambda name: float(speaker_embedding @ voices[name].speaker_embedding), default="")


def _with_company(clips: Sequence[Utterance]) -> tuple[Utterance, ...]:
    speakers = [item.speaker for item in clips]
    return tuple(item for item in clips if speakers.count(item.speaker) > 1)
