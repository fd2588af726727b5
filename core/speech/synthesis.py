"""Text to speech with any model, piece by piece, so that the first can be played while the next is computed.

The pieces of a text do not depend on earlier texts: the same text, voice and seed give the same audio. Several texts,
of whatever languages, can share batches: the codes of each are those of the text alone, but for rounding, which may
decide between two codes of nearly equal probability.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import SamplingOptions, SoundOptions
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import reference_voices
from core.model.loading import TTSModel
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
MAX_BATCH_SIZE = 8  # pieces of a batch
_FADE_S = 0.005  # at both ends of a piece, against clicks


@dataclass(frozen=True)
class SynthesizedChunk:
    """A synthesized piece with the pause after it, and why the model ended it.

    `seconds` is the time it took; pieces of one batch have an equal share.
    """

    text: str
    waveform: torch.Tensor  # (S,) on the CPU
    seconds: float
    ending: FinishReason = "stop"


@dataclass(frozen=True)
class _GeneratedPiece:
    """The codes of a piece, and its share of the seconds they took."""

    piece: TextChunk
    codes: Generated
    seconds: float


class Synthesizer:
    """One model with one voice. `longest` is how many text ids it gets at once, by language."""

    def __init__(self, model: TTSModel, voice: str | Voice = "", longest: dict[str, int] | None = None,
                 sound: SoundOptions | None = None, vocoder: Vocoder | None = None) -> None:
        self._sound = sound or SoundOptions()
        self.model = model
        found = find_voice(model, voice) if isinstance(voice, str) else voice
        self.voice = replace(found, emotion=self._sound.exaggeration)
        self.longest = longest or {}
        self.vocoder = vocoder or model.family.load_vocoder(model.base_folder, model.device)
        self._prepared: dict[bool, PreparedVoice] = {}  # with and without adapters

    @property
    def sample_rate(self) -> int:
        return self.vocoder.sample_rate

    def pieces(self, text: str, language: str) -> list[TextChunk]:
        """The pieces that `synthesize` makes of `text`; `UserError` when it cannot be spoken."""
        most = self.model.model.max_text_length
        limit = min(self.longest.get(language, self.model.model.preferred_max_text_length), most)
        return split_for_model(text, language, self.model.front_end, limit, most)

    def synthesize(self, text: str, language: str, options: SamplingOptions) -> Iterator[SynthesizedChunk]:
        """Segments of `text`, each as soon as it is computed. The last one has no pause after it.

        The first piece is streamed, where the family can; then batches of two, four and eight pieces follow.
        """
        sampling = resolve_sampling(options, self.model.family.sampling)
        waiting = self.pieces(text, language)
        batch, done = 1, 0
        if waiting and (stream := self.vocoder.stream(self.voice, self._rendering(sampling.seed))) is not None:
            first, waiting = waiting[0], waiting[1:]
            yield from self._stream(first, language, sampling, stream, last=not waiting)
            batch, done = 2, 1
        while waiting:
            pieces, waiting = waiting[:batch], waiting[batch:]
            start = time.perf_counter()
            found = self._generate(pieces, [language] * len(pieces), replace(sampling, seed=sampling.seed + done))
            generated = [one for several in found for one in several]
            share_s = (time.perf_counter() - start) / len(generated)
            for index, (piece, codes) in enumerate(generated):
                last = not waiting and index == len(generated) - 1
                yield self._segment(_GeneratedPiece(piece, codes, share_s), last, sampling.seed)
            done += len(pieces)
            batch = min(2 * batch, MAX_BATCH_SIZE)

    def synthesize_batch(self, texts: Sequence[tuple[str, str]], options: SamplingOptions,
                         progress: ProgressCallback = no_progress) -> list[Iterator[SynthesizedChunk]]:
        """`synthesize` of each language and text: the codes of all at once, now; the sound of each when it is read.

        The pieces of a text have the seeds that they have when it is alone, so pieces of several texts share a batch.
        A single text is streamed; of several none is.
        """
        if len(texts) == 1:
            return [self.synthesize(texts[0][1], texts[0][0], options)]
        sampling = resolve_sampling(options, self.model.family.sampling)
        waiting = [self.pieces(text, language) for language, text in texts]
        generated: list[list[_GeneratedPiece]] = [[] for _ in texts]
        total, done, batch, seed = sum(map(len, waiting)), 0, 1, sampling.seed
        while any(waiting):
            due = [(number, piece) for number, pieces in enumerate(waiting) for piece in pieces[:batch]]
            waiting = [pieces[batch:] for pieces in waiting]
            for start in range(0, len(due), MAX_BATCH_SIZE):
                progress(Progress(done, total, "pieces", "generated"))
                part, began = due[start:start + MAX_BATCH_SIZE], time.perf_counter()
                found = self._generate([piece for _, piece in part], [texts[number][0] for number, _ in part],
                                       replace(sampling, seed=seed))
                share_s = (time.perf_counter() - began) / sum(map(len, found))
                for (number, _), several in zip(part, found, strict=True):
                    generated[number] += [_GeneratedPiece(piece, codes, share_s) for piece, codes in several]
                done += len(part)
            seed += batch
            batch = min(2 * batch, MAX_BATCH_SIZE)
        progress(Progress(done, total, "pieces", "generated"))

        def segments(pieces: Sequence[_GeneratedPiece]) -> Iterator[SynthesizedChunk]:
            for index, one in enumerate(pieces):
                yield self._segment(one, index == len(pieces) - 1, sampling.seed)

        return [segments(pieces) for pieces in generated]

    def _stream(self, piece: TextChunk, language: str, sampling: Sampling, stream: VocoderStream,
                last: bool) -> Iterator[SynthesizedChunk]:
        """One piece as segments; the last has the pause and says how the piece ended."""
        ids, start = self.model.front_end.encode(piece.text, language), time.perf_counter()
        voice = self._prepared_voice(language)
        with self.model.adapters_for(language):
            for codes in self.model.model.stream(ids, voice, sampling):
                ended = isinstance(codes, Generated)
                waveform = stream.finish() if isinstance(codes, Generated) else stream.push(codes)
                if not ended and not len(waveform):
                    continue
                pause_s = 0.0 if last or not ended else PAUSES_S[piece.ending]
                waveform = waveform.float().clamp(-OUTPUT_PEAK, OUTPUT_PEAK)  # a gain would jump from piece to piece
                waveform = torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])
                now = time.perf_counter()
                ending = codes.finish_reason if isinstance(codes, Generated) else "stop"
                yield SynthesizedChunk(piece.text, waveform, now - start, ending)
                start = now

    def _generate(self, pieces: Sequence[TextChunk], languages: Sequence[str],
                  sampling: Sampling) -> list[list[tuple[TextChunk, Generated]]]:
        """The codes of each piece; a piece that reaches the limit of codes is generated again as two halves."""
        ids = [self.model.front_end.encode(piece.text, code) for piece, code in zip(pieces, languages, strict=True)]
        voices = [self._prepared_voice(language) for language in languages]
        with self.model.adapters_for_batch(languages):
            generated = self.model.model.generate(ids, voices, sampling)
        found: list[list[tuple[TextChunk, Generated]]] = []
        for piece, language, codes in zip(pieces, languages, generated, strict=True):
            halves = halve(piece.text) if len(codes.codes) >= self.model.model.max_speech_length else None
            if halves is None:
                found.append([(piece, codes)])
            else:
                parts = [halves[0], TextChunk(halves[1], piece.ending)]
                found.append([one for several in self._generate(parts, [language] * 2, sampling) for one in several])
        return found

    def _prepared_voice(self, language: str) -> PreparedVoice:
        uses_adapters = self.model.uses_adapters(language)
        if uses_adapters not in self._prepared:
            with self.model.adapters_for(language):
                self._prepared[uses_adapters] = self.model.model.prepare(self.voice)
        return self._prepared[uses_adapters]

    def _rendering(self, seed: int) -> VocoderOptions:
        return VocoderOptions(self._sound.flow_steps, self._sound.flow_prompt_s, self._sound.watermark, seed)

    def _segment(self, generated: _GeneratedPiece, last: bool, seed: int) -> SynthesizedChunk:
        """Vocode, fade in and out, limit the peak, and append the pause."""
        start = time.perf_counter()
        waveform = self.vocoder.decode(generated.codes.codes, self.voice, self._rendering(seed)).float().cpu()
        length = min(int(_FADE_S * self.sample_rate), len(waveform) // 2)
        if length:
            ramp = torch.linspace(0, 1, length)
            waveform = waveform.clone()
            waveform[:length] *= ramp
            waveform[-length:] *= ramp.flip(0)
        peak = float(waveform.abs().max()) if len(waveform) else 0.0
        waveform = waveform * min(1.0, OUTPUT_PEAK / max(peak, 1e-9))
        pause_s = 0.0 if last else PAUSES_S[generated.piece.ending]
        waveform = torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])
        return SynthesizedChunk(generated.piece.text, waveform, generated.seconds + time.perf_counter() - start,
                       generated.codes.finish_reason)


def join_chunks(segments: Sequence[SynthesizedChunk]) -> torch.Tensor:
    """The whole waveform (S,)."""
    return torch.cat([segment.waveform for segment in segments])


def resolve_sampling(options: SamplingOptions, own: Sampling) -> Sampling:
    """`options`, filled up from the model's `own`."""
    return replace(own, **{name: value for name, value in options.model_dump().items() if value is not None})


def unused_controls(sound: SoundOptions, family: Family) -> list[str]:
    """The options that were set and that `family` does not have."""
    plain = SoundOptions()
    return [name for name in type(sound).model_fields
            if getattr(sound, name) != getattr(plain, name) and name not in family.sound_options]


def find_voice(model: TTSModel, name: str) -> Voice:
    """The model's voice called `name` (empty: its first one), or that of the recording at the path `name`."""
    voices = model.family.load_voices(model.base_folder)
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
    return model.family.voice_from_recording(model.base_folder, model.device, waveform, reference.sample_rate)
