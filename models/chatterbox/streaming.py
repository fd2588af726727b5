"""Streaming synthesis: waveform chunks from codes that are still being generated.

The flow's attention is not causal, so no frame is final before the last code is known. A chunk is computed from all
codes so far (at most `context` of those already synthesised) and ends some codes before the last one: frames near the
end would still change much, and the vocoder reads 14 frames ahead. Noise, harmonics and their phases are those of the
offline synthesis, frame by frame, and the vocoder continues the excitation of the chunk before; the small remaining
difference is cross-faded over 20 ms. Given the same mel, the chunks equal the offline waveform to rounding. With the
flow they differ by the influence of later codes: 5 s in the chunks below have a signal-to-noise ratio of 30 dB against
offline synthesis (31 dB with a look-ahead of 16 codes; four steps, random weights of the published sizes).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.chatterbox.flow import FLOW_GUIDANCE, FLOW_STEPS, Flow, FlowPrompt, start_noise
from models.chatterbox.flow_encoder import MEL_FRAMES_PER_CODE
from models.chatterbox.hift import ExcitationNoise, HiFT

CONTEXT_FRAMES = 24  # the vocoder reads 14 frames back and its pitch predictor 5 more
FADE_FRAMES = 1  # 20 ms


@dataclass(frozen=True)
class ChunkSchedule:
    """Sizes of chunks in codes (25 per second)."""

    first_size: int = 12  # small, for a low latency
    growth: float = 2.0  # factor from chunk to chunk: larger chunks cost less and are more accurate
    max_size: int = 100
    lookahead: int = 8  # codes known but not yet synthesised: the vocoder's 14 frames and a little more
    context: int = 250  # codes already synthesised that the flow still reads


class StreamingVocoder:
    """A growing mel, whose end is estimated again with each chunk, to a growing waveform."""

    def __init__(self, vocoder: HiFT, seed: int) -> None:
        self._vocoder, self._seed = vocoder, seed
        self._samples_per_frame = vocoder.config.samples_per_frame
        self._frames = 0  # synthesised
        self._phase: torch.Tensor | None = None  # (1,) of the fundamental after these frames
        self._source = torch.zeros(1, 1, 0, device=vocoder.spectrum.analysis.device)  # excitation of the last frames
        self._held_back = torch.zeros(0)  # their last samples, for the next cross-fade

    @torch.inference_mode()
    def chunk(self, mel: torch.Tensor, start_frame: int, end_frame: int, last: bool = False) -> torch.Tensor:
        """Log-mel (1, n_mels, F) of the frames from `start_frame` to the samples (S,) up to frame `end_frame`.

        All but the last chunk hold back the 20 ms of the next cross-fade.
        """
        window_start = max(start_frame, self._frames - CONTEXT_FRAMES)
        window, known_frames = mel[..., window_start - start_frame :], self._frames - window_start

        # The excitation of known frames is kept, so that pitch and phase continue.
        f0 = self._vocoder.f0(window)[:, known_frames:]
        past = self._source[..., self._source.shape[-1] - known_frames * self._samples_per_frame :]
        source = torch.cat([past, self._excite(f0)], -1)
        waveform = self._vocoder.decode(window, source)[0]

        # The start is cross-faded with what the chunk before held back.
        fade = len(self._held_back)
        end = (end_frame - window_start) * self._samples_per_frame
        samples = waveform[known_frames * self._samples_per_frame - fade : end]
        ramp = torch.linspace(0, 1, fade + 2, device=samples.device)[1:-1]
        faded = torch.lerp(self._held_back.to(samples), samples[:fade], ramp)
        samples = torch.cat([faded, samples[fade:]])

        self._phase = self._vocoder.m_source.final_phase(f0[:, : end_frame - self._frames], self._phase)
        self._source = source[..., : (end_frame - window_start) * self._samples_per_frame]
        self._frames = end_frame
        hold = 0 if last else min(FADE_FRAMES * self._samples_per_frame, len(samples))
        self._held_back = samples[len(samples) - hold :]
        return samples[: len(samples) - hold]

    def _excite(self, f0: torch.Tensor) -> torch.Tensor:
        """Excitation of pitch (1, F) from the first frame not yet synthesised."""
        begin, end = self._frames * self._samples_per_frame, (self._frames + f0.shape[1]) * self._samples_per_frame
        noise = ExcitationNoise.draw(self._vocoder.config.harmonics + 1, end,
                                     torch.Generator().manual_seed(self._seed))
        return self._vocoder.m_source(f0, ExcitationNoise(noise.offsets, noise.samples[begin:]), self._phase)


class StreamingSynthesizer:
    """Codes to waveform: `push` them as they come, then `finish` once."""

    def __init__(self, flow: Flow, vocoder: HiFT, prompt: FlowPrompt, *, steps: int = FLOW_STEPS,
                 guidance: float = FLOW_GUIDANCE, seed: int = 0, schedule: ChunkSchedule | None = None) -> None:
        self._flow, self._prompt, self._schedule = flow, prompt, schedule or ChunkSchedule()
        self._steps, self._guidance, self._seed = steps, guidance, seed
        self._vocoder = StreamingVocoder(vocoder, seed)
        self._codes = prompt.codes[:, :0]
        self._codes_done = 0
        self._chunk_size = float(self._schedule.first_size)

    def push(self, codes: torch.Tensor) -> torch.Tensor:
        """Take more codes (n,); return the samples (S,) that are final now, often none."""
        self._codes = torch.cat([self._codes, codes[None].to(self._codes)], 1)
        end_code = self._codes.shape[1] - self._schedule.lookahead
        if end_code - self._codes_done < self._chunk_size:
            return torch.zeros(0)
        self._chunk_size = min(self._chunk_size * self._schedule.growth, self._schedule.max_size)
        return self._synthesize(end_code)

    def finish(self, drop: int = 0) -> torch.Tensor:
        """The remaining samples, without those of the last `drop` codes."""
        end_code = max(self._codes_done, self._codes.shape[1] - drop)
        return self._synthesize(end_code, last=True) if self._codes.shape[1] else torch.zeros(0)

    def _synthesize(self, end_code: int, last: bool = False) -> torch.Tensor:
        """Samples up to code `end_code`."""
        start_code = max(0, self._codes_done - self._schedule.context)
        rate = MEL_FRAMES_PER_CODE
        noise = start_noise(rate * (self._prompt.codes.shape[1] + self._codes.shape[1]),
                            self._flow.config.estimator.n_mels, torch.Generator().manual_seed(self._seed))
        prompt_frames = rate * self._prompt.codes.shape[1]
        noise = torch.cat([noise[..., :prompt_frames], noise[..., prompt_frames + rate * start_code :]], -1)
        mel = self._flow.mel(self._codes[:, start_code:], self._prompt, steps=self._steps, guidance=self._guidance,
                             noise=noise)
        self._codes_done = end_code
        return self._vocoder.chunk(mel, rate * start_code, rate * end_code, last).cpu()
