"""Text to sound with any voice model, one piece after another, so that the first can be heard while the next is made.

The pieces of one text do not depend on what was spoken before it, so the same text, voice
and seed give the same audio. Several texts, of whatever languages, can be spoken together:
the codes of each are what they are alone, but for rounding, which may decide between two that
are as likely. It does not know files or judges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from config.schema import SamplingOptions, SoundOptions
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import reference_voices
from core.voice_model.loading import VoiceModel
from data.loudness import OUTPUT_PEAK
from data.text_chunking import Ending as PieceEnding
from data.text_chunking import TextChunk, halve, split_for_model
from models.base import (
    Family,
    FinishReason,
    Generated,
    PreparedVoice,
    Sampling,
    Vocoder,
    VocoderOptions,
    VocoderStream,
    Voice,
)

PAUSES_S: dict[PieceEnding, float] = {"sentence": 0.25, "phrase": 0.12, "word": 0.04}
LARGEST_GROUP = 8  # pieces spoken together
_FADE_S = 0.005  # at both ends of a piece, against clicks


@dataclass(frozen=True)
class Segment:
    """A spoken piece with the pause after it, how long it took, and why the model ended it.

    Of what was spoken together each piece has an equal share of the seconds.
    """

    text: str
    waveform: torch.Tensor  # (S,) on the CPU
    seconds: float
    ending: FinishReason = "stop"


@dataclass(frozen=True)
class _Spoken:
    """The codes of a piece, and its share of the seconds they took."""

    piece: TextChunk
    codes: Generated
    seconds: float


class Speaker:
    """One voice model with one voice. `longest` is how many text ids it is given at once, by language."""

    def __init__(self, model: VoiceModel, voice: str | Voice = "", longest: dict[str, int] | None = None,
                 sound: SoundOptions | None = None, vocoder: Vocoder | None = None) -> None:
        self._sounding = sound or SoundOptions()
        self.model = model
        found = find_voice(model, voice) if isinstance(voice, str) else voice
        self.voice = replace(found, emotion=self._sounding.exaggeration)
        self.longest = longest or {}
        self.vocoder = vocoder or model.family.vocoder(model.base_folder, model.device)
        self._prepared: dict[bool, PreparedVoice] = {}  # with and without adapters

    @property
    def sample_rate(self) -> int:
        return self.vocoder.sample_rate

    def pieces(self, text: str, language: str) -> list[TextChunk]:
        """What `say` will speak, one after another; `UserError` when the text cannot be spoken."""
        most = self.model.model.max_text_length
        limit = min(self.longest.get(language, self.model.model.typical_text_length), most)
        return split_for_model(text, language, self.model.front_end, limit, most)

    def say(self, text: str, language: str, options: SamplingOptions) -> Iterator[Segment]:
        """Segments of `text`, each as soon as it is made. The last one has no pause after it.

        The first piece is heard while it is still being spoken, where the family can; then two are spoken together,
        then four, then eight.
        """
        sampling = chosen_sampling(options, self.model.family.sampling)
        waiting = self.pieces(text, language)
        group, made = 1, 0
        if waiting and (sounds := self.vocoder.stream(self.voice, self._rendering(sampling.seed))) is not None:
            first, waiting = waiting[0], waiting[1:]
            yield from self._streamed(first, language, sampling, sounds, last=not waiting)
            group, made = 2, 1
        while waiting:
            pieces, waiting = waiting[:group], waiting[group:]
            began = time.perf_counter()
            languages = [language] * len(pieces)
            found = self._generate(pieces, languages, replace(sampling, seed=sampling.seed + made))
            spoken = [one for several in found for one in several]
            share_s = (time.perf_counter() - began) / len(spoken)
            for index, (piece, codes) in enumerate(spoken):
                last = not waiting and index == len(spoken) - 1
                yield self._segment(piece, codes, share_s, last, sampling.seed)
            made += len(pieces)
            group = min(2 * group, LARGEST_GROUP)

    def say_each(self, asked: Sequence[tuple[str, str]], options: SamplingOptions,
                 progress: ProgressCallback = no_progress) -> list[Iterator[Segment]]:
        """What `say` makes of each language and text: the codes now, of all together, the sound when it is asked for.

        The pieces of a text are drawn from the seeds that they have when it is spoken alone, so that the same pieces of
        several texts share a batch. One text alone is heard while it is spoken; of several no piece is.
        """
        if len(asked) == 1:
            return [self.say(asked[0][1], asked[0][0], options)]
        sampling = chosen_sampling(options, self.model.family.sampling)
        waiting = [self.pieces(text, language) for language, text in asked]
        spoken: list[list[_Spoken]] = [[] for _ in asked]
        total, done, group, made = sum(map(len, waiting)), 0, 1, 0
        while any(waiting):
            due = [(number, piece) for number, pieces in enumerate(waiting) for piece in pieces[:group]]
            waiting = [pieces[group:] for pieces in waiting]
            for start in range(0, len(due), LARGEST_GROUP):
                progress(Progress(done, total, "pieces", "spoken"))
                part, began = due[start:start + LARGEST_GROUP], time.perf_counter()
                found = self._generate([piece for _, piece in part], [asked[number][0] for number, _ in part],
                                       replace(sampling, seed=sampling.seed + made))
                share_s = (time.perf_counter() - began) / sum(map(len, found))
                for (number, _), several in zip(part, found, strict=True):
                    spoken[number] += [_Spoken(piece, codes, share_s) for piece, codes in several]
                done += len(part)
            made += group
            group = min(2 * group, LARGEST_GROUP)
        progress(Progress(done, total, "pieces", "spoken"))
        return [self._sounds(several, sampling.seed) for several in spoken]

    def _sounds(self, spoken: Sequence[_Spoken], seed: int) -> Iterator[Segment]:
        for index, one in enumerate(spoken):
            yield self._segment(one.piece, one.codes, one.seconds, index == len(spoken) - 1, seed)

    def _streamed(self, piece: TextChunk, language: str, sampling: Sampling, sounds: VocoderStream,
                  last: bool) -> Iterator[Segment]:
        """One piece as segments, the last of which has the pause and says how it ended."""
        ids, began = self.model.front_end.encode(piece.text, language), time.perf_counter()
        voice = self._prepared_voice(language)
        with self.model.speaking(language):
            for codes in self.model.model.stream(ids, voice, sampling):
                ended = isinstance(codes, Generated)
                waveform = sounds.finish() if isinstance(codes, Generated) else sounds.push(codes)
                if not ended and not len(waveform):
                    continue
                pause_s = 0.0 if last or not ended else PAUSES_S[piece.ending]
                waveform = waveform.float().clamp(-OUTPUT_PEAK, OUTPUT_PEAK)  # a gain would jump from piece to piece
                waveform = torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])
                now = time.perf_counter()
                ending = codes.finish_reason if isinstance(codes, Generated) else "stop"
                yield Segment(piece.text, waveform, now - began, ending)
                began = now

    def _generate(self, pieces: Sequence[TextChunk], languages: Sequence[str],
                  sampling: Sampling) -> list[list[tuple[TextChunk, Generated]]]:
        """The codes of each piece; slow speech that needs more codes than there are is said in two breaths."""
        ids = [self.model.front_end.encode(piece.text, code) for piece, code in zip(pieces, languages, strict=True)]
        voices = [self._prepared_voice(language) for language in languages]
        with self.model.speaking_each(languages):
            generated = self.model.model.generate(ids, voices, sampling)
        spoken: list[list[tuple[TextChunk, Generated]]] = []
        for piece, language, codes in zip(pieces, languages, generated, strict=True):
            exhausted = len(codes.codes) >= self.model.model.max_speech_length
            halves = halve(piece.text) if exhausted else None
            if halves is None:
                spoken.append([(piece, codes)])
            else:
                breaths = [halves[0], TextChunk(halves[1], piece.ending)]
                spoken.append([one for several in self._generate(breaths, [language] * 2, sampling) for one in several])
        return spoken

    def _prepared_voice(self, language: str) -> PreparedVoice:
        adapts = self.model.adapts(language)
        if adapts not in self._prepared:
            with self.model.speaking(language):
                self._prepared[adapts] = self.model.model.prepare(self.voice)
        return self._prepared[adapts]

    def _segment(self, piece: TextChunk, generated: Generated, seconds: float, last: bool, seed: int) -> Segment:
        began = time.perf_counter()
        waveform = self._sound(generated.codes, 0.0 if last else PAUSES_S[piece.ending], seed)
        return Segment(piece.text, waveform, seconds + time.perf_counter() - began, generated.finish_reason)

    def _rendering(self, seed: int) -> VocoderOptions:
        return VocoderOptions(self._sounding.flow_steps, self._sounding.flow_prompt_s, self._sounding.watermark, seed)

    def _sound(self, codes: np.ndarray, pause_s: float, seed: int) -> torch.Tensor:
        waveform = self.vocoder.decode(codes, self.voice, self._rendering(seed)).float().cpu()
        length = min(int(_FADE_S * self.sample_rate), len(waveform) // 2)
        if length:
            ramp = torch.linspace(0, 1, length)
            waveform = waveform.clone()
            waveform[:length] *= ramp
            waveform[-length:] *= ramp.flip(0)
        loudest = float(waveform.abs().max()) if len(waveform) else 0.0
        waveform = waveform * min(1.0, OUTPUT_PEAK / max(loudest, 1e-9))
        return torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])


def joined(segments: Sequence[Segment]) -> torch.Tensor:
    """The whole waveform (S,)."""
    return torch.cat([segment.waveform for segment in segments])


def chosen_sampling(options: SamplingOptions, own: Sampling) -> Sampling:
    """`options`, and what they leave empty from the model's `own`."""
    return replace(own, **{name: value for name, value in options.model_dump().items() if value is not None})


def unused_controls(sound: SoundOptions, family: Family) -> list[str]:
    """What was set and reaches nothing in `family`."""
    plain = SoundOptions()
    return [name for name in type(sound).model_fields
            if getattr(sound, name) != getattr(plain, name) and name not in family.sound_options]


def find_voice(model: VoiceModel, name: str) -> Voice:
    """The model's voice called `name` (empty: its first one), or the one heard in the recording at the path `name`."""
    voices = model.family.voices(model.base_folder)
    if name in voices:
        return voices[name]
    if not name and voices:
        return next(iter(voices.values()))
    path = Path(name).expanduser()
    if not name or not path.is_file():
        raise UserError(
            f"{name!r} is neither a voice of the model nor a recording.",
            f"Its voices: {', '.join(voices) or 'none'}. A reference recording is given by its path.",
        )
    reference = reference_voices.read_recording(path)
    waveform = torch.from_numpy(reference.waveform)
    return model.family.voice(model.base_folder, model.device, waveform, reference.sample_rate)
