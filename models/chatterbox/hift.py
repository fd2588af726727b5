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
from models.cuda_graph_decode import GraphCache

VOICED_HZ = 10.0  # frames below it are unvoiced
SINE_LEVEL = 0.1
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_LEVEL / 3
# On CUDA with Triton frames are padded to a multiple, 1.3 s, because each length needs its own graphs, and cuDNN's plan
# for each convolution. Those of 24 lengths reach half a minute; those used last are kept.
_FRAMES_UNIT, _KEPT_LENGTHS = 64, 24


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
    resblock_dilation_sizes: tuple[int, ...] = (1, 3, 5)  # dilations of both kinds of blocks
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


def zero_after_(signal: torch.Tensor, length: torch.Tensor | None) -> torch.Tensor:
    """The signal (..., T), in place zero from position `length` () on; unchanged if that is None."""
    if length is None:
        return signal
    return signal.masked_fill_(torch.arange(signal.shape[-1], device=signal.device) >= length, 0)


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
        # All bins but the outer two represent a conjugate pair.
        multiplicity[0] = multiplicity[-1] = 1
        inverse = basis.t() * multiplicity.repeat(2)[:, None] / n_fft
        self.register_buffer("analysis", (window[:, None] * basis).float(), persistent=False)
        self.register_buffer("synthesis", (inverse * window).float(), persistent=False)
        self.register_buffer("power", window.square().float(), persistent=False)

    def forward(self, waveform: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S) to (B, n_fft + 2, 1, S / hop_length + 1), channels last in memory.

        With `length` (), in windows, the samples after them are padding: the reflection is before it, and the spectrum
        is zero there.
        """
        side = self.n_fft // 2
        if length is None:
            padded = F.pad(waveform[:, None], (side, side), mode="reflect")[:, 0]
        else:
            last = (length - 1) * self.hop_length - 1
            index = torch.arange(-side, waveform.shape[1] + side, device=waveform.device).abs()
            padded = waveform.index_select(1, torch.where(index <= last, index, 2 * last - index).clamp(min=0))
        frames = padded.unfold(-1, self.n_fft, self.hop_length) @ self.analysis  # (B, T, n_fft + 2)
        return zero_after_(frames[:, None].permute(0, 3, 1, 2), length)

    def inverse(self, magnitude: torch.Tensor, phase: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """Magnitude and phase (B, n_fft / 2 + 1, 1, T) to (B, (T - 1) * hop_length).

        With `length` (), in windows, those after them are padding, and so are the samples, which may be NaN there.
        """
        spectrum = zero_after_(torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1), length)
        frames = spectrum[:, :, 0].transpose(1, 2) @ self.synthesis  # (B, T, n_fft)
        power = self.power.expand(1, frames.shape[1], -1)
        if length is not None:
            power = zero_after_(power.transpose(1, 2).clone(), length).transpose(1, 2)
        return self._overlap(frames) / self._overlap(power)

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

    def forward(self, mel: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """With `length` (), the frames after it are padding, in which mel is zero."""
        for conv in self.condnet.values():
            mel = zero_after_(F.elu(conv(mel)), length)
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
        start = f0.new_zeros(f0.shape[0], 1) if phase is None else phase[:, None]
        return torch.cat([start, steps], 1).cumsum(1) % 1


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned a for each channel (Ziyin et al. 2020, arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, signal: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """With `length` (), which needs Triton, the result is zero from that position on."""
        if decoder.uses_triton(signal):
            from models.triton_vocoder import snake

            return snake(signal, self.alpha, length)
        assert length is None
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

    def forward(self, signal: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """With `length` (), what is after it is padding: no convolution reads it, and it may hold anything."""
        for first_snake, first_conv, second_snake, second_conv in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            signal = signal + second_conv(second_snake(first_conv(first_snake(signal, length)), length))
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
        # Each level halves the channels.
        widths = [config.channels >> level for level in range(len(config.upsample_rates) + 1)]
        bins = config.n_fft + 2

        self.m_source = HarmonicSource(config.harmonics, config.sample_rate, config.samples_per_frame)
        self.f0_predictor = F0Predictor(config.n_mels, config.f0_channels)
        self.conv_pre = weight_norm(Conv(config.n_mels, widths[0], 7, padding=3))
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()

        # Each level raises the rate of the signal, and gets the excitation at its own rate.
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
        self.graphs = GraphCache(_KEPT_LENGTHS)

    def fold_weight_norm(self) -> None:
        """Compute each weight from its magnitude and direction; for inference, after loading."""
        for module in self.modules():
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight")

    @torch.inference_mode()
    def f0(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to pitch in Hz (B, F)."""
        graphs = self._graphs_for(mel)
        if graphs is not None:
            return graphs.f0(self, mel)
        with full_precision():
            return self.f0_predictor(mel)

    @torch.inference_mode()
    def source(self, f0: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Pitch in Hz (B, F) to an excitation (B, 1, 480 F); phases and noise are random, the same for each row."""
        return self.m_source(f0, self._noise(f0.shape[1], generator))

    @torch.inference_mode()
    def decode(self, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) and excitation (B, 1, 480 F) to a waveform (B, 480 F)."""
        graphs = self._graphs_for(mel)
        if graphs is not None:
            return graphs.decode(self, mel, source)
        with full_precision():
            return self._decode(mel, source)

    def _decode(self, mel: torch.Tensor, source: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """With `length` (), the frames after it are padding, in which mel is zero.

        A convolution reads zeros beyond the end of a signal, so its input is zero there at each level.
        """
        windows = None if length is None else length * (self.config.samples_per_frame // self.config.hop_length) + 1
        excitation = self.spectrum.forward(source[:, 0], windows)
        signal = self.conv_pre(mel[:, :, None].contiguous(memory_format=torch.channels_last))
        kernels = len(self.config.resblock_kernel_sizes)

        for level, up in enumerate(self.ups):
            signal = up(zero_after_(F.leaky_relu(signal, 0.1), length))  # (B, C, 1, T) -> (B, C / 2, 1, rate * T)
            length = None if length is None else length * self.config.upsample_rates[level]
            # The last window of the spectrum needs one more position.
            if level == len(self.ups) - 1:
                signal, length = torch.cat([signal[..., 1:2], signal], -1), windows
            signal = signal + self.source_resblocks[level](self.source_downs[level](excitation), length)
            blocks = self.resblocks[level * kernels : (level + 1) * kernels]
            signal = sum(block(signal, length) for block in blocks) / kernels

        # The network gives magnitude and phase of a short-time spectrum.
        magnitude, phase = self.conv_post(zero_after_(F.leaky_relu(signal), length)).chunk(2, 1)
        waveform = self.spectrum.inverse(magnitude.exp().clamp(max=100), torch.sin(phase), length)
        return waveform.clamp(-0.99, 0.99)

    @torch.inference_mode()
    def waveform(self, mel: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to a waveform (B, 480 F) in [-1, 1]."""
        graphs = self._graphs_for(mel)
        if graphs is not None:
            return graphs.waveform(self, mel, self._noise(mel.shape[2], generator))
        return self.decode(mel, self.source(self.f0(mel), generator))

    def _noise(self, frames: int, generator: torch.Generator | None) -> ExcitationNoise:
        return ExcitationNoise.draw(self.config.harmonics + 1, frames * self.config.samples_per_frame, generator)

    def _graphs_for(self, mel: torch.Tensor) -> HiFTGraphs | None:
        """The kept graphs for a mel of this shape; None if nothing is padded, for lack of Triton's kernels."""
        if not mel.is_cuda or not decoder.has_triton(mel.device):
            return None
        self.graphs.check_weights(self)
        batch, _, frames = mel.shape
        padded = -(-frames // _FRAMES_UNIT) * _FRAMES_UNIT
        return self.graphs.get((batch, padded), lambda: HiFTGraphs(self, batch, padded))


class HiFTGraphs:
    """`HiFT` for one padded number of frames, as CUDA graphs: of `waveform`, and of `f0` and `decode` for streaming.

    Padding reaches no sample of an utterance, because every convolution reads zeros there.
    """

    def __init__(self, vocoder: HiFT, batch: int, frames: int) -> None:
        config, device = vocoder.config, vocoder.conv_pre.bias.device
        samples = frames * config.samples_per_frame
        self._length = torch.zeros((), dtype=torch.int32, device=device)  # length in frames
        self._mel = torch.zeros(batch, config.n_mels, frames, device=device)
        self._noise = ExcitationNoise(torch.zeros(config.harmonics + 1, device=device),
                                      torch.zeros(samples, device=device))
        self._source = torch.zeros(batch, 1, samples, device=device)
        self._f0 = torch.zeros(batch, frames, device=device)
        self._waveform = torch.zeros(batch, samples, device=device)
        self._predict, self._synthesise, self._whole = (vocoder.graphs.graph() for _ in range(3))

    def f0(self, vocoder: HiFT, mel: torch.Tensor) -> torch.Tensor:
        """See `HiFT.f0`."""
        self._start(mel)
        with full_precision():
            self._predict(lambda: self._f0.copy_(vocoder.f0_predictor(self._mel, self._length)))
        return self._f0[:, :mel.shape[2]].clone()

    def decode(self, vocoder: HiFT, mel: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """See `HiFT.decode`."""
        self._start(mel)
        self._source[..., :source.shape[2]] = source
        with full_precision():
            self._synthesise(lambda: self._waveform.copy_(vocoder._decode(self._mel, self._source, self._length)))
        return self._waveform[:, :source.shape[2]].clone()

    def waveform(self, vocoder: HiFT, mel: torch.Tensor, noise: ExcitationNoise) -> torch.Tensor:
        """See `HiFT.waveform`; the noise is that of the excitation."""
        self._start(mel)
        samples = len(noise.samples)
        self._noise.offsets.copy_(noise.offsets)
        self._noise.samples[:samples] = noise.samples
        with full_precision():
            self._whole(lambda: self._compute_waveform(vocoder))
        return self._waveform[:, :samples].clone()

    def _start(self, mel: torch.Tensor) -> None:
        frames = mel.shape[2]
        self._mel[..., :frames] = mel
        self._mel[..., frames:] = 0
        self._length.fill_(frames)

    def _compute_waveform(self, vocoder: HiFT) -> None:
        source = vocoder.m_source(vocoder.f0_predictor(self._mel, self._length), self._noise)
        self._waveform.copy_(vocoder._decode(self._mel, source, self._length))
