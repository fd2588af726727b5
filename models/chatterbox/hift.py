"""Mel to waveform: HiFTNet (Li et al. 2023, arXiv:2309.09493).

A harmonic excitation is made from the mel's pitch; convolutions upsample the mel 8 x 5 x 3 times, the
spectrum of the excitation joining at each rate, and predict magnitude and phase of a short-time
spectrum (16 samples, hop 4), whose inverse is the waveform: 480 samples a frame at 24 kHz. Layout and
state-dict keys of `mel2wav.*` in resemble-ai/chatterbox (MIT). Float32 throughout.

Inside, signals are (B, C, 1, T) with channels last in memory, on which CPU convolutions are nearly
twice as fast. Shapes: B rows, C channels, T positions, F frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from models.chatterbox.hift_source import Chance, F0Predictor, HarmonicSource
from models.chatterbox.short_time import ShortTime


@dataclass(frozen=True)
class HiFTConfig:
    """Sizes of the vocoder; the defaults are the published ones."""

    n_mels: int = 80
    sample_rate: int = 24_000
    channels: int = 512  # halved at each rate
    rates: tuple[int, ...] = (8, 5, 3)
    rate_kernels: tuple[int, ...] = (16, 11, 7)
    kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    dilations: tuple[int, ...] = (1, 3, 5)
    harmonics: int = 8
    f0_channels: int = 512
    n_fft: int = 16
    hop_length: int = 4

    @property
    def samples_per_frame(self) -> int:
        samples = self.hop_length
        for rate in self.rates:
            samples *= rate
        return samples


def full_precision() -> AbstractContextManager[None]:
    """Convolutions on a GPU in float32, which are else rounded to ten bits."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


class Conv(nn.Conv1d):
    """One-dimensional convolution over (B, C, 1, T)."""

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        stride, padding, dilation = self.stride[0], int(self.padding[0]), self.dilation[0]
        return F.conv2d(signal, self.weight[:, :, None], self.bias, (1, stride), (0, padding), (1, dilation))


class UpConv(nn.ConvTranspose1d):
    """One-dimensional transposed convolution over (B, C, 1, T)."""

    def forward(self, signal: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        stride, padding = self.stride[0], int(self.padding[0])
        return F.conv_transpose2d(signal, self.weight[:, :, None], self.bias, (1, stride), (0, padding))


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned a for each channel (Ziyin et al. 2020, arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        # sin(ax)^2 / a = (1 - cos(2ax)) / 2a, which costs one pass over the signal less
        alpha = self.alpha[:, None, None]
        half = 0.5 / (alpha + 1e-9)
        return torch.addcmul(signal + half, (signal * (2 * alpha)).cos_(), half, value=-1)


class ResidualBlock(nn.Module):
    """Pairs of convolutions, the first of each dilated, each pair added to the signal."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList([
            weight_norm(Conv(channels, channels, kernel, dilation=step, padding=step * (kernel - 1) // 2))
            for step in dilations
        ])
        self.convs2 = nn.ModuleList([
            weight_norm(Conv(channels, channels, kernel, padding=(kernel - 1) // 2)) for _ in dilations
        ])
        self.activations1 = nn.ModuleList([Snake(channels) for _ in dilations])
        self.activations2 = nn.ModuleList([Snake(channels) for _ in dilations])

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        for first, conv, second, smooth in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            signal = signal + smooth(second(conv(first(signal))))
        return signal


def source_conv(bins: int, channels: int, step: int) -> Conv:
    """Brings the excitation's spectrum (bins) to a rate `step` times lower."""
    if step == 1:
        return Conv(bins, channels, 1)
    return Conv(bins, channels, 2 * step, stride=step, padding=step // 2)


class HiFT(nn.Module):
    """`waveform` is the whole way; `f0`, `source` and `decode` are its parts."""

    def __init__(self, config: HiFTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or HiFTConfig()
        widths = [config.channels >> level for level in range(len(config.rates) + 1)]
        bins = config.n_fft + 2
        self.m_source = HarmonicSource(config.harmonics, config.sample_rate, config.samples_per_frame)
        self.f0_predictor = F0Predictor(config.n_mels, config.f0_channels)
        self.conv_pre = weight_norm(Conv(config.n_mels, widths[0], 7, padding=3))
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        step = config.samples_per_frame // config.hop_length
        for level, (rate, kernel) in enumerate(zip(config.rates, config.rate_kernels, strict=True)):
            width = widths[level + 1]
            step //= rate
            self.ups.append(weight_norm(UpConv(widths[level], width, kernel, rate, padding=(kernel - rate) // 2)))
            self.source_downs.append(source_conv(bins, width, step))
            self.source_resblocks.append(ResidualBlock(width, config.source_kernels[level], config.dilations))
            self.resblocks.extend(ResidualBlock(width, size, config.dilations) for size in config.kernels)
        self.conv_post = weight_norm(Conv(widths[-1], bins, 7, padding=3))
        self.spectrum = ShortTime(config.n_fft, config.hop_length)

    def fold_weight_norm(self) -> None:
        """Put magnitude and direction of each weight together; for inference, after loading."""
        for module in self.modules():
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight")

    @torch.inference_mode()
    def f0(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to pitch in Hz (B, F)."""
        with full_precision():
            return self.f0_predictor(mel)

    @torch.inference_mode()
    def source(self, f0: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Pitch in Hz (B, F) to an excitation (B, 1, 480 F); phases and noise are random, the same for each row."""
        chance = Chance.draw(self.config.harmonics + 1, f0.shape[1] * self.config.samples_per_frame, generator)
        return self.m_source(f0, chance)

    @torch.inference_mode()
    def decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) and excitation (B, 1, 480 F) to a waveform (B, 480 F)."""
        with full_precision():
            return self._decode(mel, source)

    def _decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        excitation = self.spectrum.forward(source[:, 0])
        signal = self.conv_pre(mel[:, :, None].contiguous(memory_format=torch.channels_last))
        kernels = len(self.config.kernels)
        for level, up in enumerate(self.ups):
            signal = up(F.leaky_relu(signal, 0.1))  # (B, C, 1, T) -> (B, C / 2, 1, rate * T)
            if level == len(self.ups) - 1:  # one position more, for the spectrum's last window
                signal = torch.cat([signal[..., 1:2], signal], -1)
            signal = signal + self.source_resblocks[level](self.source_downs[level](excitation))
            blocks = self.resblocks[level * kernels : (level + 1) * kernels]
            signal = sum(block(signal) for block in blocks) / kernels
        magnitude, phase = self.conv_post(F.leaky_relu(signal)).chunk(2, 1)
        waveform = self.spectrum.inverse(magnitude.exp().clamp(max=100), torch.sin(phase))
        return waveform.clamp(-0.99, 0.99)

    def waveform(self, mel: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to a waveform (B, 480 F) in [-1, 1]."""
        return self.decode(mel, self.source(self.f0(mel), generator))

    @torch.inference_mode()
    def waveforms(self, mel: torch.Tensor, lengths: Sequence[int],
                  generator: torch.Generator | None = None) -> list[torch.Tensor]:
        """Rows of log-mel (B, n_mels, F), of which `lengths` frames count, to waveforms (480 * length,).

        One after another: convolutions look both ways, so padding would be heard, and a row keeps a processor busy.
        """
        chance = Chance.draw(self.config.harmonics + 1, max(lengths) * self.config.samples_per_frame, generator)
        waveforms = []
        for row, length in zip(mel.split(1), lengths, strict=True):
            noise = chance.noise[: length * self.config.samples_per_frame]
            frames = row[..., :length]
            source = self.m_source(self.f0(frames), Chance(chance.offsets, noise))
            waveforms.append(self.decode(frames, source)[0])
        return waveforms
