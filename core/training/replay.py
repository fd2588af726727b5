"""Clips of the base languages that come with a model: some to probe it with, some for `full` to rehearse.

Every second clip probes and is never trained on, so that drift is not measured on what was rehearsed.
A model that comes with no clips is probed by sentences of its languages over the codes of its own voice:
whether logits are equal to the bit can be seen on any codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from config.errors import UserError
from core.model.loading import VoiceModel
from core.text.tokenizer_report import probe_sentences
from core.training.training_data import Utterance, nearest, sample, utterance
from models.base import Features, Sample, Voice


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
    return parted(clips) if clips else Replay((), _over_own_voice(voice, voices))


def parted(clips: Sequence[Utterance]) -> Replay:
    """Every second clip of a language to probe with, the others to rehearse."""
    probing: list[Utterance] = []
    rehearsed: list[Utterance] = []
    for language in dict.fromkeys(item.language for item in clips):
        own = [item for item in clips if item.language == language]
        probing += own[::2]
        rehearsed += own[1::2]
    return Replay(with_company(rehearsed), tuple(probing))


def probes(clips: Sequence[Utterance], max_prompt_length: int) -> list[ProbeSample]:
    """The sample of each probing clip, prompted by the clip of its language with the nearest voice."""
    found = []
    for item in clips:
        others = [other for other in clips if other is not item and other.language == item.language]
        prompt = nearest(item, others or [item])
        found.append(ProbeSample(item.language, item.text, sample(item, prompt, max_prompt_length)))
    return found


def _over_own_voice(voice: VoiceModel, voices: Mapping[str, Voice]) -> tuple[Utterance, ...]:
    """A sentence of each base language over the first voice's codes; one whose text cannot be read is left out."""
    made: dict[str, Utterance] = {}
    for own in list(voices.values())[:1]:
        codes = own.prompt_codes.astype(np.uint16)
        features = Features(codes, own.speaker_embedding, codes)
        for language, text in probe_sentences(voice.base_folder)[1]:
            if language in voice.front_end.base_languages and language not in made:
                with suppress(UserError):  # a package for the language is missing; the certificate names what it probed
                    made[language] = utterance(f"probe-{language}", text, language, "", features, voice.front_end)
    return tuple(made.values())


def _nearest_voice(speaker_embedding: np.ndarray, voices: Mapping[str, Voice]) -> str:
    return max(voices, key=lambda name: float(speaker_embedding @ voices[name].speaker_embedding), default="")


def with_company(clips: Sequence[Utterance]) -> tuple[Utterance, ...]:
    """Those whose speaker has another clip, which prompts them."""
    speakers = [item.speaker for item in clips]
    return tuple(item for item in clips if speakers.count(item.speaker) > 1)
