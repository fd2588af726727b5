"""Codes from text: the conditioning of a voice once, a prefill of the texts, then one code a step.

It does not know sound or languages. Code k stands at speech position k + 1, as in training.
A step has fixed buffers and no answer that the host waits for, so that on CUDA it is
captured as a graph (`models.captured`); the host looks at what was said every few steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from models.base import Ending, Generated, PreparedVoice, Sampling, Voice
from models.decoder import Cache
from models.sampling import Sampler
from models.speech_lm import Conditioning, SpeechLM, SpeechLMConfig

CHECK = 8  # steps between two looks of the host
_LONGEST_PERIOD, _REPEATED = 25, 50  # codes: a pattern of up to a second, said again until two seconds are the same


@torch.inference_mode()
def prepare(model: SpeechLM, voice: Voice, device: torch.device) -> PreparedVoice:
    """The conditioning of `voice` as keys and values; it comes first in the stream and so never depends on a text."""
    codes = torch.as_tensor(voice.prompt_codes, dtype=torch.long, device=device)[None]
    if not codes.numel():  # an empty prompt is one masked position
        codes = codes.new_zeros(1, 1)
    length = torch.tensor([len(voice.prompt_codes)], device=device)
    kind = model.speech_emb.weight.dtype
    speaker = torch.as_tensor(voice.speaker_embedding, device=device, dtype=kind)[None]
    emotion = torch.full((1,), voice.emotion, device=device, dtype=kind)
    embedded = model.embed_conditioning(Conditioning(speaker, codes, length, emotion))
    cache = Cache(model.config.decoder, 1, embedded.shape[1], device, _cache_type(embedded))
    model.tfmr(embedded, cache)
    return PreparedVoice(voice, cache.storage[:, :, 0])


@torch.inference_mode()
def generate(model: SpeechLM, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice], sampling: Sampling,
             caps: Sequence[int], device: torch.device, stepper: Stepper | None = None) -> list[Generated]:
    """Codes for each text's ids (T,); a text ends at the model's stop, or after its cap in codes.

    A `stepper` that `fits` spares the allocation, and a captured one the launches of every step.
    """
    longest = min(max(caps), model.config.speech_positions - 1)
    ids = [torch.as_tensor(text, dtype=torch.long, device=device) for text in texts]
    needed = buffers(model.config, max(map(len, ids)), longest)
    if stepper is None:
        stepper = Stepper(model, len(texts), needed, longest, device)
    assert stepper.fits(len(texts), needed, longest)
    prepared = {id(voice): voice if isinstance(voice, PreparedVoice) else prepare(model, voice, device)
                for voice in voices}
    stepper.begin(ids, [prepared[id(voice)] for voice in voices], sampling)
    *_, (_, ended) = looks(stepper, caps)
    return [done for done in ended if done is not None]


@torch.inference_mode()
def looks(stepper: Stepper, caps: Sequence[int]) -> Iterator[tuple[np.ndarray, list[Generated | None]]]:
    """What the host sees while a stepper that has begun speaks: the codes so far (B, U), and the texts that have ended.

    With the last look all have.
    """
    stop, longest = stepper.model.config.stop_speech, min(max(caps), stepper.model.config.speech_positions - 1)
    ended: list[Generated | None] = [None] * len(caps)
    for step in range(1, longest + 1):
        stepper.advance()
        if step % CHECK and step < longest:
            continue
        said = stepper.codes[:, :step].cpu().numpy()
        ended = [done or _ended(row, min(cap, longest), stop) for done, row, cap in zip(ended, said, caps, strict=True)]
        yield said, ended
        if all(ended):
            return


@torch.inference_mode()
def stream(model: SpeechLM, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling, cap: int,
           device: torch.device, stepper: Stepper | None = None) -> Iterator[np.ndarray | Generated]:
    """`generate` of one text, as codes (n,) while they are spoken and, last, all of them.

    What repeats itself was spoken before it was seen to; it is missing from the last item alone.
    """
    ids = torch.as_tensor(text, dtype=torch.long, device=device)
    longest = min(cap, model.config.speech_positions - 1)
    stepper = stepper or Stepper(model, 1, buffers(model.config, len(ids), longest), longest, device)
    stepper.begin([ids], [voice if isinstance(voice, PreparedVoice) else prepare(model, voice, device)], sampling)
    told = 0
    for said, (ended,) in looks(stepper, [cap]):
        fresh = (ended.codes if ended else said[0])[told:]
        told += len(fresh)
        if len(fresh):
            yield fresh
        if ended:
            yield ended


def buffers(config: SpeechLMConfig, longest_text: int, longest: int) -> int:
    """Cache positions that texts of up to `longest_text` ids and `longest` codes need."""
    return config.conditioning_length + longest_text + 2 + longest


def _ended(codes: np.ndarray, cap: int, stop: int) -> Generated | None:
    """What a text has said (U,), once it has come to an end."""
    stops = np.flatnonzero(codes[:cap] == stop)
    if len(stops):
        return Generated(codes[:stops[0]], "stop")
    ending: Ending = "limit"
    length = cap if len(codes) >= cap else 0
    if (begun := repetition(codes[:cap])) is not None:
        ending, length = "repetition", begun
    return Generated(codes[:length], ending) if length else None


def repetition(codes: np.ndarray) -> int | None:
    """Where codes (U,) begin to say the same again until their end, for two seconds; None when they do not.

    The pattern that repeats may be up to a second long; its first saying is kept.
    """
    for period in range(1, min(_LONGEST_PERIOD, len(codes) - _REPEATED) + 1):
        if np.array_equal(codes[-_REPEATED:], codes[-_REPEATED - period:-period]):
            differing = np.flatnonzero(codes[period:] != codes[:-period])
            return int(differing[-1]) + 1 + period if len(differing) else period
    return None


class Stepper:
    """The buffers of some texts that are spoken together, and the step from one code to the next."""

    def __init__(self, model: SpeechLM, texts: int, capacity: int, longest: int, device: torch.device) -> None:
        self.model, self.texts, self.capacity, self.longest = model, texts, capacity, longest
        config = model.config
        allowed = torch.arange(config.speech_rows, device=device) < config.start_speech
        allowed[config.stop_speech] = True
        self.sampler = Sampler(texts, allowed, config.stop_speech)
        self.codes = torch.zeros(texts, longest, dtype=torch.long, device=device)
        self.step = torch.zeros((), dtype=torch.long, device=device)
        self.positions = torch.zeros(2 * texts, 1, dtype=torch.long, device=device)
        self.hidden = torch.zeros(0, device=device)  # (2 B, width), where each row stands
        self.cache: Cache | None = None
        self.deepest = 0  # positions of the longest row

    def fits(self, texts: int, capacity: int, longest: int) -> bool:
        """Whether the buffers are right for such texts."""
        return texts == self.texts and capacity <= self.capacity and longest <= self.longest

    @property
    def rows(self) -> int:
        """Rows in use: the texts, and again without their text where there is guidance."""
        return 2 * self.texts if self.sampler.guided else self.texts

    def begin(self, texts: Sequence[torch.Tensor], voices: Sequence[PreparedVoice], sampling: Sampling) -> None:
        """Take in the texts' ids (T,): afterwards `hidden` is at each row's start of speech."""
        self.sampler.begin(sampling, used=(self.model.config.start_speech,))
        conditioning, copies = self.model.config.conditioning_length, self.rows // self.texts
        keys_and_values = torch.stack([voice.keys_and_values for voice in voices], 2)
        cache = self._cache_for(keys_and_values)
        cache.storage[:, :, :self.rows, :, :conditioning] = keys_and_values.repeat(1, 1, copies, 1, 1, 1)
        rows, lengths = self._embedded(texts)
        at = conditioning + torch.arange(rows.shape[1], device=rows.device)[None].expand(self.rows, -1)
        cache.span, cache.level = conditioning + rows.shape[1], False
        hidden = self.model.tfmr(rows, cache.rows(self.rows), at)
        last = lengths.repeat(copies) - 1
        if self.hidden.dtype != hidden.dtype or not len(self.hidden):
            self.hidden = hidden.new_zeros(2 * self.texts, hidden.shape[-1])
        self.hidden[:self.rows] = hidden[torch.arange(self.rows, device=rows.device), last]
        self.positions[:self.rows, 0] = conditioning + last + 1
        self.step.zero_()
        self.deepest = cache.span
        cache.level = len({len(text) for text in texts}) == 1

    def advance(self) -> None:
        """Choose every row's next code and read it."""
        assert self.cache is not None
        self.cache.span = self.deepest + 1
        self.compute()
        self.deepest += 1

    def compute(self) -> None:
        """The step itself, on the device alone."""
        assert self.cache is not None
        rows, model = self.rows, self.model
        chosen = self.sampler.choose(model.speech_head(self.hidden[:rows]), self.step)
        self.codes.index_copy_(1, self.step[None], chosen[:, None])
        self.step += 1
        given = chosen.repeat(rows // self.texts)
        embedded = model.speech_emb(given) + model.speech_pos_emb.emb.weight.index_select(0, self.step[None])
        positions = self.positions[:rows]
        self.hidden[:rows] = model.tfmr(embedded[:, None], self.cache.rows(rows), positions)[:, 0]
        positions += 1

    def _cache_for(self, keys_and_values: torch.Tensor) -> Cache:
        """The cache, of the type and on the device of these (layers, 2, B, heads, C, head size)."""
        if self.cache is None or self.cache.storage.dtype != keys_and_values.dtype:
            self.cache = Cache(self.model.config.decoder, 2 * self.texts, self.capacity, keys_and_values.device,
                               keys_and_values.dtype)
        return self.cache

    def _embedded(self, texts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Text and start of speech of every row (rows, L, width), padded on the right, and lengths (texts,)."""
        model = self.model
        start = model.embed_speech(texts[0].new_full((1, 1), model.config.start_speech))[0]
        starts = start.repeat(1 + model.config.doubled_start, 1)
        made = []
        for keep in (1.0, 0.0)[:self.rows // self.texts]:
            hiding = None if keep else start.new_zeros(1)
            made += [torch.cat([model.embed_text(text[None], hiding)[0], starts]) for text in texts]
        lengths = torch.tensor([len(row) for row in made[:self.texts]], device=start.device)
        return torch.nn.utils.rnn.pad_sequence(made, batch_first=True), lengths


def _cache_type(vectors: torch.Tensor) -> torch.dtype:
    """A processor's attention is fastest in float32, whatever the products around it are computed in."""
    return vectors.dtype if vectors.device.type == "cuda" else torch.float32
