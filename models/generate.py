"""Autoregressive decoding of a `SpeechNetwork`: cached conditioning of a voice, prefill of texts, one code per step.

A step works on fixed buffers and never synchronises with the host, so that on CUDA it can be captured as a graph
(`models.cuda_graph_decode`); the host reads the codes every few steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data.measures import LEAST_VOICE, SILENCE_RATIO, voice_power
from models import decoder, merged_adapters
from models.alignment_guard import AlignmentGuard, text_attention
from models.base import FinishReason, Generated, PreparedVoice, Sampling, Vocoder, VocoderOptions, Voice
from models.decoder import KVCache
from models.quantize import is_quantized
from models.sampling import Sampler
from models.speech_network import SpeechNetwork, SpeechNetworkConfig

_PREFILL_UNIT = 32  # positions; on a GPU the lengths of a prefill are multiples of it
SYNC_INTERVAL = 8  # steps between two reads of the codes by the host
_MAX_PERIOD_S, _REPEATED_S = 1, 2  # a pattern of up to one second that repeats for two seconds
_CONTEXT_S = 4  # seconds of speech before a repetition, which show how loud the voice is
_EDGE_S = 0.2  # seconds that a vocoder may sound into a silence, or leave out at its end


@torch.inference_mode()
def prepare_voice(network: SpeechNetwork, voice: Voice, device: torch.device) -> PreparedVoice:
    """Keys and values of the conditioning of `voice`: it precedes the text, so it does not depend on it."""
    embedded = network.embed_voice(voice, device)
    cache = KVCache(network.config.decoder, 1, embedded.shape[1], device, cache_type(network, embedded))
    network.hidden_states(embedded, cache)
    return PreparedVoice(voice, cache.storage[:, :, 0])


@torch.inference_mode()
def generate(network: SpeechNetwork, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice],
             sampling: Sampling, limits: Sequence[int], device: torch.device,
             stepper: Stepper | None = None, vocoder: Vocoder | None = None) -> list[Generated]:
    """Codes for each text's ids (T,), up to the stop token or the text's limit in codes.

    With a `vocoder`, silence is not a repetition that ends a text.
    A `stepper` with large enough buffers saves the allocation of buffers, and a `CUDAGraphStepper` the kernel launches.
    """
    max_codes = min(max(limits), network.config.max_codes)
    ids = [torch.as_tensor(text, dtype=torch.long, device=device) for text in texts]
    capacity = cache_capacity(network.config, max(map(len, ids)), max_codes)
    if stepper is None:
        stepper = Stepper(network, len(texts), capacity, max_codes, device, is_guided(network, sampling))
    assert stepper.texts == len(texts)
    assert stepper.capacity >= capacity
    assert stepper.max_codes >= max_codes
    stepper.prefill(ids, voices, sampling)
    silence = SilenceCheck(vocoder, voices, network.config.code_rate) if vocoder else None
    *_, (_, results) = decode_steps(stepper, limits, silence)
    return [result for result in results if result is not None]


@torch.inference_mode()
def decode_steps(stepper: Stepper, limits: Sequence[int], silence: SilenceCheck | None = None
                 ) -> Iterator[tuple[np.ndarray, list[Generated | None]]]:
    """Decode after a prefill; every few steps yield the codes so far (B, U) and the results of finished texts.

    In the last item all texts are finished.
    """
    config = stepper.network.config
    max_codes = min(max(limits), config.max_codes)
    results: list[Generated | None] = [None] * len(limits)
    texts = [TextProgress(config, min(limit, max_codes)) for limit in limits]
    for step in range(1, max_codes + 1):
        stepper.advance()
        if step % SYNC_INTERVAL and step < max_codes:
            continue
        codes = stepper.codes[:, :step].cpu().numpy()
        for row, text in enumerate(texts):
            if results[row] is None:
                results[row] = text.result(stepper, row, codes[row], silence)
        yield codes, results
        if None not in results:
            return


@dataclass
class TextProgress:
    """Whether a text that is being decoded has ended."""

    config: SpeechNetworkConfig
    limit: int  # codes
    silent_from: int | None = None  # the index of a repetition that is silence

    def result(self, stepper: Stepper, row: int, codes: np.ndarray, silence: SilenceCheck | None) -> Generated | None:
        """The result of the text in a `row` of the stepper with `codes` (U,) so far; None while it goes on."""
        result = _finished(codes, self.limit, self.config, self.silent_from)
        if result is not None and result.finish_reason == "repetition" and silence is not None:
            start = len(result.codes)
            so_far = stepper.with_hidden_states(row, Generated(codes[:self.limit], "limit"))
            sound = silence.repeated_sound(row, so_far, start)
            if sound == "no speech":
                result = Generated(result.codes, "no_speech")
            elif sound == "silence":
                self.silent_from = start
                result = _finished(codes, self.limit, self.config, start)
        return None if result is None else stepper.with_hidden_states(row, result)


@torch.inference_mode()
def stream(network: SpeechNetwork, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling, limit: int,
           device: torch.device, stepper: Stepper | None = None,
           vocoder: Vocoder | None = None) -> Iterator[np.ndarray | Generated]:
    """`generate` of one text: chunks of codes (n,) as they are decoded, then the complete result.

    A repetition is detected after its codes were yielded; the result alone leaves it out.
    """
    ids = torch.as_tensor(text, dtype=torch.long, device=device)
    max_codes = min(limit, network.config.max_codes)
    stepper = stepper or Stepper(network, 1, cache_capacity(network.config, len(ids), max_codes), max_codes, device,
                                 is_guided(network, sampling))
    stepper.prefill([ids], [voice], sampling)
    yielded = 0
    silence = SilenceCheck(vocoder, [voice], network.config.code_rate) if vocoder else None
    for codes, (result,) in decode_steps(stepper, [limit], silence):
        chunk = (result.codes if result else codes[0])[yielded:]
        yielded += len(chunk)
        if len(chunk):
            yield chunk
        if result:
            yield result


def is_guided(network: SpeechNetwork, sampling: Sampling) -> bool:
    """Whether classifier-free guidance is on, so that each text has a second row with its text dropped."""
    return network.guided and sampling.guidance > 0


def rounded_up(positions: int) -> int:
    """Cache positions as the next of 512, 768, 1024, 1536, 2048, ...: few sizes, as a larger one needs new graphs."""
    power = 1 << max(9, (positions - 1).bit_length())
    return max(512, power * 3 // 4 if positions <= power * 3 // 4 else power)


def cache_capacity(config: SpeechNetworkConfig, text_length: int, max_codes: int) -> int:
    """Cache positions for texts of up to `text_length` ids and `max_codes` codes."""
    return config.conditioning_length + text_length + 2 + max_codes


def _finished(codes: np.ndarray, limit: int, config: SpeechNetworkConfig,
              silent_from: int | None = None) -> Generated | None:
    """The result of a text with codes (U,) so far; None while it goes on.

    A repetition from the index `silent_from` is silence: it ends no text. A text that reaches its limit in the silence
    ends where the silence begins.
    """
    stops = np.flatnonzero(codes[:limit] == config.stop_speech)
    if len(stops):
        return Generated(codes[:stops[0]], "stop")
    reason: FinishReason = "limit"
    length = limit if len(codes) >= limit else 0
    start = repetition(codes[:limit], config.code_rate)
    if start is not None:
        if start != silent_from:
            reason, length = "repetition", start
        elif length:
            length = start
    return Generated(codes[:length], reason) if length else None


@dataclass(frozen=True)
class SilenceCheck:
    """Whether codes sound silent: by the vocoder, because which codes are silence differs from model to model."""

    vocoder: Vocoder
    voices: Sequence[Voice | PreparedVoice]  # voices of the texts
    code_rate: int  # codes a second

    def repeated_sound(self, row: int, so_far: Generated, start: int) -> Literal["sound", "silence", "no speech"]:
        """The kind of the codes from `start` on, two seconds or more, compared with the four seconds before them.

        `no speech`: they are silence, and so is everything before them.
        """
        first_code = max(0, start - round(_CONTEXT_S * self.code_rate))
        waveform = self._waveform(row, so_far, first_code)
        rate = self.vocoder.sample_rate
        voice = voice_power(waveform, rate)
        if voice < LEAST_VOICE:
            return "silence" if first_code else "no speech"
        repeated = voice_power(waveform[-round((_REPEATED_S - _EDGE_S) * rate):], rate)
        return "silence" if repeated < max(LEAST_VOICE, voice / SILENCE_RATIO) else "sound"

    def _waveform(self, row: int, so_far: Generated, first_code: int) -> np.ndarray:
        voice = self.voices[row]
        states = None if so_far.hidden_states is None else so_far.hidden_states[first_code:]
        voice = voice.voice if isinstance(voice, PreparedVoice) else voice
        waveform = self.vocoder.decode(so_far.codes[first_code:], voice, VocoderOptions(watermark=False), states)
        return waveform.float().cpu().numpy()


def repetition(codes: np.ndarray, code_rate: int = 25) -> int | None:
    """The index from which codes (U,) repeat a pattern up to their end, for at least two seconds; None if they do not.

    The pattern is up to a second long, of `code_rate` codes; its first occurrence is before the index.
    """
    repeated = round(_REPEATED_S * code_rate)
    for period in range(1, min(round(_MAX_PERIOD_S * code_rate), len(codes) - repeated) + 1):
        if np.array_equal(codes[-repeated:], codes[-repeated - period:-period]):
            differing = np.flatnonzero(codes[period:] != codes[:-period])
            return int(differing[-1]) + 1 + period if len(differing) else period
    return None


class Stepper:
    """Buffers for a batch of texts, and the decoding step on them: `prefill` once, then `advance` for each code."""

    def __init__(self, network: SpeechNetwork, texts: int, capacity: int, max_codes: int, device: torch.device,
                 guided: bool = True) -> None:
        self.network, self.texts, self.capacity, self.max_codes = network, texts, capacity, max_codes
        self.max_rows = 2 * texts if guided and network.guided else texts
        config = network.config
        allowed = torch.arange(config.speech_rows, device=device) < config.start_speech
        allowed[config.stop_speech] = True
        self.sampler = Sampler(texts, allowed, config.stop_speech, max_codes)
        self.codes = torch.zeros(texts, max_codes, dtype=torch.long, device=device)
        self.steps = torch.zeros(texts, dtype=torch.long, device=device)
        self.code_position = torch.zeros(texts, dtype=torch.long, device=device)  # The last code's position.
        self.positions = torch.zeros(self.max_rows, 1, dtype=torch.long, device=device)  # (rows, 1), the last position
        self.hidden = torch.zeros(0, device=device)  # (rows, width), of the last position of each row
        self.predicting = torch.zeros(0, device=device)  # (B, max_codes, width), the states that predicted the codes
        self.guard = AlignmentGuard(texts, device)
        self.guarded = False  # whether it watches these texts
        self.sampling = Sampling()  # All texts share it.
        self.arrived = torch.zeros(texts, dtype=torch.int32, device=device)  # a counter of Triton's kernels
        self.cache: KVCache | None = None
        self.length = 0  # positions of the longest row

    @classmethod
    def from_texts(cls, parts: Sequence[tuple[Stepper, int]]) -> Stepper:
        """A stepper that goes on with some texts of others, each given by its stepper and its number there.

        Their sampling must be the same but for the seed.
        """
        example, device = parts[0][0], parts[0][0].steps.device
        config, guided = example.network.config, example.sampler.uses_guidance
        capacity = max(stepper.capacity for stepper, _ in parts)
        joined = cls(example.network, len(parts), capacity, example.max_codes, device, guided)
        joined.sampling, joined.guarded = example.sampling, example.guarded
        joined.sampler.reset(example.sampling)

        assert example.cache is not None
        joined.cache = KVCache(config.decoder, joined.max_rows, capacity, device, example.cache.storage.dtype)
        joined.cache.watched = example.cache.watched
        joined.hidden = example.hidden.new_zeros(joined.max_rows, example.hidden.shape[-1])
        if len(example.predicting):
            joined.predicting = example.predicting.new_zeros(len(parts), example.max_codes, example.hidden.shape[-1])

        # Each text brings its rows of the cache, which are as long as its own codes.
        lengths = [1 + int(stepper.positions[text]) for stepper, text in parts]
        for number, (stepper, text) in enumerate(parts):
            assert stepper.cache is not None
            assert replace(stepper.sampling, seed=0) == replace(example.sampling, seed=0)
            for target, source in zip(joined._text_tensors(), stepper._text_tensors(), strict=True):
                target[number] = source[text]
            for copy in range(2 if guided else 1):  # Guidance needs a copy without the text.
                row, source_row = number + copy * len(parts), text + copy * stepper.texts
                joined.positions[row], joined.hidden[row] = stepper.positions[source_row], stepper.hidden[source_row]
                length = lengths[number]
                joined.cache.storage[:, :, row, :, :length] = stepper.cache.storage[:, :, source_row, :, :length]

        joined.length = max(lengths)
        joined.cache.span, joined.cache.aligned = joined.length, len(parts) == 1
        return joined

    def _text_tensors(self) -> list[torch.Tensor]:
        """All tensors with an entry for each text."""
        predicting = [self.predicting] if len(self.predicting) else []
        return [self.codes, self.steps, self.code_position, self.sampler.used, self.sampler.keys, *predicting,
                *self.guard.tensors()]

    @property
    def rows(self) -> int:
        """Rows in use: one per text, and with guidance another one per text that has its text dropped."""
        return 2 * self.texts if self.sampler.uses_guidance else self.texts

    def prefill(self, texts: Sequence[torch.Tensor], voices: Sequence[Voice | PreparedVoice],
                sampling: Sampling) -> None:
        """Process the texts' ids (T,): afterwards `hidden` is that of each row's start-of-speech token."""
        sampling = sampling if self.network.guided else replace(sampling, guidance=0.0)
        start, used = self.network.decoding_start(sampling.position_scheme)
        self.sampling = sampling
        self.sampler.reset(sampling, used)
        assert self.rows <= self.max_rows

        self.code_position.fill_(start)
        conditioning, copies = self.network.config.conditioning_length, self.rows // self.texts

        # Adapters are merged, so that each step multiplies one matrix a layer.
        merged_adapters.update_norms(self.step_layers)
        adapted = self.layers_to_merge()
        self.merge(adapted)
        with merged_adapters.used(adapted):
            prepared = {id(voice): voice if isinstance(voice, PreparedVoice) else prepare_voice(
                self.network, voice, self.steps.device) for voice in voices}

        # The conditioning of each voice was processed once; its keys and values are copied.
        keys_and_values = torch.stack([prepared[id(voice)].keys_and_values for voice in voices], 2)
        cache = self._cache_for(keys_and_values)
        self.guarded = sampling.alignment_guard and bool(self.network.config.aligned_heads)
        cache.watched = frozenset(layer for layer, _ in self.network.config.aligned_heads if self.guarded)
        cache.storage[:, :, :self.rows, :, :conditioning] = keys_and_values.repeat(1, 1, copies, 1, 1, 1)

        # Process the texts behind it. On a GPU they are padded to few lengths, each of which has its graph; what is
        # written behind a text is masked, and overwritten by its codes.
        rows, lengths = self._embedded(texts)
        longest = rows.shape[1]
        if self.steps.device.type == "cuda":
            padded = min(self.capacity - conditioning, -(-longest // _PREFILL_UNIT) * _PREFILL_UNIT)
            rows = F.pad(rows, (0, 0, 0, padded - longest))
        cache.span, cache.aligned = conditioning + rows.shape[1], False
        with merged_adapters.used(adapted):
            hidden = self.process(rows)
        last = lengths.repeat(copies) - 1

        # Buffers keep their addresses between texts, as graphs read them.
        if self.hidden.dtype != hidden.dtype or not len(self.hidden):
            self.hidden = hidden.new_zeros(self.max_rows, hidden.shape[-1])
            if self.network.keeps_hidden_states:
                self.predicting = hidden.new_zeros(self.texts, self.max_codes, hidden.shape[-1])
        self.hidden[:self.rows] = hidden[torch.arange(self.rows, device=rows.device), last]
        self.positions[:self.rows, 0] = conditioning + last

        if self.guarded:
            self.guard.reset(torch.tensor([len(text) for text in texts], device=rows.device))
            self.guard.observe(self._text_attention(last, conditioning + last))

        self.steps.zero_()
        self.length = conditioning + longest
        cache.aligned = len({len(text) for text in texts}) == 1

    def process(self, rows: torch.Tensor) -> torch.Tensor:
        """The states (rows, L, width) of embedded texts (rows, L, width) behind the conditioning."""
        assert self.cache is not None
        positions = self.network.config.conditioning_length + torch.arange(rows.shape[1], device=rows.device)
        return self.network.hidden_states(rows, self.cache.rows(self.rows), positions[None].expand(self.rows, -1))

    @property
    def step_layers(self) -> list[nn.Module]:
        """The linear layers that a step reads."""
        transformer: Any = self.network.transformer
        return [*transformer.linear_layers, self.network.speech_head]

    def layers_to_merge(self) -> list[nn.Module]:
        """Those of them whose adapter is merged into the weight, for the kernels of a step on a GPU."""
        if not merges_adapters(self.network, self.steps.device):
            return []
        return list(filter(merged_adapters.adapted, self.step_layers))

    def merge(self, layers: Sequence[nn.Module]) -> None:
        """Merge the adapters of these layers as they are now."""
        merged_adapters.merge(layers)

    def advance(self) -> None:
        """Sample the next code of each row and process it."""
        assert self.cache is not None
        self.cache.span = self.length + 1
        self.compute()
        self.length += 1

    def compute(self) -> None:
        """The step itself, without any synchronisation with the host."""
        assert self.cache is not None
        rows, network, sampler = self.rows, self.network, self.sampler
        kernels, guard = _kernels(self.steps.device), self.guard if self.guarded else None
        positions = self.positions[:rows]

        # Keep the state that predicts this code, if the vocoder needs it.
        if len(self.predicting):
            step = self.steps[:, None, None].expand(-1, 1, self.hidden.shape[-1])
            self.predicting.scatter_(1, step, self.hidden[:self.texts, None])
        logits = self._logits()
        if kernels is not None and not sampler.top_k and not sampler.uses_top_p:
            sampled = kernels.sample(logits, sampler, guard, self.arrived, self.codes, self.steps, self.code_position,
                                     positions)
        else:
            sampled = sampler.sample(logits, self.steps, guard)
            self.codes.scatter_(1, self.steps[:, None], sampled[:, None])
            for count in (self.steps, self.code_position, positions):
                count += 1
            sampled = sampled.repeat(rows // self.texts)
        embedded = network.embed_code(sampled, self.code_position.repeat(rows // self.texts))
        self.hidden[:rows] = network.hidden_states(embedded[:, None], self.cache.rows(rows), positions)[:, 0]

        # The guard watches where the text is attended to.
        if guard is None:
            return
        if kernels is not None:
            kernels.observe(guard, *self._aligned(), positions[:, 0], sampled, network.config.conditioning_length,
                            self.arrived)
        else:
            guard.observe(self._text_attention(None, positions[:, 0]), sampled[:self.texts])

    def _logits(self) -> torch.Tensor:
        """Those of the next code, (rows, V)."""
        rows, head, kernels = self.hidden[:self.rows], self.network.speech_head, None
        if _kernels(self.steps.device) is not None:
            kernels = decoder.step_kernels(rows[:, None], self.network.transformer, head)
        return head(rows) if kernels is None else kernels.linear(rows, (head,))

    def _text_attention(self, index: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor:
        """Mean attention (texts, T) of the aligned heads to the text and what follows, up to the cache's span.

        It is the attention of the vectors at `index` (rows,) of the last forward pass, at `positions` (rows,). None:
        the pass had one vector a row.
        """
        texts, (queries, keys) = slice(self.texts), self._aligned()
        if index is not None:
            queries = [head_queries.take_along_dim(index[texts, None, None], 1) for head_queries in queries]
        mask = torch.arange(keys[0].shape[1], device=positions.device) <= positions[texts, None]
        return text_attention(torch.cat(queries, 1), torch.stack(keys, 1), mask,
                              self.network.config.conditioning_length)

    def _aligned(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of each aligned head the queries (texts, T, head size) of the last pass, and the keys up to the span."""
        assert self.cache is not None
        texts, span, heads = slice(self.texts), self.cache.span, self.network.config.aligned_heads
        return ([self.cache.queries[layer][texts, head] for layer, head in heads],
                [self.cache.storage[layer, 0, texts, head, :span] for layer, head in heads])

    def with_hidden_states(self, row: int, result: Generated) -> Generated:
        """The result of a text with the states that predicted its codes, if the network keeps them."""
        if not len(self.predicting):
            return result
        return replace(result, hidden_states=self.predicting[row, :len(result.codes)].clone())

    def _cache_for(self, keys_and_values: torch.Tensor) -> KVCache:
        """The cache, with the type and device of these keys and values (layers, 2, B, heads, C, head size)."""
        if self.cache is None or self.cache.storage.dtype != keys_and_values.dtype:
            self.cache = KVCache(self.network.config.decoder, self.max_rows, self.capacity, keys_and_values.device,
                                 keys_and_values.dtype)
        return self.cache

    def _embedded(self, texts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedded text and start of speech (rows, L, width), padded on the right, and lengths (texts,)."""
        network = self.network
        starts = network.embed_start()
        rows = []
        for keep in (None, starts.new_zeros(1))[:self.rows // self.texts]:
            rows += [torch.cat([network.embed_text(text[None], keep)[0], starts]) for text in texts]
        lengths = torch.tensor([len(row) for row in rows[:self.texts]], device=starts.device)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def cache_type(network: SpeechNetwork, vectors: torch.Tensor) -> torch.dtype:
    """On a GPU that of the vectors; on a CPU bfloat16 with quantized weights, as a step reads the cache too."""
    if vectors.device.type == "cuda":
        return vectors.dtype
    return torch.bfloat16 if is_quantized(network) else torch.float32


def merges_adapters(network: SpeechNetwork, device: torch.device) -> bool:
    """Whether adapters are merged for a step: on a GPU where Triton compiles, in half precision."""
    return _kernels(device) is not None and next(network.transformer.parameters()).dtype is not torch.float32


def _kernels(device: torch.device) -> ModuleType | None:
    """`models.triton_sampling` on a GPU where Triton can compile."""
    if device.type != "cuda" or not decoder.has_triton(device):
        return None
    from models import triton_sampling

    return triton_sampling
