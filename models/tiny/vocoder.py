"""The built-in vocoder: log-mel frames to sound, by pulses and noise through an envelope that a network corrects.

A source-filter vocoder in the manner of Liu et al. 2020 (neural homomorphic vocoder, Interspeech). The envelope of a
frame is a cepstrum fitted to its mel; ConvNeXt blocks (Liu et al. 2022) at the frame rate add to it, and give the
fundamental frequency and the share of noise in each band. Where the two sources had filters of their own, training
ended with noise alone: an envelope for both leaves only their shares to choose.

The result keeps its phases and takes the magnitudes of the mel, which an envelope and a predicted frequency give less
exactly. docs/experiments.md compares both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from data.acoustics.audio import MelSettings, magnitude, mel_filterbank
from models.convolutions import full_precision
from models.tiny.codec import ConvNeXtBlock

_RIDGE = 0.015  # The fit's penalty of the cepstrum, times the order.
CPU = torch.device("cpu")
_LEAST = 1e-5  # share of a source, so that its square root has a gradient


@dataclass(frozen=True)
class MelVocoderConfig:
    """Sizes of the vocoder; the frames are those of `MelSettings`."""

    width: int = 160
    blocks: int = 4
    order: int = 64  # cosines of the envelope's logarithm: 4 ms, so that it has details of 250 Hz
    noise_bands: int = 16
    f0_min: float = 50.0  # Hz
    f0_max: float = 500.0  # Hz
    mel_mean: float = -5.0  # The corpus's mean of log-mel.
    mel_std: float = 2.8


class MelVocoder(nn.Module):
    """Log-mel to waveform; see `decode`."""

    cosines: torch.Tensor
    sines: torch.Tensor
    to_cepstrum: torch.Tensor
    gains: torch.Tensor

    def __init__(self, config: MelVocoderConfig) -> None:
        super().__init__()
        self.config, self.settings = config, MelSettings()
        settings = self.settings
        self.mel_in = nn.Linear(settings.n_mels, config.width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(config.width) for _ in range(config.blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.sizes = (1, config.order + 1, config.noise_bands)
        self.out = nn.Linear(config.width, sum(self.sizes))
        nn.init.zeros_(self.out.weight)  # before training: the fitted envelope and little noise
        nn.init.zeros_(self.out.bias)
        nn.init.constant_(self.out.bias[-config.noise_bands:], -1.0)
        orders, bins = torch.arange(config.order + 1), torch.arange(settings.n_fft // 2 + 1)
        angles = math.pi * orders[:, None] * bins / (settings.n_fft // 2)
        self.register_buffer("cosines", torch.cos(angles), persistent=False)
        self.register_buffer("sines", torch.sin(angles[1:]), persistent=False)
        filters = mel_filterbank(settings)
        centres = math.pi * (filters * bins[:, None]).sum(0) / filters.sum(0) / (settings.n_fft // 2)
        basis = torch.cos(orders * centres[:, None])
        fitted = torch.linalg.solve(basis.T @ basis + _RIDGE * torch.diag(orders.float()), basis.T)
        self.register_buffer("to_cepstrum", fitted, persistent=False)
        power = torch.hann_window(settings.win_length).square().sum()  # White noise has it in each bin.
        self.register_buffer("gains", torch.log(filters.sum(0) * power.sqrt()), persistent=False)

    def analyse(self, mel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-mel (B, n_mels, F) to F0 in Hz (B, F), corrections of the cepstrum and noise in bands, as logits."""
        config = self.config
        hidden = self.mel_in((mel.transpose(1, 2) - config.mel_mean) / config.mel_std)
        mask = hidden.new_ones(*hidden.shape[:2], 1)
        for block in self.blocks:
            hidden = block(hidden, mask)
        pitch, correction, shares = self.out(self.norm(hidden)).split(self.sizes, -1)
        return config.f0_min * (config.f0_max / config.f0_min) ** torch.sigmoid(pitch[..., 0]), correction, shares

    def forward(self, mel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-mel (B, n_mels, F) to F0 in Hz (B, F), and complex filters (B, F, n_fft / 2 + 1) of pulses and noise."""
        f0, correction, shares = self.analyse(mel)
        cepstrum = correction + (mel.transpose(1, 2) - self.gains) @ self.to_cepstrum.T
        envelope = torch.exp(cepstrum @ self.cosines)
        noise = F.interpolate(torch.sigmoid(shares), envelope.shape[-1], mode="linear", align_corners=True)
        pulses = torch.sqrt(1 - noise + _LEAST) * envelope
        # the sines make the phase that of the filter with the smallest delay
        return (f0, torch.polar(pulses, -cepstrum[..., 1:] @ self.sines),
                (torch.sqrt(noise + _LEAST) * envelope).to(torch.complex64))

    def excitation(self, f0: torch.Tensor, seed: int = 0, device: torch.device = CPU
                   ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pulses and noise (B, (F + 1) * hop_length) for F0 in Hz (B, F); sample 0 is a hop before the first frame.

        Pulses are the sum of all cosines below half the sample rate, in closed form, at power one. Both are made on
        the CPU, so that they are the same on each device; training passes its own `device`.
        """
        hop, (batch, frames) = self.settings.hop_length, f0.shape
        rate = self.settings.sample_rate
        around = F.pad(f0.detach().double().to(device)[:, None], (1, 1), mode="replicate")
        length = (frames + 1) * hop
        hertz = F.interpolate(around, length + hop, mode="linear", align_corners=False)[
            ..., hop // 2:hop // 2 + length][:, 0]
        cycle = torch.cumsum(hertz / rate, 1) % 1.0
        highest = rate / 2 / hertz
        count = torch.floor(highest)
        half = torch.sin(math.pi * cycle)
        near = half.abs() < 1e-6
        total = torch.where(near, count, torch.sin((2 * count + 1) * math.pi * cycle)
                            / (2 * torch.where(near, 1.0, half)) - 0.5)
        total += (highest - count) * torch.cos(2 * math.pi * (count + 1) * cycle)
        noise = torch.randn(batch, length, generator=torch.Generator(device).manual_seed(seed), device=device)
        return (total * torch.sqrt(2 / highest)).float(), noise

    def filtered(self, excitation: torch.Tensor, spectrum: torch.Tensor) -> torch.Tensor:
        """Excitation (B, (F + 1) * hop_length) through the filter of each frame: (B, (F - 1) * hop_length).

        Segments of two hops under a Hann window, which add up to one, are filtered and added where they lay.
        """
        hop, n_fft = self.settings.hop_length, self.settings.n_fft
        window = torch.hann_window(2 * hop, device=excitation.device)
        segments = F.pad(excitation.unfold(1, 2 * hop, hop) * window, (0, n_fft - 2 * hop))
        answers = torch.fft.irfft(torch.fft.rfft(segments) * spectrum, n_fft)
        frames = answers.shape[1]
        length = (frames - 1) * hop + n_fft
        added = F.fold(answers.transpose(1, 2), (1, length), (1, n_fft), stride=(1, hop))[:, 0, 0]
        return added[:, hop:frames * hop]

    def synthesize(self, mel: torch.Tensor, f0: torch.Tensor | None = None, seed: int = 0,
                   device: torch.device = CPU) -> tuple[torch.Tensor, torch.Tensor]:
        """Waveform (B, (F - 1) * hop_length) and predicted F0 (B, F); pulses follow `f0` where it is given.

        `device` is where the excitation is made, see `excitation`.
        """
        predicted, harmonic, noise = self(mel)
        excitation = self.excitation(predicted if f0 is None else f0, seed, device)
        pulses, hiss = (part.to(mel.device) for part in excitation)
        return self.filtered(pulses, harmonic) + self.filtered(hiss, noise), predicted

    @torch.inference_mode()
    def decode(self, mel: torch.Tensor, rounds: int = 1) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to waveform (B, (F - 1) * hop_length), deterministic.

        A round keeps the phases of the waveform and puts the magnitudes of the mel in place of its own.
        """
        settings, frames = self.settings, mel.shape[-1]
        short = max(0, settings.n_fft // (2 * settings.hop_length) + 2 - frames)  # The reflection needs them.
        padded = F.pad(mel.float(), (0, short), value=math.log(settings.floor))
        with full_precision():
            waveform = self.synthesize(padded)[0]
        target, window = magnitude(padded, settings), torch.hann_window(settings.win_length, device=mel.device)
        shape = (settings.n_fft, settings.hop_length, settings.win_length, window)
        for _ in range(rounds):
            angles = torch.stft(waveform, *shape, return_complex=True).angle()
            waveform = torch.istft(torch.polar(target, angles), *shape, length=waveform.shape[-1])
        return waveform[:, :(frames - 1) * settings.hop_length]
