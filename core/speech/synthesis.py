"""Text to speech with any model, chunk by chunk, so that the first can be played while the next is computed.

The chunks of a text do not depend on earlier texts: the same text, voice and seed give the same audio. Several texts,
of whatever languages, can share batches: the codes of each are those of the text alone, but for rounding, which may
decide between two codes of nearly equal probability.
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
from core.model.loading import TTSModel
from data.loudness import OUTPUT_PEAK
from data.text_chunking import Boundary, TextChunk, halve, split_for_model
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

PAUSES_S: dict[Boundary, float] = {"sentence": 0.25, "phrase": 0.12, "word": 0.04}
MAX_BATCH_SIZE = 8  # text chunks
_FADE_S = 0.005  # at both ends of a chunk, against clicks


@dataclass(frozen=True)
class SynthesizedChunk:
    """The speech of a text chunk, or of a part of it while it is streamed, with the pause after it.

    `synthesis_s` is the time it took; the chunks of one batch have an equal share.
    """

    text: str
    waveform: torch.Tensor  # (S,) on the CPU
    synthesis_s: float
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True)
class _GeneratedChunk:
    """The codes of a text chunk, and its share of the time they took."""

    chunk: TextChunk
    codes: np.ndarray  # (U,)
    finish_reason: FinishReason
    generation_s: float
    last: bool  # of its text


class Synthesizer:
    """One model with one voice. `max_text_ids` is how many text ids it gets at once, by language."""

    def __init__(self, model: TTSModel, voice: str | Voice = "", max_text_ids: dict[str, int] | None = None,
                 sound: SoundOptions | None = None, vocoder: Vocoder | None = None) -> None:
        self._sound = sound or SoundOptions()
        self.model = model
        found = find_voice(model, voice) if isinstance(voice, str) else voice
        self.voice = replace(found, emotion=self._sound.exaggeration)
        self.max_text_ids = max_text_ids or {}
        self.vocoder = vocoder or model.family.load_vocoder(model.base_folder, model.device)
        self._prepared: dict[bool, PreparedVoice] = {}  # with and without adapters

    @property
    def sample_rate(self) -> int:
        return self.vocoder.sample_rate

    def split(self, text: str, language: str) -> list[TextChunk]:
        """The chunks of `text` that `synthesize` computes one by one; `UserError` when it cannot be synthesized."""
        max_text_length = self.model.model.max_text_length
        limit = min(self.max_text_ids.get(language, self.model.model.preferred_max_text_length), max_text_length)
        return split_for_model(text, language, self.model.front_end, limit, max_text_length)

    def synthesize(self, text: str, language: str, options: SamplingOptions) -> Iterator[SynthesizedChunk]:
        """The chunks of `text`, each as soon as it is computed. The last one has no pause after it.

        The first chunk is streamed, where the family can; then batches of two, four and eight chunks follow.
        """
        sampling = resolve_sampling(options, self.model.family.sampling)
        chunks, batch_size, seed = self.split(text, language), 1, sampling.seed
        if chunks and (stream := self.vocoder.stream(self.voice, self._vocoder_options(seed))) is not None:
            yield from self._stream(chunks[0], language, sampling, stream, last=len(chunks) == 1)
            chunks, batch_size, sampling = chunks[1:], 2, replace(sampling, seed=seed + 1)
        for _, generated in self._generate_in_batches([chunks], [language], sampling, batch_size):
            yield self._vocode(generated, seed)

    def synthesize_batch(self, texts: Sequence[tuple[str, str]], options: SamplingOptions,
                         progress: ProgressCallback = no_progress) -> list[Iterator[SynthesizedChunk]]:
        """`synthesize` of each language and text: the codes of all at once, now; the sound of each when it is read.

        The chunks of a text have the seeds that they have when it is alone, so chunks of several texts share a batch.
        A single text is streamed; of several none is.
        """
        if len(texts) == 1:
            return [self.synthesize(texts[0][1], texts[0][0], options)]
        sampling = resolve_sampling(options, self.model.family.sampling)
        chunks, languages = [self.split(text, language) for language, text in texts], [code for code, _ in texts]
        by_text: list[list[_GeneratedChunk]] = [[] for _ in texts]
        for number, generated in self._generate_in_batches(chunks, languages, sampling, 1, progress):
            by_text[number].append(generated)
        return [(self._vocode(one, sampling.seed) for one in generated) for generated in by_text]

    def _generate_in_batches(self, texts: Sequence[list[TextChunk]], languages: Sequence[str], sampling: Sampling,
                             batch_size: int, progress: ProgressCallback = no_progress
                             ) -> Iterator[tuple[int, _GeneratedChunk]]:
        """The codes of the chunks of each text, in order, with the number of the text.

        Every text has its next `batch_size` chunks generated with one seed, then twice as many with another. So the
        seeds of a text depend on no other text, and the chunks of all texts that are due share batches.
        """
        waiting, seed, total, done = list(texts), sampling.seed, sum(map(len, texts)), 0
        while any(waiting):
            due = [(number, chunk) for number, chunks in enumerate(waiting) for chunk in chunks[:batch_size]]
            waiting = [chunks[batch_size:] for chunks in waiting]
            for start in range(0, len(due), MAX_BATCH_SIZE):
                progress(Progress(done, total, "chunks", "generated"))
                batch, started = due[start:start + MAX_BATCH_SIZE], time.perf_counter()
                found = self._generate([chunk for _, chunk in batch], [languages[number] for number, _ in batch],
                                       replace(sampling, seed=seed))
                share_s = (time.perf_counter() - started) / sum(map(len, found))
                for (number, whole), parts in zip(batch, found, strict=True):
                    for index, (chunk, generated) in enumerate(parts, 1):
                        last = whole is texts[number][-1] and index == len(parts)
                        yield number, _GeneratedChunk(chunk, generated.codes, generated.finish_reason, share_s, last)
                done += len(batch)
            seed += batch_size
            batch_size = min(2 * batch_size, MAX_BATCH_SIZE)
        progress(Progress(done, total, "chunks", "generated"))

    def _stream(self, chunk: TextChunk, language: str, sampling: Sampling, stream: VocoderStream,
                last: bool) -> Iterator[SynthesizedChunk]:
        """One text chunk in parts; the last part has the pause and the finish reason."""
        ids, start = self.model.front_end.encode(chunk.text, language), time.perf_counter()
        voice = self._prepared_voice(language)
        with self.model.adapters_for(language):
            for codes in self.model.model.stream(ids, voice, sampling):
                ended = isinstance(codes, Generated)
                waveform = stream.finish() if isinstance(codes, Generated) else stream.push(codes)
                if not ended and not len(waveform):
                    continue
                pause_s = 0.0 if last or not ended else PAUSES_S[chunk.boundary]
                waveform = waveform.float().clamp(-OUTPUT_PEAK, OUTPUT_PEAK)  # a gain would jump from part to part
                waveform = torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])
                now = time.perf_counter()
                finish_reason = codes.finish_reason if isinstance(codes, Generated) else "stop"
                yield SynthesizedChunk(chunk.text, waveform, now - start, finish_reason)
                start = now

    def _generate(self, chunks: Sequence[TextChunk], languages: Sequence[str],
                  sampling: Sampling) -> list[list[tuple[TextChunk, Generated]]]:
        """The codes of each chunk; a chunk that reaches the limit of codes is generated again as two halves."""
        ids = [self.model.front_end.encode(chunk.text, code) for chunk, code in zip(chunks, languages, strict=True)]
        voices = [self._prepared_voice(language) for language in languages]
        with self.model.adapters_for_batch(languages):
            outputs = self.model.model.generate(ids, voices, sampling)
        found: list[list[tuple[TextChunk, Generated]]] = []
        for chunk, language, generated in zip(chunks, languages, outputs, strict=True):
            halves = halve(chunk.text) if len(generated.codes) >= self.model.model.max_speech_length else None
            if halves is None:
                found.append([(chunk, generated)])
            else:
                first, second = self._generate([halves[0], TextChunk(halves[1], chunk.boundary)], [language] * 2,
                                               sampling)
                found.append(first + second)
        return found

    def _prepared_voice(self, language: str) -> PreparedVoice:
        uses_adapters = self.model.uses_adapters(language)
        if uses_adapters not in self._prepared:
            with self.model.adapters_for(language):
                self._prepared[uses_adapters] = self.model.model.prepare(self.voice)
        return self._prepared[uses_adapters]

    def _vocoder_options(self, seed: int) -> VocoderOptions:
        return VocoderOptions(self._sound.flow_steps, self._sound.flow_prompt_s, self._sound.watermark, seed)

    def _vocode(self, generated: _GeneratedChunk, seed: int) -> SynthesizedChunk:
        """Vocode, fade in and out, limit the peak, and append the pause."""
        start = time.perf_counter()
        waveform = self.vocoder.decode(generated.codes, self.voice, self._vocoder_options(seed)).float().cpu()
        length = min(int(_FADE_S * self.sample_rate), len(waveform) // 2)
        if length:
            ramp = torch.linspace(0, 1, length)
            waveform = waveform.clone()
            waveform[:length] *= ramp
            waveform[-length:] *= ramp.flip(0)
        peak = float(waveform.abs().max()) if len(waveform) else 0.0
        waveform = waveform * min(1.0, OUTPUT_PEAK / max(peak, 1e-9))
        pause_s = 0.0 if generated.last else PAUSES_S[generated.chunk.boundary]
        waveform = torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])
        synthesis_s = generated.generation_s + time.perf_counter() - start
        return SynthesizedChunk(generated.chunk.text, waveform, synthesis_s, generated.finish_reason)


def join_chunks(chunks: Sequence[SynthesizedChunk]) -> torch.Tensor:
    """The whole waveform (S,)."""
    return torch.cat([chunk.waveform for chunk in chunks])


def resolve_sampling(options: SamplingOptions, defaults: Sampling) -> Sampling:
    """`options`, filled up from the model's `defaults`."""
    return replace(defaults, **{name: value for name, value in options.model_dump().items() if value is not None})


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
