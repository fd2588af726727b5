"""Mel to waveform: HiFTNet (Li et al. 2023, arXiv:2309.09493).

The pitch predicted from the mel gives a harmonic excitation (neural source-filter; Wang et al. 2019,
arXiv:1904.12088). Convolutions upsample the mel 8 x 5 x 3 times, adding the spectrum of the excitation at each rate,
and predict magnitude and phase of a short-time spectrum (16 samples, hop 4), whose inverse is the waveform: 480
samples per frame at 24 kHz. Layout, constants and state-dict keys of `mel2wav.*` in resemble-ai/chatterbox (MIT).
Always float32: errors of the pitch accumulate over time.

Inside, signals are (B, C, 1, T) with channels last in memory, on which CPU convolutions are nearly twice as fast.
Shapes: B rows, C channels, T positions, F frames, S = samples_per_frame * F samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from models import decoder
from models.convolutions import Conv, UpConv, full_precision

VOICED_HZ = 10.0  # frames below it are unvoiced
SINE_LEVEL = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_LEVEL / 3


@dataclass(frozen=True)
class HiFTConfig:
    """Sizes of the vocoder; the defaults are the published ones."""

    n_mels: int = 80
    sample_rate: int = 24_000
    channels: int = 512  # halved at each upsampling
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    resblock_dilation_sizes: tuple[int, ...] = (1, 3, 5)  # of both kinds of blocks
    harmonics: int = 8
    f0_channels: int = 512
    n_fft: int = 16
    hop_length: int = 4

    @property
    def samples_per_frame(self) -> int:
        samples = self.hop_length
        for rate in self.upsample_rates:
            samples *= rate
        return samples


class STFT(nn.Module):
    """Short-time Fourier transform and its inverse as two matrix products.

    The spectrum of a waveform (B, S) has n_fft + 2 channels: all real parts, then all imaginary ones. For windows of
    a few samples this is faster than torch.stft and torch.istft, which also synchronise with a GPU to check the
    window. Hann window, centred with reflection, as torch's default.
    """

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
        multiplicity = torch.full((bins,), 2.0, dtype=torch.float64)
        multiplicity[0] = multiplicity[-1] = 1  # all bins but the outer two represent a conjugate pair
        inverse = basis.t() * multiplicity.repeat(2)[:, None] / n_fft
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
        """Overlap-add of frames (B, T, n_fft) at steps of hop_length, without half a window at either end."""
        hops = frames.unflatten(-1, (-1, self.hop_length)).unbind(2)  # each (B, T, hop_length)
        last = len(hops) - 1
        moved = [F.pad(hop, (0, 0, shift, last - shift)) for shift, hop in enumerate(hops)]
        return torch.stack(moved).sum(0).flatten(1)[:, self.n_fft // 2 : -(self.n_fft // 2)]


class F0Predictor(nn.Module):
    """Log-mel (B, n_mels, F) to pitch in Hz (B, F), by five convolutions that read five frames either way."""

    def __init__(self, n_mels: int, channels: int) -> None:
        super().__init__()
        widths = [n_mels, *[channels] * 5]
        # published as a sequence with an activation after each convolution
        self.condnet = nn.ModuleDict({
            str(2 * layer): weight_norm(nn.Conv1d(widths[layer], channels, 3, padding=1)) for layer in range(5)
        })
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        for conv in self.condnet.values():
            mel = F.elu(conv(mel))
        return self.classifier(mel.transpose(1, 2)).squeeze(-1).abs()


@dataclass(frozen=True)
class ExcitationNoise:
    """The random parts of an excitation, the same for every row."""

    offsets: torch.Tensor  # (harmonics + 1,) initial phases, in cycles
    samples: torch.Tensor  # (S,) normal

    @staticmethod
    def draw(sines: int, samples: int, generator: torch.Generator | None) -> ExcitationNoise:
        """The fundamental starts at 0. On a CPU the first samples do not depend on `samples`."""
        device = None if generator is None else generator.device
        offsets = torch.rand(sines, generator=generator, device=device) - 0.5
        offsets[0] = 0
        return ExcitationNoise(offsets, torch.randn(samples, generator=generator, device=device))


class HarmonicSource(nn.Module):
    """Pitch (B, F) to an excitation (B, 1, S): a mix of sines at its multiples, in voiced frames, and noise."""

    def __init__(self, harmonics: int, sample_rate: int, samples_per_frame: int) -> None:
        super().__init__()
        self.sample_rate, self.samples_per_frame = sample_rate, samples_per_frame
        self.l_linear = nn.Linear(harmonics + 1, 1)

    def forward(self, f0: torch.Tensor, noise: ExcitationNoise, phase: torch.Tensor | None = None) -> torch.Tensor:
        """`phase` (B,) in cycles is that of the fundamental before the first sample; see `final_phase`."""
        sines = self.l_linear.in_features
        position = torch.arange(1, self.samples_per_frame + 1, device=f0.device) / self.sample_rate
        start = self._phases(f0, phase)[:, :-1]
        angle = (start[..., None] + f0[..., None] * position).flatten(1)  # (B, S), in cycles
        multiples = torch.arange(1, sines + 1, device=f0.device, dtype=f0.dtype)
        offsets = noise.offsets.to(f0)
        waves = torch.sin(2 * math.pi * (angle[..., None] * multiples + offsets))  # (B, S, sines)
        # a weighted sum of independent normal noises is one normal noise, scaled by the norm of the weights
        weight, bias = self.l_linear.weight, self.l_linear.bias
        voiced = (f0 > VOICED_HZ).to(f0).repeat_interleave(self.samples_per_frame, 1)
        level = UNVOICED_NOISE + (VOICED_NOISE - UNVOICED_NOISE) * voiced
        mixed = SINE_LEVEL * voiced * (waves @ weight[0]) + level * weight.norm() * noise.samples.to(f0) + bias
        return torch.tanh(mixed)[:, None]

    def final_phase(self, f0: torch.Tensor, phase: torch.Tensor | None = None) -> torch.Tensor:
        """The phase (B,) after the frames of f0 (B, F), in cycles: the `phase` of the frames that follow."""
        return self._phases(f0, phase)[:, -1]

    def _phases(self, f0: torch.Tensor, phase: torch.Tensor | None) -> torch.Tensor:
        """Phases (B, F + 1) at the start of each frame and at the end, in [0, 1) cycles."""
        steps = (f0 * (self.samples_per_frame / self.sample_rate)) % 1
        first = f0.new_zeros(f0.shape[0], 1) if phase is None else phase[:, None]
        return torch.cat([first, steps], 1).cumsum(1) % 1


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned a for each channel (Ziyin et al. 2020, arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        if signal.is_cuda and not torch.is_grad_enabled() and decoder.has_triton(signal.device):
            from models.chatterbox.kernels import snake

            return snake(signal, self.alpha)
        # sin(ax)^2 / a = (1 - cos(2ax)) / 2a, which costs one pass over the signal less
        alpha = self.alpha[:, None, None]
        half = 0.5 / (alpha + 1e-9)
        return torch.addcmul(signal + half, (signal * (2 * alpha)).cos_(), half, value=-1)


class HiFTResidualBlock(nn.Module):
    """Pairs of convolutions, the first of each dilated, each pair with a residual connection."""

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
        for first_snake, first_conv, second_snake, second_conv in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            signal = signal + second_conv(second_snake(first_conv(first_snake(signal))))
        return signal


def source_conv(bins: int, channels: int, step: int) -> Conv:
    """Downsamples the excitation's spectrum (bins) by `step`."""
    if step == 1:
        return Conv(bins, channels, 1)
    return Conv(bins, channels, 2 * step, stride=step, padding=step // 2)


class HiFT(nn.Module):
    """`waveform` is the complete computation; `f0`, `source` and `decode` are its parts."""

    def __init__(self, config: HiFTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or HiFTConfig()
        widths = [config.channels >> level for level in range(len(config.upsample_rates) + 1)]
        bins = config.n_fft + 2
        self.m_source = HarmonicSource(config.harmonics, config.sample_rate, config.samples_per_frame)
        self.f0_predictor = F0Predictor(config.n_mels, config.f0_channels)
        self.conv_pre = weight_norm(Conv(config.n_mels, widths[0], 7, padding=3))
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        step = config.samples_per_frame // config.hop_length
        dilations = config.resblock_dilation_sizes
        for level, (rate, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)):
            width = widths[level + 1]
            step //= rate
            self.ups.append(weight_norm(UpConv(widths[level], width, kernel, rate, padding=(kernel - rate) // 2)))
            self.source_downs.append(source_conv(bins, width, step))
            source_kernel = config.source_resblock_kernel_sizes[level]
            self.source_resblocks.append(HiFTResidualBlock(width, source_kernel, dilations))
            self.resblocks.extend(HiFTResidualBlock(width, size, dilations) for size in config.resblock_kernel_sizes)
        self.conv_post = weight_norm(Conv(widths[-1], bins, 7, padding=3))
        self.spectrum = STFT(config.n_fft, config.hop_length)

    def fold_weight_norm(self) -> None:
        """Compute each weight from its magnitude and direction; for inference, after loading."""
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
        noise = ExcitationNoise.draw(self.config.harmonics + 1, f0.shape[1] * self.config.samples_per_frame, generator)
        return self.m_source(f0, noise)

    @torch.inference_mode()
    def decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) and excitation (B, 1, 480 F) to a waveform (B, 480 F)."""
        with full_precision():
            return self._decode(mel, source)

    def _decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        excitation = self.spectrum.forward(source[:, 0])
        signal = self.conv_pre(mel[:, :, None].contiguous(memory_format=torch.channels_last))
        kernels = len(self.config.resblock_kernel_sizes)
        for level, up in enumerate(self.ups):
            signal = up(F.leaky_relu(signal, 0.1))  # (B, C, 1, T) -> (B, C / 2, 1, rate * T)
            if level == len(self.ups) - 1:  # one position more, for the last window of the spectrum
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
