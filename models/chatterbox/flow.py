"""Speech codes to mel, by conditional flow matching (Lipman et al. 2023, arXiv:2210.02747).

The codes of a prompt and of the text are encoded together; from noise, a few Euler steps on a cosine schedule follow
the estimated velocity to the mel of both, conditioned on the prompt's mel and the speaker. Then the prompt's frames
are cut off. Classifier-free guidance (Ho and Salimans 2022) adds an unconditional row per text. Layout and state-dict
keys of `flow.*` in resemble-ai/chatterbox (MIT).

Shapes: B rows, U codes, P codes of the prompt, F = 2 * (P + U) frames at 50 a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from models.chatterbox.flow_encoder import FlowEncoder, FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimator, FlowEstimatorConfig
from models.cuda_graph_decode import repeated
from models.matmul_backends import Linear


@dataclass(frozen=True)
class FlowConfig:
    """Sizes of the flow; the defaults are the published ones."""

    codes: int = 6561
    speaker: int = 192
    encoder: FlowEncoderConfig = field(default_factory=FlowEncoderConfig)
    estimator: FlowEstimatorConfig = field(default_factory=FlowEstimatorConfig)


@dataclass(frozen=True)
class FlowPrompt:
    """The reference clip; a single row serves a batch of any size."""

    codes: torch.Tensor  # (B or 1, P) int64
    mel: torch.Tensor  # (B or 1, 2P, n_mels) log-mel of the same clip
    speaker: torch.Tensor  # (B or 1, 192), normalised before use

    def last(self, codes: int) -> FlowPrompt:
        """The last `codes` codes of the prompt: shorter is faster and a little less similar to the speaker."""
        start = max(0, self.codes.shape[1] - codes)
        frames = self.mel.shape[1] // max(1, self.codes.shape[1])
        return FlowPrompt(self.codes[:, start:], self.mel[:, frames * start :], self.speaker)


def start_noise(frames: int, n_mels: int, generator: torch.Generator | None) -> torch.Tensor:
    """Normal noise (1, n_mels, frames), drawn frame by frame: on a CPU the first frames do not depend on `frames`."""
    device = None if generator is None else generator.device
    return torch.randn(frames, n_mels, generator=generator, device=device).t()[None]


def schedule(steps: int, device: torch.device) -> torch.Tensor:
    """Times (steps + 1,) from 0 to 1 on a cosine schedule, dense at the noisy end."""
    return 1 - torch.cos(torch.linspace(0, 1, steps + 1, device=device) * (0.5 * math.pi))


def keep_mask(lengths: torch.Tensor | None, width: int, device: torch.device) -> torch.Tensor | None:
    """(B, width), True within `lengths`; None without lengths."""
    if lengths is None:
        return None
    return torch.arange(width, device=device)[None] < lengths.to(device)[:, None]


class FlowDecoder(nn.Module):
    """The estimator under its published name."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.estimator = FlowEstimator(config)


class Flow(nn.Module):
    """`mel` is the complete computation; `encode` and `estimate` are its two halves."""

    def __init__(self, config: FlowConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or FlowConfig()
        self.input_embedding = nn.Embedding(config.codes, config.encoder.width)
        self.spk_embed_affine_layer = nn.Linear(config.speaker, config.estimator.n_mels)
        self.encoder = FlowEncoder(config.encoder)
        self.encoder_proj = Linear(config.encoder.width, config.estimator.n_mels)
        self.decoder = FlowDecoder(config.estimator)

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the estimator's matrix products to `dtype`; inputs, results and everything else stay float32."""
        self.decoder.estimator.cast_(dtype)

    def encode(self, codes: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Codes (B, L) with `lengths` (B,) to encoder states (B, 2L, 512)."""
        return self.encoder(self.input_embedding(codes), keep_mask(lengths, codes.shape[1], codes.device))

    def speaker(self, embedding: torch.Tensor) -> torch.Tensor:
        """Speaker embedding (B, 192) to the estimator's input (B, n_mels)."""
        return self.spk_embed_affine_layer(F.normalize(embedding, dim=1))

    def estimate(self, x: torch.Tensor, mask: torch.Tensor | None, mu: torch.Tensor, t: torch.Tensor,
                 spk: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
        """Velocity of x (B, n_mels, F) at times t (B,), mu and cond of the same shape; mask (B, F) True = keep."""
        inputs = torch.cat([x, mu, spk[..., None].expand_as(x), cond], 1).transpose(1, 2)
        estimator = self.decoder.estimator
        velocity = estimator(inputs, estimator.time_states(t), mask).transpose(1, 2)
        return velocity if mask is None else velocity * mask[:, None]

    @torch.inference_mode()
    def mel(self, codes: torch.Tensor, lengths: torch.Tensor | None, prompt: FlowPrompt, *, steps: int = 10,
            guidance: float = 0.7, noise: torch.Tensor | None = None,
            generator: torch.Generator | None = None) -> torch.Tensor:
        """Codes (B, U) with `lengths` (B,), None for all, to log-mel (B, n_mels, 2U), zero after the end of a row.

        The flow starts from `noise` (B, n_mels, F); without it every row starts from the same noise of `generator`,
        so that the mel of a row does not depend on the other rows.
        """
        batch, prompt_codes = codes.shape[0], prompt.codes.shape[1]
        all_codes = torch.cat([prompt.codes.expand(batch, -1), codes], 1)
        all_lengths = None if lengths is None else lengths + prompt_codes
        mu = self.encoder_proj(self.encode(all_codes, all_lengths))  # (B, F, n_mels)
        if noise is None:
            noise = start_noise(mu.shape[1], mu.shape[2], generator)
        start = noise.to(mu).transpose(1, 2).expand_as(mu)
        frame_lengths = None if all_lengths is None else all_lengths * self.config.encoder.upsampling
        keep = keep_mask(frame_lengths, mu.shape[1], mu.device)
        mel = self._solve(start, mu, prompt, keep, steps, guidance)
        mel = mel if keep is None else mel * keep[..., None]
        return mel[:, prompt.mel.shape[1] :].transpose(1, 2)

    def _solve(self, frames: torch.Tensor, mu: torch.Tensor, prompt: FlowPrompt, keep: torch.Tensor | None,
               steps: int, guidance: float) -> torch.Tensor:
        """Euler steps from noise (B, F, n_mels) to mel (B, F, n_mels)."""
        inputs = self._inputs(mu, prompt, guided=guidance != 0)
        batch, n_mels = mu.shape[0], mu.shape[2]
        rows = inputs.shape[0] // batch
        mask = None if keep is None else keep.repeat(rows, 1)
        times = schedule(steps, mu.device)
        states = self.decoder.estimator.time_states(times[:-1])
        state = states[:1].clone()
        estimate = repeated(lambda: self.decoder.estimator(inputs, state, mask), mu.device, steps)
        for step, size in enumerate((times[1:] - times[:-1]).unbind()):
            inputs.unflatten(0, (rows, batch))[..., :n_mels] = frames  # both rows see the same frames
            state.copy_(states[step : step + 1])
            velocity = estimate()
            if rows == 2:
                conditional, unconditional = velocity.chunk(2)
                velocity = (1 + guidance) * conditional - guidance * unconditional
            frames = frames + size * velocity
        return frames

    def _inputs(self, mu: torch.Tensor, prompt: FlowPrompt, guided: bool) -> torch.Tensor:
        """The estimator's inputs (B or 2B, F, 4 * n_mels): noisy frames (zero as yet), mu, speaker, prompt mel.

        With guidance the second half of the rows is unconditional: all zero.
        """
        batch, length, n_mels = mu.shape
        inputs = mu.new_zeros(2 * batch if guided else batch, length, 4 * n_mels)
        _, encoder_mel, speaker, prompt_mel = inputs[:batch].chunk(4, -1)
        encoder_mel.copy_(mu)
        speaker.copy_(self.speaker(prompt.speaker)[:, None].expand(batch, length, -1))
        prompt_mel[:, : prompt.mel.shape[1]] = prompt.mel
        return inputs
