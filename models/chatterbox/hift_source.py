"""What excites the vocoder: the pitch of a mel, and harmonics of that pitch with noise.

Neural source-filter excitation (Wang et al. 2019, arXiv:1904.12088) with the constants and keys of
`mel2wav.f0_predictor.*` and `mel2wav.m_source.*` in resemble-ai/chatterbox (MIT). Always float32: an
error of pitch adds up over time. Shapes: B rows, F frames, S = samples_per_frame * F samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

VOICED_HZ = 10.0  # below it a frame counts as unvoiced
SINE_LEVEL = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_LEVEL / 3


class F0Predictor(nn.Module):
    """Log-mel (B, n_mels, F) to pitch in Hz (B, F), by five convolutions that see five frames either way."""

    def __init__(self, n_mels: int, channels: int) -> None:
        super().__init__()
        widths = [n_mels, *[channels] * 5]
        # published as a sequence in which an activation stands after each convolution
        self.condnet = nn.ModuleDict({
            str(2 * layer): weight_norm(nn.Conv1d(widths[layer], channels, 3, padding=1)) for layer in range(5)
        })
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        for conv in self.condnet.values():
            mel = F.elu(conv(mel))
        return self.classifier(mel.transpose(1, 2)).squeeze(-1).abs()


@dataclass(frozen=True)
class Chance:
    """What is random in an excitation, the same for every row."""

    offsets: torch.Tensor  # (harmonics + 1,) where each sine starts, in turns
    noise: torch.Tensor  # (S,) normal

    @staticmethod
    def draw(sines: int, samples: int, generator: torch.Generator | None) -> Chance:
        """The pitch itself starts at 0. On the CPU, more samples keep the first ones as they were."""
        device = None if generator is None else generator.device
        offsets = torch.rand(sines, generator=generator, device=device) - 0.5
        offsets[0] = 0
        return Chance(offsets, torch.randn(samples, generator=generator, device=device))


class HarmonicSource(nn.Module):
    """Pitch (B, F) to an excitation (B, 1, S): sines at its multiples where voiced, and noise, mixed to one signal."""

    def __init__(self, harmonics: int, sample_rate: int, samples_per_frame: int) -> None:
        super().__init__()
        self.sample_rate, self.samples_per_frame = sample_rate, samples_per_frame
        self.l_linear = nn.Linear(harmonics + 1, 1)

    def forward(self, f0: torch.Tensor, chance: Chance, turns: torch.Tensor | None = None) -> torch.Tensor:
        """`turns` (B,) is how far the pitch has turned before the first sample; see `turned`."""
        sines = self.l_linear.in_features
        position = torch.arange(1, self.samples_per_frame + 1, device=f0.device) / self.sample_rate
        start = self._starts(f0, turns)[:, :-1]
        angle = (start[..., None] + f0[..., None] * position).flatten(1)  # (B, S), in turns
        multiples = torch.arange(1, sines + 1, device=f0.device, dtype=f0.dtype)
        offsets = chance.offsets.to(f0)
        waves = torch.sin(2 * math.pi * (angle[..., None] * multiples + offsets))  # (B, S, sines)
        # a weighted sum of independent normal noises is one normal noise, as strong as the weights are long
        weight, bias = self.l_linear.weight, self.l_linear.bias
        voiced = (f0 > VOICED_HZ).to(f0).repeat_interleave(self.samples_per_frame, 1)
        level = UNVOICED_NOISE + (VOICED_NOISE - UNVOICED_NOISE) * voiced
        mixed = SINE_LEVEL * voiced * (waves @ weight[0]) + level * weight.norm() * chance.noise.to(f0) + bias
        return torch.tanh(mixed)[:, None]

    def turned(self, f0: torch.Tensor, turns: torch.Tensor | None = None) -> torch.Tensor:
        """How far the pitch has turned after the frames of f0 (B, F), in [0, 1): the `turns` of what follows."""
        return self._starts(f0, turns)[:, -1]

    def _starts(self, f0: torch.Tensor, turns: torch.Tensor | None) -> torch.Tensor:
        """Turns (B, F + 1) at the start of each frame and at the end, in [0, 1)."""
        steps = (f0 * (self.samples_per_frame / self.sample_rate)) % 1
        first = f0.new_zeros(f0.shape[0], 1) if turns is None else turns[:, None]
        return torch.cat([first, steps], 1).cumsum(1) % 1
