"""Is the speech intelligible: sentences are spoken, vocoded and heard by the judge, as a listener would hear them.

An error is the sum of edits over the sum of reference lengths, over all sentences. The
judge's error on original recordings stands beside it, because a judge makes mistakes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from config.languages import language_name
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.speech.judges import Hearing
from core.voice_model.loading import VoiceModel
from data.acoustics import audio
from models.base import PreparedVoice, Sampling, Verdict, Vocoder, Voice

_BATCH = 20  # texts generated together
_SPOKEN = "spoken and heard"


@dataclass(frozen=True)
class HeldOutSentence:
    """A held-out sentence to speak, with its original recording where there is one."""

    text: str
    original: Path | None


@dataclass(frozen=True)
class Spoken:
    """One sentence as it was said; `verdict` is None where no judge knows the language."""

    text: str
    language: str
    voice: str
    waveform: torch.Tensor  # (S,)
    sample_rate: int  # Hz
    verdict: Verdict | None


@dataclass(frozen=True)
class Score:
    """The error over some sentences of a language; `left_out` cannot be encoded or are too long."""

    language: str
    sentences: int
    edits: int
    letters: int
    left_out: int = 0

    @property
    def error(self) -> float:
        return self.edits / max(1, self.letters)


@dataclass
class Studio:
    """Vocoder, voices and judge of a base model, loaded once.

    The vocoder and the judge are functions, so codes that were heard before need not be
    heard again: with `remember`, which costs the memory of every waveform, they are not.
    """

    vocoder: Vocoder
    voices: dict[str, Voice]
    judge: Hearing | None
    remember: bool = False
    _heard: dict[tuple[str, str, str, bytes], Spoken] = field(default_factory=dict)

    @classmethod
    def of(cls, voice: VoiceModel, judge: Hearing | None = None, remember: bool = False) -> Studio:
        """The studio of the base model of `voice`, and who judges in it."""
        family, folder = voice.family, voice.base_folder
        return cls(family.vocoder(folder, voice.device), family.voices(folder), judge, remember)

    def judges(self, language: str) -> bool:
        """Whether an error can be measured for `language`."""
        return self.judge is not None and language in self.judge.languages

    def speak(self, voice: VoiceModel, asked: Sequence[tuple[str, str]], sampling: Sampling,
              progress: ProgressCallback = no_progress) -> list[Spoken]:
        """Each language and text through `voice`, in the model's voices by turns. Languages share batches."""
        languages = list(dict.fromkeys(language for language, _ in asked))
        unit = f"{language_name(languages[0])} sentences" if len(languages) == 1 else "sentences"
        parts = self._parts(asked)
        prepared: dict[tuple[str, bool], PreparedVoice] = {}
        said: list[Spoken] = []
        for start in range(0, len(parts), _BATCH):
            part = parts[start:start + _BATCH]
            progress(Progress(start, len(parts), unit, _SPOKEN))
            voices = [self._prepared(voice, language, name, prepared) for language, _, name in part]
            with voice.speaking_each([language for language, *_ in part]):
                spoken = voice.model.generate([voice.front_end.encode(text, language) for language, text, _ in part],
                                              voices, sampling)
            for (language, text, name), item in zip(part, spoken, strict=True):
                said.append(self._hear(voice.front_end.verbalize(text, language), language, name, item.codes))
                progress(Progress(len(said), len(parts), unit, _SPOKEN))
        return said

    def _parts(self, asked: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Language, text and voice; in every language the first voice begins."""
        names, turns, parts = sorted(self.voices), Counter[str](), []
        for language, text in asked:
            parts.append((language, text, names[turns[language] % len(names)]))
            turns[language] += 1
        return parts

    def _prepared(self, voice: VoiceModel, language: str, name: str,
                  known: dict[tuple[str, bool], PreparedVoice]) -> PreparedVoice:
        key = name, voice.adapts(language)
        if key not in known:
            with voice.speaking(language):
                known[key] = voice.model.prepare(self.voices[name])
        return known[key]

    def original(self, sentence: HeldOutSentence, language: str) -> Verdict:
        """What the judge makes of the original recording."""
        assert self.judge is not None
        assert sentence.original is not None
        rate = self.vocoder.sample_rate
        return self.judge.verdict(audio.load(sentence.original, rate), rate, sentence.text, language)

    def _hear(self, text: str, language: str, name: str, codes: np.ndarray) -> Spoken:
        key = (text, language, name, codes.tobytes())
        if key in self._heard:
            return self._heard[key]
        waveform, rate = self.vocoder.decode(codes, self.voices[name]), self.vocoder.sample_rate
        known = self.judge if self.judges(language) else None
        verdict = known.verdict(waveform, rate, text, language) if known else None
        spoken = Spoken(text, language, name, waveform, rate, verdict)
        if self.remember:
            self._heard[key] = spoken
        return spoken


def judged(studio: Studio, voice: VoiceModel, language: str, sentences: Sequence[HeldOutSentence],
           sampling: Sampling, progress: ProgressCallback = no_progress) -> tuple[Score, list[Spoken]]:
    """Speak `sentences` and judge them; those that `voice` cannot read are counted, not guessed."""
    return judged_each(studio, voice, {language: sentences}, sampling, progress)[language]


def judged_each(studio: Studio, voice: VoiceModel, sentences: Mapping[str, Sequence[HeldOutSentence]],
                sampling: Sampling,
                progress: ProgressCallback = no_progress) -> dict[str, tuple[Score, list[Spoken]]]:
    """`judged` for the sentences of several languages, which are spoken together."""
    usable = [(language, one.text) for language, some in sentences.items() for one in some
              if _readable(voice, one.text, language)]
    said = studio.speak(voice, usable, sampling, progress)
    found = {}
    for language, some in sentences.items():
        own = [item for item in said if item.language == language]
        verdicts = [item.verdict for item in own if item.verdict is not None]
        found[language] = score(language, verdicts, len(some) - len(own)), own
    return found


def judged_originals(studio: Studio, language: str, sentences: Sequence[HeldOutSentence],
                     progress: ProgressCallback = no_progress) -> Score:
    """The judge's own error on the recordings that are there."""
    recorded = [item for item in sentences if item.original is not None]
    verdicts: list[Verdict] = []
    for item in recorded:
        verdicts.append(studio.original(item, language))
        progress(Progress(len(verdicts), len(recorded), f"{language_name(language)} sentences", "as recorded, heard"))
    return score(language, verdicts)


def score(language: str, verdicts: Sequence[Verdict], left_out: int = 0) -> Score:
    """The whole-corpus error of some verdicts."""
    return Score(language, len(verdicts), sum(item.edits for item in verdicts),
                 sum(len(item.reference) for item in verdicts), left_out)


def chosen(sentences: Sequence[HeldOutSentence], count: int) -> list[HeldOutSentence]:
    """`count` of the sentences, evenly spread over their order."""
    if count >= len(sentences):
        return list(sentences)
    return [sentences[index * len(sentences) // count] for index in range(count)]


def held_out(voice: VoiceModel, language: str) -> list[HeldOutSentence]:
    """Held-out sentences of a base language that come with the model."""
    found: list[tuple[str, Path]] = voice.family.held_out(voice.base_folder, language)
    return [HeldOutSentence(text, path) for text, path in found]


def _readable(voice: VoiceModel, text: str, language: str) -> bool:
    front_end = voice.front_end
    if front_end.unknown_characters(text, language) or not front_end.normalise(text, language):
        return False
    return len(front_end.encode(text, language)) <= voice.model.max_text_length
