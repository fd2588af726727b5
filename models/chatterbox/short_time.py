"""A short-time Fourier transform and its inverse as two matrix products.

For windows of a few samples this is faster than torch.stft and torch.istft, which also make a GPU
wait to check the window. Hann window, centred with reflection, as torch's default.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class ShortTime(nn.Module):
    """Waveform (B, S) to and from a spectrum of n_fft + 2 bins: all real parts, then all imaginary ones."""

    analysis: torch.Tensor  # (n_fft, n_fft + 2)
    synthesis: torch.Tensor  # (n_fft + 2, n_fft)
    power: torch.Tensor  # (n_fft,)

    def __init__(self, n_fft: int, hop_length: int) -> None:
        super().__init__()
        self.n_fft, self.hop_length = n_fft, hop_length
        bins = n_fft // 2 + 1
        window = torch.hann_window(n_fft, dtype=torch.float64)
        angles = 2 * math.pi / n_fft * torch.outer(torch.arange(n_fft), torch.arange(bins)).double()
        basis = torch.cat([angles.cos(), -angles.sin()], 1)  # (n_fft, 2 * bins)
        twice = torch.full((bins,), 2.0, dtype=torch.float64)
        twice[0] = twice[-1] = 1  # all bins but the outer two stand for a pair
        inverse = basis.t() * twice.repeat(2)[:, None] / n_fft
        self.register_buffer("analysis", (window[:, None] * basis).float(), persistent=False)
        self.register_buffer("synthesis", (inverse * window).float(), persistent=False)
        self.register_buffer("power", window.square().float(), persistent=False)

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, n_fft + 2, 1, S / hop_length + 1), channels last in memory."""
        padded = F.pad(waveform[:, None], (self.n_fft // 2, self.n_fft // 2), mode="reflect")[:, 0]
        frames = padded.unfold(-1, self.n_fft, self.hop_length) @ self.analysis  # (B, T, n_fft + 2)
        return frames[:, None].permute(0, 3, 1, 2)

    def inverse(self, magnitude: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """Magnitude and phase (B, n_fft / 2 + 1, 1, T) to (B, (T - 1) * hop_length)."""
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1)
        frames = spectrum[:, :, 0].transpose(1, 2) @ self.synthesis  # (B, T, n_fft)
        weight = self._overlap(self.power.expand(1, frames.shape[1], -1))
        return self._overlap(frames) / weight

    def _overlap(self, frames: torch.Tensor) -> torch.Tensor:
        """Add up frames (B, T, n_fft) at steps of hop_length and cut half a window off either end."""
        hops = frames.unflatten(-1, (-1, self.hop_length)).unbind(2)  # each (B, T, hop_length)
        last = len(hops) - 1
        moved = [F.pad(hop, (0, 0, shift, last - shift)) for shift, hop in enumerate(hops)]
        return torch.stack(moved).sum(0).flatten(1)[:, self.n_fft // 2 : -(self.n_fft // 2)]
