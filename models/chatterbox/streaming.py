"""Sound while the codes are still coming.

The flow's attention is over everything, so no frame is final until the last code is known. A piece is
therefore made of all codes so far (at most `context` of those already spoken), some codes short of the end:
what is close to the end would still change much, and the vocoder wants to see 14 frames ahead as well. Noise,
harmonics and their phases are those that the whole utterance would have had, frame by frame, and the vocoder
goes on from the excitation of the piece before, so that pieces fit; what little they differ in is faded over
20 ms. Given one mel, the pieces are the offline waveform to rounding; given the flow, they differ by what the
codes that were not yet known would have changed: 5 s in the pieces below stand 30 dB above the difference (31 dB
with a look-ahead of 16 codes; four steps, made-up weights of the published size).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from models.chatterbox.flow import Flow, FlowPrompt, start_noise
from models.chatterbox.hift import HiFT
from models.chatterbox.hift_source import Chance

CONTEXT_FRAMES = 24  # the vocoder hears 14 frames back and its pitch predictor 5 more
FADE_FRAMES = 1  # 20 ms


@dataclass(frozen=True)
class Pace:
    """How many codes (25 a second) are spoken at a time, and how many must be known besides."""

    first: int = 12  # short, for an early start
    growth: float = 2.0  # each piece to the one before: longer pieces cost less and fit better
    largest: int = 100
    lookahead: int = 8  # codes known but not yet spoken: the vocoder's 14 frames and a little
    context: int = 250  # codes already spoken that the flow still sees


class WaveformStream:
    """Mel that grows, and is estimated anew with each piece, to a waveform that only grows."""

    def __init__(self, vocoder: HiFT, seed: int) -> None:
        self._vocoder, self._seed = vocoder, seed
        self._hop = vocoder.config.samples_per_frame
        self._frames = 0  # spoken
        self._turns: torch.Tensor | None = None  # (1,) of the pitch, after the frames spoken
        self._source = torch.zeros(1, 1, 0)  # excitation of the last frames spoken
        self._held = torch.zeros(0)  # their last samples, to be faded into the next piece

    @torch.inference_mode()
    def piece(self, mel: torch.Tensor, start: int, until: int, last: bool = False) -> torch.Tensor:
        """Log-mel (1, n_mels, F) of the frames from `start` to the samples (S,) up to frame `until`.

        All but the last piece hold back the 20 ms that are faded into the next one.
        """
        first = max(start, self._frames - CONTEXT_FRAMES)
        window, known = mel[..., first - start :], self._frames - first
        f0 = self._vocoder.f0(window)[:, known:]
        source = torch.cat([self._past(known), self._excite(f0)], -1)
        waveform = self._vocoder.decode(window, source)[0]
        fresh = waveform[known * self._hop - len(self._held) : (until - first) * self._hop]
        fresh = torch.cat([self._faded(fresh), fresh[len(self._held) :]])
        self._turns = self._vocoder.m_source.turned(f0[:, : until - self._frames], self._turns)
        self._source = source[..., : (until - first) * self._hop]
        self._frames = until
        hold = 0 if last else min(FADE_FRAMES * self._hop, len(fresh))
        self._held = fresh[len(fresh) - hold :]
        return fresh[: len(fresh) - hold]

    def _past(self, frames: int) -> torch.Tensor:
        return self._source[..., self._source.shape[-1] - frames * self._hop :]

    def _excite(self, f0: torch.Tensor) -> torch.Tensor:
        """Excitation of pitch (1, F) from the first frame not yet spoken."""
        begin, end = self._frames * self._hop, (self._frames + f0.shape[1]) * self._hop
        chance = Chance.draw(self._vocoder.config.harmonics + 1, end, torch.Generator().manual_seed(self._seed))
        return self._vocoder.m_source(f0, Chance(chance.offsets, chance.noise[begin:]), self._turns)

    def _faded(self, fresh: torch.Tensor) -> torch.Tensor:
        """The samples held back, going over into how they sound now."""
        ramp = torch.linspace(0, 1, len(self._held) + 2, device=fresh.device)[1:-1]
        return torch.lerp(self._held.to(fresh), fresh[: len(self._held)], ramp)


class Stream:
    """Codes in, sound out: `push` as they come, then `finish` once."""

    def __init__(self, flow: Flow, vocoder: HiFT, prompt: FlowPrompt, *, steps: int = 10, guidance: float = 0.7,
                 seed: int = 0, pace: Pace | None = None) -> None:
        self._flow, self._prompt, self._pace = flow, prompt, pace or Pace()
        self._steps, self._guidance, self._seed = steps, guidance, seed
        self._waveforms = WaveformStream(vocoder, seed)
        self._codes = prompt.codes[:, :0]
        self._spoken = 0
        self._wanted = float(self._pace.first)

    def push(self, codes: torch.Tensor) -> torch.Tensor:
        """More codes (n,) to the samples (S,) that they allow, often none."""
        self._codes = torch.cat([self._codes, codes[None].to(self._codes)], 1)
        until = self._codes.shape[1] - self._pace.lookahead
        if until - self._spoken < self._wanted:
            return torch.zeros(0)
        self._wanted = min(self._wanted * self._pace.growth, self._pace.largest)
        return self._speak(until)

    def finish(self, drop: int = 0) -> torch.Tensor:
        """The rest, without the last `drop` codes' sound."""
        until = max(self._spoken, self._codes.shape[1] - drop)
        return self._speak(until, last=True) if self._codes.shape[1] else torch.zeros(0)

    def _speak(self, until: int, last: bool = False) -> torch.Tensor:
        """Samples up to code `until`."""
        start = max(0, self._spoken - self._pace.context)
        rate = self._flow.config.encoder.upsampling
        noise = start_noise(rate * (self._prompt.codes.shape[1] + self._codes.shape[1]),
                            self._flow.config.estimator.n_mels, torch.Generator().manual_seed(self._seed))
        prompt_frames = rate * self._prompt.codes.shape[1]
        noise = torch.cat([noise[..., :prompt_frames], noise[..., prompt_frames + rate * start :]], -1)
        mel = self._flow.mel(self._codes[:, start:], None, self._prompt, steps=self._steps, guidance=self._guidance,
                             noise=noise)
        self._spoken = until
        return self._waveforms.piece(mel, rate * start, rate * until, last).cpu()


def stream(talk: Stream, codes: Iterable[torch.Tensor], drop: int = 0) -> Iterator[torch.Tensor]:
    """Pieces of codes (n,) to pieces of waveform (S,), none of them empty; see `Stream`."""
    for some in codes:
        piece = talk.push(some)
        if len(piece):
            yield piece
    rest = talk.finish(drop)
    if len(rest):
        yield rest
