"""Autoregressive decoding of a `SpeechLM`: cached conditioning of a voice, prefill of the texts, one code per step.

Code k has speech position k + 1, as in training. A step works on fixed buffers and never synchronises with the host,
so that on CUDA it can be captured as a graph (`models.cuda_graph_decode`); the host reads the codes every few steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from models.base import FinishReason, Generated, PreparedVoice, Sampling, Voice
from models.decoder import KVCache
from models.sampling import Sampler
from models.speech_lm import Conditioning, SpeechLM, SpeechLMConfig

SYNC_INTERVAL = 8  # steps between two reads of the codes by the host
_MAX_PERIOD, _REPEATED = 25, 50  # codes: a pattern of up to one second that repeats for two seconds


@torch.inference_mode()
def prepare_voice(model: SpeechLM, voice: Voice, device: torch.device) -> PreparedVoice:
    """Keys and values of the conditioning of `voice`: it precedes the text, so it does not depend on it."""
    codes = torch.as_tensor(voice.prompt_codes, dtype=torch.long, device=device)[None]
    if not codes.numel():  # an empty prompt is one masked position
        codes = codes.new_zeros(1, 1)
    length = torch.tensor([len(voice.prompt_codes)], device=device)
    kind = model.speech_emb.weight.dtype
    speaker = torch.as_tensor(voice.speaker_embedding, device=device, dtype=kind)[None]
    emotion = torch.full((1,), voice.emotion, device=device, dtype=kind)
    embedded = model.embed_conditioning(Conditioning(speaker, codes, length, emotion))
    cache = KVCache(model.config.decoder, 1, embedded.shape[1], device, _cache_type(embedded))
    model.tfmr(embedded, cache)
    return PreparedVoice(voice, cache.storage[:, :, 0])


@torch.inference_mode()
def generate(model: SpeechLM, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice], sampling: Sampling,
             limits: Sequence[int], device: torch.device, stepper: Stepper | None = None) -> list[Generated]:
    """Codes for each text's ids (T,), up to the stop token or the text's limit in codes.

    A `stepper` that `fits` saves the allocation of buffers, and a `CUDAGraphStepper` the kernel launches.
    """
    max_codes = min(max(limits), model.config.speech_positions - 1)
    ids = [torch.as_tensor(text, dtype=torch.long, device=device) for text in texts]
    capacity = cache_capacity(model.config, max(map(len, ids)), max_codes)
    if stepper is None:
        stepper = Stepper(model, len(texts), capacity, max_codes, device)
    assert stepper.fits(len(texts), capacity, max_codes)
    prepared = {id(voice): voice if isinstance(voice, PreparedVoice) else prepare_voice(model, voice, device)
                for voice in voices}
    stepper.prefill(ids, [prepared[id(voice)] for voice in voices], sampling)
    *_, (_, results) = decode_steps(stepper, limits)
    return [result for result in results if result is not None]


@torch.inference_mode()
def decode_steps(stepper: Stepper, limits: Sequence[int]) -> Iterator[tuple[np.ndarray, list[Generated | None]]]:
    """Decode after a prefill; every few steps yield the codes so far (B, U) and the results of finished texts.

    In the last item all texts are finished.
    """
    stop, max_codes = stepper.model.config.stop_speech, min(max(limits), stepper.model.config.speech_positions - 1)
    results: list[Generated | None] = [None] * len(limits)
    for step in range(1, max_codes + 1):
        stepper.advance()
        if step % SYNC_INTERVAL and step < max_codes:
            continue
        codes = stepper.codes[:, :step].cpu().numpy()
        results = [result or _finished(row, min(limit, max_codes), stop)
                   for result, row, limit in zip(results, codes, limits, strict=True)]
        yield codes, results
        if all(results):
            return


@torch.inference_mode()
def stream(model: SpeechLM, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling, limit: int,
           device: torch.device, stepper: Stepper | None = None) -> Iterator[np.ndarray | Generated]:
    """`generate` of one text: chunks of codes (n,) as they are decoded, then the complete result.

    A repetition is detected after its codes were yielded; the result alone leaves it out.
    """
    ids = torch.as_tensor(text, dtype=torch.long, device=device)
    max_codes = min(limit, model.config.speech_positions - 1)
    stepper = stepper or Stepper(model, 1, cache_capacity(model.config, len(ids), max_codes), max_codes, device)
    prepared = voice if isinstance(voice, PreparedVoice) else prepare_voice(model, voice, device)
    stepper.prefill([ids], [prepared], sampling)
    yielded = 0
    for codes, (result,) in decode_steps(stepper, [limit]):
        chunk = (result.codes if result else codes[0])[yielded:]
        yielded += len(chunk)
        if len(chunk):
            yield chunk
        if result:
            yield result


def cache_capacity(config: SpeechLMConfig, text_length: int, max_codes: int) -> int:
    """Cache positions for texts of up to `text_length` ids and `max_codes` codes."""
    return config.conditioning_length + text_length + 2 + max_codes


def _finished(codes: np.ndarray, limit: int, stop: int) -> Generated | None:
    """The result of a text with codes (U,) so far; None while it goes on."""
    stops = np.flatnonzero(codes[:limit] == stop)
    if len(stops):
        return Generated(codes[:stops[0]], "stop")
    reason: FinishReason = "limit"
    length = limit if len(codes) >= limit else 0
    if (start := repetition(codes[:limit])) is not None:
        reason, length = "repetition", start
    return Generated(codes[:length], reason) if length else None


def repetition(codes: np.ndarray) -> int | None:
    """The index from which codes (U,) repeat a pattern up to their end, for at least two seconds; None if they do not.

    The pattern is up to a second long; its first occurrence is before the index.
    """
    for period in range(1, min(_MAX_PERIOD, len(codes) - _REPEATED) + 1):
        if np.array_equal(codes[-_REPEATED:], codes[-_REPEATED - period:-period]):
            differing = np.flatnonzero(codes[period:] != codes[:-period])
            return int(differing[-1]) + 1 + period if len(differing) else period
    return None


class Stepper:
    """Buffers for a batch of texts, and the decoding step on them: `prefill` once, then `advance` for each code."""

    def __init__(self, model: SpeechLM, texts: int, capacity: int, max_codes: int, device: torch.device) -> None:
        self.model, self.texts, self.capacity, self.max_codes = model, texts, capacity, max_codes
        config = model.config
        allowed = torch.arange(config.speech_rows, device=device) < config.start_speech
        allowed[config.stop_speech] = True
        self.sampler = Sampler(texts, allowed, config.stop_speech)
        self.codes = torch.zeros(texts, max_codes, dtype=torch.long, device=device)
        self.step = torch.zeros((), dtype=torch.long, device=device)
        self.positions = torch.zeros(2 * texts, 1, dtype=torch.long, device=device)
        self.hidden = torch.zeros(0, device=device)  # (2 B, width), of the last position of each row
        self.cache: KVCache | None = None
        self.length = 0  # positions of the longest row

    def fits(self, texts: int, capacity: int, max_codes: int) -> bool:
        """Whether the buffers are large enough, for the same number of texts."""
        return texts == self.texts and capacity <= self.capacity and max_codes <= self.max_codes

    @property
    def rows(self) -> int:
        """Rows in use: one per text, and with guidance another one per text that has its text dropped."""
        return 2 * self.texts if self.sampler.uses_guidance else self.texts

    def prefill(self, texts: Sequence[torch.Tensor], voices: Sequence[PreparedVoice], sampling: Sampling) -> None:
        """Process the texts' ids (T,): afterwards `hidden` is that of each row's start-of-speech token."""
        self.sampler.reset(sampling, used=(self.model.config.start_speech,))
        conditioning, copies = self.model.config.conditioning_length, self.rows // self.texts
        keys_and_values = torch.stack([voice.keys_and_values for voice in voices], 2)
        cache = self._cache_for(keys_and_values)
        cache.storage[:, :, :self.rows, :, :conditioning] = keys_and_values.repeat(1, 1, copies, 1, 1, 1)
        rows, lengths = self._embedded(texts)
        at = conditioning + torch.arange(rows.shape[1], device=rows.device)[None].expand(self.rows, -1)
        cache.span, cache.aligned = conditioning + rows.shape[1], False
        hidden = self.model.tfmr(rows, cache.rows(self.rows), at)
        last = lengths.repeat(copies) - 1
        if self.hidden.dtype != hidden.dtype or not len(self.hidden):
            self.hidden = hidden.new_zeros(2 * self.texts, hidden.shape[-1])
        self.hidden[:self.rows] = hidden[torch.arange(self.rows, device=rows.device), last]
        self.positions[:self.rows, 0] = conditioning + last + 1
        self.step.zero_()
        self.length = cache.span
        cache.aligned = len({len(text) for text in texts}) == 1

    def advance(self) -> None:
        """Sample the next code of each row and process it."""
        assert self.cache is not None
        self.cache.span = self.length + 1
        self.compute()
        self.length += 1

    def compute(self) -> None:
        """The step itself, without any synchronisation with the host."""
        assert self.cache is not None
        rows, model = self.rows, self.model
        sampled = self.sampler.sample(model.speech_head(self.hidden[:rows]), self.step)
        self.codes.index_copy_(1, self.step[None], sampled[:, None])
        self.step += 1
        embedded = model.speech_emb(sampled.repeat(rows // self.texts))
        embedded = embedded + model.speech_pos_emb.emb.weight.index_select(0, self.step[None])
        positions = self.positions[:rows]
        self.hidden[:rows] = model.tfmr(embedded[:, None], self.cache.rows(rows), positions)[:, 0]
        positions += 1

    def _cache_for(self, keys_and_values: torch.Tensor) -> KVCache:
        """The cache, with the type and device of these keys and values (layers, 2, B, heads, C, head size)."""
        if self.cache is None or self.cache.storage.dtype != keys_and_values.dtype:
            self.cache = KVCache(self.model.config.decoder, 2 * self.texts, self.capacity, keys_and_values.device,
                                 keys_and_values.dtype)
        return self.cache

    def _embedded(self, texts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedded text and start of speech (rows, L, width), padded on the right, and lengths (texts,)."""
        model = self.model
        start = model.embed_speech(texts[0].new_full((1, 1), model.config.start_speech))[0]
        starts = start.repeat(1 + model.config.doubled_start, 1)
        rows = []
        for keep in (None, start.new_zeros(1))[:self.rows // self.texts]:
            rows += [torch.cat([model.embed_text(text[None], keep)[0], starts]) for text in texts]
        lengths = torch.tensor([len(row) for row in rows[:self.texts]], device=start.device)
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def _cache_type(vectors: torch.Tensor) -> torch.dtype:
    """On a CPU float32, in which attention is fastest there whatever the type of the other products."""
    return vectors.dtype if vectors.device.type == "cuda" else torch.float32
