"""Text to speech with any model, chunk by chunk, so that the first chunk can be played while the next is computed.

The same text, voice and seed give the same audio; earlier texts have no influence. Texts of any languages can share
batches. Then the codes of a text are the same as alone, except that rounding may decide between two codes of nearly
equal probability. In bfloat16 on a CPU that multiplies it, a text alone is rounded less than among others.

A sentence that begins with more than 0.6 s of silence, or is silent throughout, is generated with another seed, at most
twice more; after that it has the finish reason `no_speech`. The seeds of the retries follow from the seed. A streamed
sentence is held back until it sounds, so that nothing of a discarded attempt is heard; before its first sound only its
level tells silence, not the noise of its pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config import confinement
from config.errors import UserError
from config.schema import EmotionOptions, SamplingOptions, SoundOptions, UnknownCharacters
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import reference_voices
from core.model.adapters import Adapters
from core.model.loading import TTSModel
from data.front_end import name_characters
from data.measures import OUTPUT_PEAK, leading_silence
from data.normalisers import HEBREW, POINTED_HEBREW, is_written_out, leaves_digits
from data.text_chunking import Boundary, TextChunk, halve, split_for_model
from models.base import (
    Emotion,
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
LONGEST_LEAD_S = 0.6  # seconds of silence with which a sentence may begin
RETRIES = 2  # further attempts at a sentence without speech
_RETRY_SEED_STEP = 1_000_003  # more than a text has chunks, whose seeds follow each other
_SOUNDS_AFTER_S = 0.2  # how long a voice must last until `leading_silence` finds it
_FADE_S = 0.005  # fade at both ends of a chunk, against clicks


@dataclass(frozen=True)
class SynthesizedChunk:
    """The speech of a text chunk, or of a part of it while it is streamed, with the pause after it.

    `synthesis_s` is its computation time; the time of a batch is divided equally among its chunks.
    """

    text: str
    waveform: torch.Tensor  # (S,) on the CPU
    synthesis_s: float
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True)
class _GeneratedChunk:
    """The codes of a text chunk, how they were sampled, and its share of the time of its batch."""

    chunk: TextChunk
    language: str
    sampling: Sampling
    generated: Generated
    generation_s: float
    last: bool  # whether it is the last one of its text


class Synthesizer:
    """One model with one voice. `max_text_ids`: by language the most text ids of a chunk."""

    def __init__(self, model: TTSModel, voice: str | Voice = "", max_text_ids: dict[str, int] | None = None,
                 sound: SoundOptions | None = None, vocoder: Vocoder | None = None,
                 unknown: UnknownCharacters = "refuse") -> None:
        self._sound, self._unknown = sound or SoundOptions(), unknown
        self.model = model
        front_end = model.front_end
        self.front_end = front_end.with_pointed_hebrew() if self._sound.hebrew == "pointed" else front_end
        base_voice = find_voice(model, voice, emotion=self._sound.emotion) if isinstance(voice, str) else voice
        self.voice = replace(base_voice, emotion=self._sound.exaggeration)
        self.max_text_ids = max_text_ids or {}
        self.vocoder = vocoder or model.family.load_vocoder(model.base_folder, model.device)
        self._prepared: dict[Adapters | None, PreparedVoice] = {}  # the voice with and without adapters

    @property
    def sample_rate(self) -> int:
        return self.vocoder.sample_rate

    def split(self, text: str, language: str) -> list[TextChunk]:
        """The chunks of `text` that `synthesize` computes one by one; `UserError` if it cannot be synthesized."""
        max_text_length = self.model.lm.max_text_length
        limit = min(self.max_text_ids.get(language, self.model.lm.preferred_max_text_length), max_text_length)
        return split_for_model(text, language, self.front_end, limit, max_text_length, self._unknown)

    def reading_notes(self, text: str, language: str) -> list[str]:
        """Notes, a sentence each, if `text` is not read as it is written.

        They are about characters that the tokenizer lacks, vowel points of Hebrew, digits that stay digits, and a text
        package of another version than in the training.
        """
        notes = []
        unknown = () if self._unknown == "refuse" else self.front_end.unknown_characters(text, language)
        if unknown:
            fate = "left out" if self._unknown == "leave_out" else "sent to the model as [UNK]"
            notes.append(f"Outside the vocabulary of {language!r} and {fate}: {name_characters(unknown)}.")
        reading = {HEBREW: "Hebrew is read without added vowel points, as the published package reads it "
                           "(`pointed`, a sound setting, adds them).",
                   POINTED_HEBREW: "Hebrew is read with vowel points by dicta-onnx, as the published package does not "
                                   "read it."}
        if leaves_digits(text, self.front_end.normaliser_for(language)):
            notes.append("The digits stay digits, as in the published package without nemo-text-processing, which "
                         "would write them out (it is in requirements-languages.txt).")
        name = self.front_end.normaliser_for(language)
        other_library = self.model.text_library_note() if is_written_out(name) else ""
        return [*notes, *filter(None, (reading.get(name, ""), other_library))]

    def synthesize(self, text: str, language: str, options: SamplingOptions) -> Iterator[SynthesizedChunk]:
        """The chunks of `text`, each as soon as it is computed. The last one has no pause after it.

        The first chunk is streamed if the family can stream; then batches of two, four and eight chunks follow.
        """
        sampling = self.sampling(options)
        # Stream the first chunk, so that it is heard soon; batches are faster for the others.
        chunks, batch_size, seed = self.split(text, language), 1, sampling.seed
        stream = self.vocoder_stream(seed, language) if chunks else None
        if stream is not None:
            yield from self._stream(chunks[0], language, sampling, stream, last=len(chunks) == 1)
            chunks, batch_size, sampling = chunks[1:], 2, replace(sampling, seed=seed + 1)
        for _, generated in self._generate_in_batches([chunks], [language], sampling, batch_size):
            yield self._vocode(generated, seed)

    def synthesize_batch(self, texts: Sequence[tuple[str, str]], options: SamplingOptions,
                         progress: ProgressCallback = no_progress) -> list[Iterator[SynthesizedChunk]]:
        """`synthesize` of several pairs of language and text: codes are generated now, waveforms while iterating.

        A chunk without speech is generated again while iterating.
        The chunks of a text have the same seeds as alone, so chunks of several texts can share a batch. Only a single
        text is streamed.
        """
        if len(texts) == 1:
            return [self.synthesize(texts[0][1], texts[0][0], options)]
        sampling = self.sampling(options)
        chunks, languages = [self.split(text, language) for language, text in texts], [code for code, _ in texts]
        by_text: list[list[_GeneratedChunk]] = [[] for _ in texts]
        for number, generated in self._generate_in_batches(chunks, languages, sampling, 1, progress):
            by_text[number].append(generated)
        return [(self._vocode(chunk, sampling.seed) for chunk in generated) for generated in by_text]

    def _generate_in_batches(self, texts: Sequence[list[TextChunk]], languages: Sequence[str], sampling: Sampling,
                             batch_size: int, progress: ProgressCallback = no_progress
                             ) -> Iterator[tuple[int, _GeneratedChunk]]:
        """The codes of the chunks of each text, in order, with the index of the text.

        In a round the next `batch_size` chunks of every text are generated with one seed; the next round has twice as
        many, with another seed. So the seeds of a text do not depend on other texts, and chunks of all texts share
        batches.
        """
        queues, seed, total, count = list(texts), sampling.seed, sum(map(len, texts)), 0
        while any(queues):
            # The next chunks of every text, in batches that the device can hold.
            due = []
            for number, chunks in enumerate(queues):
                due += [(number, chunk) for chunk in chunks[:batch_size]]
            queues = [chunks[batch_size:] for chunks in queues]

            for start in range(0, len(due), MAX_BATCH_SIZE):
                progress(Progress(count, total, "chunks", "generated"))
                batch, started = due[start:start + MAX_BATCH_SIZE], time.perf_counter()
                seeded = replace(sampling, seed=seed)
                results = self._generate([chunk for _, chunk in batch], [languages[number] for number, _ in batch],
                                         seeded)
                # A chunk that was halved has two results; they share the time.
                share_s = (time.perf_counter() - started) / sum(map(len, results))
                for (number, source), parts in zip(batch, results, strict=True):
                    for index, (chunk, generated) in enumerate(parts, 1):
                        last = source is texts[number][-1] and index == len(parts)
                        yield number, _GeneratedChunk(chunk, languages[number], seeded, generated, share_s, last)
                count += len(batch)
            seed += batch_size
            batch_size = min(2 * batch_size, MAX_BATCH_SIZE)
        progress(Progress(count, total, "chunks", "generated"))

    def _stream(self, chunk: TextChunk, language: str, sampling: Sampling, stream: VocoderStream,
                last: bool) -> Iterator[SynthesizedChunk]:
        """One text chunk in parts; the last part has the pause and the finish reason."""
        speech = ChunkSynthesis(self, chunk, language, sampling, last, stream)
        while not speech.ended:
            attempt = speech.sampling
            with self.model.adapters_for(language):
                for codes in self.model.stream(speech.text_ids, speech.voice, attempt, self.vocoder):
                    yield from speech.push(codes)
                    if speech.sampling is not attempt:
                        break

    def _generate(self, chunks: Sequence[TextChunk], languages: Sequence[str],
                  sampling: Sampling) -> list[list[tuple[TextChunk, Generated]]]:
        """The codes of each chunk; a chunk that reaches the limit of codes is generated again in two halves."""
        ids = [self._text_ids(chunk, language) for chunk, language in zip(chunks, languages, strict=True)]
        voices = [self._prepared_voice(chunk.text, language) for chunk, language in zip(chunks, languages, strict=True)]
        outputs = self.model.generate(ids, languages, voices, sampling, self.vocoder)
        results: list[list[tuple[TextChunk, Generated]]] = []
        # A chunk that reached the limit was cut off.
        for chunk, language, generated in zip(chunks, languages, outputs, strict=True):
            halves = halve(chunk.text) if len(generated.codes) >= self.model.lm.max_speech_length else None
            if halves is None:
                results.append([(chunk, generated)])
            else:
                halved = [halves[0], TextChunk(halves[1], chunk.boundary)]
                first_half, second_half = self._generate(halved, [language] * 2, sampling)
                results.append(first_half + second_half)
        return results

    def _text_ids(self, chunk: TextChunk, language: str) -> np.ndarray:
        return np.array(chunk.ids) if chunk.ids else self.front_end.encode(
            chunk.text, language, self._unknown)

    def sampling(self, options: SamplingOptions) -> Sampling:
        """What was asked for, else the model's own."""
        overrides = {name: value for name, value in options.model_dump().items() if value is not None}
        return replace(self.model.sampling, **overrides, position_scheme=self._sound.position_scheme)

    def _prepared_voice(self, text: str, language: str) -> PreparedVoice:
        """The prepared voice for `text`; cached unless a duration is wanted, which differs from text to text."""
        duration_s = self._wanted_s(text)
        if duration_s:
            with self.model.adapters_for(language):
                return self.model.lm.prepare(replace(self.voice, duration_s=duration_s))

        # A voice passes through the model, so it is prepared for each set of adapters.
        adapters = self.model.adapters_of(language)
        if adapters not in self._prepared:
            with self.model.adapters_for(language):
                self._prepared[adapters] = self.model.lm.prepare(self.voice)
        return self._prepared[adapters]

    def _wanted_s(self, text: str) -> float:
        """The wanted duration of `text` in seconds; 0 leaves it to the model."""
        rate = self._sound.speaking_rate
        return len(text) / rate if rate else self._sound.duration_s or 0.0

    def vocoder_stream(self, seed: int, language: str) -> VocoderStream | None:
        """A stream of the vocoder in this voice; None if the family has none."""
        return self.vocoder.stream(self.voice, self._vocoder_options(seed, language))

    def _vocoder_options(self, seed: int, language: str) -> VocoderOptions:
        return VocoderOptions(self._sound.flow_steps, self._sound.flow_prompt_s, self._sound.watermark, seed,
                              decoder=self.model.decoder_of(language))

    def _decode(self, generated: Generated, text: str, language: str, seed: int) -> torch.Tensor:
        """Waveform (S,) of the codes of `text`, on the CPU."""
        options = replace(self._vocoder_options(seed, language), duration_s=self._wanted_s(text))
        return self.vocoder.decode(generated.codes, self.voice, options, generated.hidden_states).float().cpu()

    def _vocode(self, part: _GeneratedChunk, seed: int) -> SynthesizedChunk:
        """Decode to a waveform, fade in and out, limit the peak, and append the pause."""
        start = time.perf_counter()

        def decode(generated: Generated) -> torch.Tensor:
            return self._decode(generated, part.chunk.text, part.language, seed)

        def generate(sampling: Sampling) -> Generated:
            ids, voice = self._text_ids(part.chunk, part.language), self._prepared_voice(part.chunk.text, part.language)
            return self.model.generate([ids], [part.language], [voice], sampling, self.vocoder)[0]

        generated, waveform = retry_without_speech(part.generated, part.sampling, generate, decode, self.sample_rate)
        waveform = _finish_waveform(waveform, self.sample_rate, 0.0 if part.last else PAUSES_S[part.chunk.boundary])
        synthesis_s = part.generation_s + time.perf_counter() - start
        return SynthesizedChunk(part.chunk.text, waveform, synthesis_s, generated.finish_reason)


class ChunkSynthesis:
    """The speech of one text chunk, from codes that are pushed as they are decoded.

    With a vocoder `stream` its parts are ready while codes come. They are held back until one sounds. A sentence that
    is silent for too long starts again: `sampling` is then that of the next attempt, whose codes come from the first
    on. Without a stream the whole chunk is ready at the end, or `halves` of it are to be synthesized instead, if its
    codes reached the limit.
    """

    def __init__(self, synthesizer: Synthesizer, chunk: TextChunk, language: str, sampling: Sampling, last: bool,
                 stream: VocoderStream | None, seed: int | None = None) -> None:
        """`seed` is that of the vocoder, which is the same for all chunks of a text; without it that of `sampling`."""
        self.chunk, self.language, self.last = chunk, language, last
        self.text_ids = synthesizer._text_ids(chunk, language)
        self.voice = synthesizer._prepared_voice(chunk.text, language)
        self.ended = False
        self.halves: tuple[TextChunk, TextChunk] | None = None
        self._synthesizer, self._stream = synthesizer, stream
        self._seed = sampling.seed if seed is None else seed
        self._attempts = [sampling, *retries(sampling)]
        self._held, self._has_begun, self._no_speech = torch.zeros(0), False, False
        self._start = time.perf_counter()

    @property
    def sampling(self) -> Sampling:
        """How the codes of the present attempt are sampled."""
        return self._attempts[0]

    def push(self, codes: np.ndarray | Generated) -> list[SynthesizedChunk]:
        """Take the next codes (n,), or at last the complete result; returns the parts that are ready."""
        if self._stream is not None:
            return self._push_to_stream(codes, self._stream)
        return self._push_result(codes) if isinstance(codes, Generated) else []

    def _push_to_stream(self, codes: np.ndarray | Generated, stream: VocoderStream) -> list[SynthesizedChunk]:
        sample_rate, ended = self._synthesizer.sample_rate, isinstance(codes, Generated)
        waveform = stream.finish() if isinstance(codes, Generated) else stream.push(codes)
        if not ended and not len(waveform):
            return []
        # Clamped and not scaled, since a gain would vary from part to part.
        waveform = waveform.float().cpu().clamp(-OUTPUT_PEAK, OUTPUT_PEAK)

        # Hold the sound back until something sounds; a sentence that stays silent starts again.
        if not self._has_begun:
            waveform = self._held = torch.cat([self._held, waveform])
            lead_s = leading_silence(waveform.numpy(), sample_rate)
            sounds = lead_s < len(waveform) / sample_rate
            if not sounds and not ended and lead_s <= LONGEST_LEAD_S + _SOUNDS_AFTER_S:
                return []
            self._no_speech = not sounds or lead_s > LONGEST_LEAD_S
            if self._no_speech and len(self._attempts) > 1:
                self._begin_next_attempt()
                return []
            self._has_begun = True

        self.ended = ended
        pause_s = 0.0 if self.last or not ended else PAUSES_S[self.chunk.boundary]
        waveform = torch.cat([waveform, torch.zeros(round(pause_s * sample_rate))])
        reason: FinishReason = codes.finish_reason if isinstance(codes, Generated) else "stop"
        return [self._part(waveform, "no_speech" if ended and self._no_speech else reason)]

    def _push_result(self, generated: Generated) -> list[SynthesizedChunk]:
        synthesizer = self._synthesizer
        is_too_long = len(generated.codes) >= synthesizer.model.lm.max_speech_length
        halves = halve(self.chunk.text) if is_too_long else None
        if halves:
            self.halves, self.ended = (halves[0], TextChunk(halves[1], self.chunk.boundary)), True
            return []

        # A chunk without speech starts again, as long as attempts are left.
        waveform = synthesizer._decode(generated, self.chunk.text, self.language, self._seed)
        reason = generated.finish_reason
        if lacks_speech(generated, waveform, synthesizer.sample_rate):
            if len(self._attempts) > 1:
                self._begin_next_attempt()
                return []
            reason = "no_speech"

        self.ended = True
        pause_s = 0.0 if self.last else PAUSES_S[self.chunk.boundary]
        return [self._part(_finish_waveform(waveform, synthesizer.sample_rate, pause_s), reason)]

    def _begin_next_attempt(self) -> None:
        del self._attempts[0]
        self._held = torch.zeros(0)
        if self._stream is not None:
            self._stream = self._synthesizer.vocoder_stream(self._seed, self.language)

    def _part(self, waveform: torch.Tensor, reason: FinishReason) -> SynthesizedChunk:
        start, self._start = self._start, time.perf_counter()
        return SynthesizedChunk(self.chunk.text, waveform, self._start - start, reason)


def _finish_waveform(waveform: torch.Tensor, sample_rate: int, pause_s: float) -> torch.Tensor:
    """The waveform (S,) of a whole chunk, faded in and out, with a limited peak and the pause after it."""
    length = min(int(_FADE_S * sample_rate), len(waveform) // 2)
    if length:
        ramp = torch.linspace(0, 1, length)
        waveform = waveform.clone()
        waveform[:length] *= ramp
        waveform[-length:] *= ramp.flip(0)
    # Loud chunks are scaled, because clipping would be heard.
    peak = float(waveform.abs().max()) if len(waveform) else 0.0
    waveform = waveform * min(1.0, OUTPUT_PEAK / max(peak, 1e-9))
    return torch.cat([waveform, torch.zeros(round(pause_s * sample_rate))])


def retry_without_speech(generated: Generated, sampling: Sampling, generate: Callable[[Sampling], Generated],
                         decode: Callable[[Generated], torch.Tensor], sample_rate: int
                         ) -> tuple[Generated, torch.Tensor]:
    """The first of three attempts at a sentence that begins with speech, and its waveform (S,).

    `generated`, sampled with `sampling`, is the first attempt. Without such an attempt the last has the finish reason
    `no_speech`.
    """
    waveform = decode(generated)
    for retry in retries(sampling):
        if not lacks_speech(generated, waveform, sample_rate):
            return generated, waveform
        generated = generate(retry)
        waveform = decode(generated)
    if lacks_speech(generated, waveform, sample_rate):
        generated = replace(generated, finish_reason="no_speech")
    return generated, waveform


def retries(sampling: Sampling) -> list[Sampling]:
    """How a sentence without speech is sampled again; never for greedy decoding, which has no other result."""
    if not sampling.temperature:
        return []
    return [replace(sampling, seed=sampling.seed + number * _RETRY_SEED_STEP) for number in range(1, RETRIES + 1)]


def lacks_speech(generated: Generated, waveform: torch.Tensor, sample_rate: int) -> bool:
    """Whether a sentence is silent throughout, or for more than 0.6 s at its start."""
    lead_s = leading_silence(waveform.numpy(), sample_rate)
    return generated.finish_reason == "no_speech" or lead_s > LONGEST_LEAD_S or lead_s >= len(waveform) / sample_rate


def finish_reason(chunks: Sequence[SynthesizedChunk]) -> FinishReason:
    """That of a whole text: `no_speech` if a chunk of it has none, else the first that is not `stop`."""
    reasons: list[FinishReason] = [chunk.finish_reason for chunk in chunks if chunk.finish_reason != "stop"]
    return "no_speech" if "no_speech" in reasons else next(iter(reasons), "stop")


def join_chunks(chunks: Sequence[SynthesizedChunk]) -> torch.Tensor:
    """The whole waveform (S,)."""
    return torch.cat([chunk.waveform for chunk in chunks])


def unused_controls(sound: SoundOptions, family: Family) -> list[str]:
    """The options that were set although `family` does not use them."""
    plain = SoundOptions()
    return [name for name in type(sound).model_fields
            if getattr(sound, name) != getattr(plain, name) and name not in family.sound_options]


def find_voice(model: TTSModel, name: str, emotion: EmotionOptions | None = None) -> Voice:
    """The model's voice called `name` (empty: its first one), or the voice of the recording at the path `name`.

    `emotion` changes the voice of a recording.
    """
    voices = model.family.load_voices(model.base_folder)
    if name in voices:
        return voices[name]
    if not name and voices:
        return next(iter(voices.values()))
    # A path is checked before it is told whether it exists.
    if "/" in name or name.startswith("~"):
        confinement.check(str(Path(name).expanduser()))
    if not name or not Path(name).expanduser().is_file():
        raise UserError(
            f"{name!r} is neither a voice of the model nor a recording." if name else
            "The model comes without a voice, and no recording was chosen.",
            f"Its voices: {', '.join(voices) or 'none'}. A reference recording is given by its path.",
        )

    # The name is the path of a recording, whose voice is taken.
    reference = reference_voices.read_recording(confinement.open_path(name))
    waveform = torch.from_numpy(reference.waveform)
    # An emotion may come from a recording of its own.
    emotion_options = emotion or EmotionOptions()
    voice_emotion = Emotion(strength=emotion_options.emotion_strength, weights=emotion_options.weights,
                            balanced=emotion_options.emotion_balanced)
    if emotion_options.emotion_clip:
        clip = reference_voices.read_recording(confinement.open_path(emotion_options.emotion_clip))
        voice_emotion = replace(voice_emotion, clip=torch.from_numpy(clip.waveform), sample_rate=clip.sample_rate)
    return model.family.voice_from_recording(model.base_folder, model.device, waveform, reference.sample_rate,
                                             voice_emotion)
