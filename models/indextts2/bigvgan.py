"""Mel to waveform: BigVGAN v2 (Lee et al. 2023, arXiv:2206.04658), 80 bins at 22.05 kHz, 256 samples a frame.

Six transposed convolutions upsample the mel; after each, three residual blocks of different kernels are averaged. The
activation is Snake at twice the rate, between an upsampling and a downsampling filter of twelve taps, so that its
harmonics do not alias. Layout, constants and state-dict keys of nvidia/bigvgan_v2_22khz_80band_256x (MIT).

Inside, signals are (B, C, 1, T) with channels last in memory, as in `models.convolutions`. The two phases of the
doubled rate are the two rows of (B, C, 2, T): each filter is then one depthwise convolution of 2 x 7 taps at the
original rate, which a CPU computes faster than a transposed convolution with a stride, as published. On a GPU an
activation is one kernel of `models.triton_vocoder`.

Shapes: B rows, C channels, T positions, F frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models import decoder, weights
from models.convolutions import Conv, UpConv, full_precision

SAMPLE_RATE = 22_050  # Hz
_GIVE = "Give bigvgan_generator.pt of BigVGAN v2, 22 kHz, 80 bands."
_TAPS = 12
_KAISER_BETA = 0.1102 * (2.285 * (_TAPS / 2 - 1) * math.pi * 1.2 + 7.95 - 8.7)  # Kaiser's, for a half width of 0.3
_FILTER = re.compile(r"\.(upsample|downsample\.lowpass)\.filter$")
_FILTER_ERROR = 1e-4  # error of a published filter against ours: another filter is another model


@dataclass(frozen=True)
class BigVGANConfig:
    """Sizes of the vocoder; the defaults are the published ones. A kernel is twice the rate in upsampling."""

    n_mels: int = 80
    channels: int = 1536  # halved at each upsampling
    upsample_rates: tuple[int, ...] = (4, 4, 2, 2, 2, 2)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[int, ...] = (1, 3, 5)

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_rates)


def low_pass() -> torch.Tensor:
    """The filter (12,): a windowed sinc with its cutoff at a quarter of the doubled rate, of sum 1."""
    times = torch.arange(_TAPS, dtype=torch.float64) - (_TAPS - 1) / 2
    window = torch.kaiser_window(_TAPS, periodic=False, beta=_KAISER_BETA, dtype=torch.float64)
    taps = window * torch.sinc(times / 2)
    return (taps / taps.sum()).float()


FIRST_TAPS = tuple(low_pass()[:_TAPS // 2].tolist())
"""Half of the filter, which is symmetric."""


class AntiAliasedSnake(nn.Module):
    """x + sin(a x)^2 / b at twice the rate, with a and b of each channel learned as logarithms.

    With u = 2 a x that is (u - (a / b) cos u) / 2a + 1 / 2b: factor and summand go into the filters around it.
    """

    up: torch.Tensor  # (C, 1, 2, 7)
    down: torch.Tensor  # (C, 1, 2, 7)
    ratio: torch.Tensor  # (C, 1, 1), -a / b
    offset: torch.Tensor  # (C,)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = nn.ParameterDict({name: nn.Parameter(torch.zeros(channels)) for name in ("alpha", "beta")})
        for name, shape in (("up", (channels, 1, 2, 7)), ("down", (channels, 1, 2, 7)), ("ratio", (channels, 1, 1)),
                            ("offset", (channels,))):
            self.register_buffer(name, torch.empty(shape), persistent=False)

    @torch.no_grad()
    def compute_filters(self) -> None:
        """From alpha and beta; call it after loading."""
        taps = low_pass()
        frequency, inverse = self.act["alpha"].exp(), 1 / (self.act["beta"].exp() + 1e-9)
        # An even position 2t reads the inputs t - 3 to t + 2 through the odd taps, 2t + 1 reads t - 2 to t + 3 through
        # the even ones. The convolution's second row of taps meets the signal in the first row of its output.
        up = torch.zeros(2, 7)
        up[1, :6], up[0, 1:] = 2 * taps.flip(0)[::2], 2 * taps.flip(0)[1::2]
        down = torch.zeros(2, 7)
        down[0, 1:], down[1, :6] = taps[1::2], taps[::2]
        self.up = 2 * frequency[:, None, None, None] * up
        self.down = down / (2 * frequency[:, None, None, None])
        self.ratio = -(frequency * inverse)[:, None, None]
        self.offset = inverse / 2

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """(B, C, 1, T) to the same."""
        if decoder.uses_triton(signal):
            from models.triton_vocoder import anti_aliased_snake

            return anti_aliased_snake(signal, self.act["alpha"], self.act["beta"], FIRST_TAPS)
        length, channels = signal.shape[3], signal.shape[1]
        padded = signal.new_empty(signal.shape[0], 1, length + 12, channels).permute(0, 3, 1, 2)
        padded[..., 6:-6] = signal
        padded[..., :6], padded[..., -6:] = signal[..., :1], signal[..., -1:]
        twice = F.conv2d(padded, self.up, padding=(1, 0), groups=channels)  # (B, C, 2, T + 6), times 2a
        twice.addcmul_(twice.cos(), self.ratio)
        # Beyond both ends, the doubled rate has its first and its last value.
        twice[..., :3] = twice[:, :, :1, 3:4]
        twice[..., -3:] = twice[:, :, 1:, -4:-3]
        return F.conv2d(twice, self.down, self.offset, groups=channels)


class AMPBlock(nn.Module):
    """Pairs of convolutions, the first of each dilated, an activation before each, a residual connection per pair."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList([
            Conv(channels, channels, kernel, dilation=step, padding=step * (kernel - 1) // 2) for step in dilations
        ])
        self.convs2 = nn.ModuleList([Conv(channels, channels, kernel, padding=(kernel - 1) // 2) for _ in dilations])
        self.activations = nn.ModuleList([AntiAliasedSnake(channels) for _ in range(2 * len(dilations))])

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        for pair, (conv1, conv2) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            change = conv2(self.activations[2 * pair + 1](conv1(self.activations[2 * pair](signal))))
            signal = change.add_(signal)
        return signal


class BigVGAN(nn.Module):
    """`waveform` is the complete computation."""

    def __init__(self, config: BigVGANConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or BigVGANConfig()
        widths = [config.channels >> level for level in range(len(config.upsample_rates) + 1)]
        self.conv_pre = Conv(config.n_mels, widths[0], 7, padding=3)
        # Published as lists of a single module.
        self.ups = nn.ModuleList([
            nn.Sequential(UpConv(above, below, 2 * rate, rate, padding=rate // 2))
            for (above, below), rate in zip(pairwise(widths), config.upsample_rates, strict=True)])
        sizes = product(widths[1:], config.resblock_kernel_sizes)
        self.resblocks = nn.ModuleList([
            AMPBlock(width, kernel, config.resblock_dilation_sizes) for width, kernel in sizes])
        self.activation_post = AntiAliasedSnake(widths[-1])
        self.conv_post = Conv(widths[-1], 1, 7, padding=3, bias=False)

    @torch.inference_mode()
    def waveform(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to a waveform (B, 256 F) in [-1, 1]."""
        kernels = len(self.config.resblock_kernel_sizes)
        with full_precision():
            signal = self.conv_pre(mel.float()[:, :, None].contiguous(memory_format=torch.channels_last))
            for level, up in enumerate(self.ups):
                signal = up(signal)
                first_block, *other_blocks = self.resblocks[level * kernels : (level + 1) * kernels]
                total = first_block(signal)
                for block in other_blocks:
                    total += block(signal)
                signal = total.div_(kernels)
            return self.conv_post(self.activation_post(signal)).clamp_(-1, 1)[:, 0, 0]


def load(path: Path, device: torch.device) -> BigVGAN:
    """The vocoder of a published file, `bigvgan_generator.pt`, in evaluation mode."""
    tensors = weights.read_nested(path).get("generator")
    if not isinstance(tensors, dict):
        raise UserError(f"{path} holds no generator.", _GIVE)
    return from_tensors(tensors, str(path)).to(device)


def from_tensors(tensors: Mapping[str, torch.Tensor], source: str) -> BigVGAN:
    """The vocoder of published tensors, loaded strictly; `UserError` naming `source`.

    The sizes are those of the tensors. Its filters are computed, and only compared with those of the file.
    """
    for name, value in tensors.items():
        if _FILTER.search(name) and (value.numel() != _TAPS or not torch.allclose(
                value.float().flatten(), low_pass(), atol=_FILTER_ERROR)):
            raise UserError(f"{source} has another filter in {name} than BigVGAN v2.", _GIVE)
    used = used_tensors(tensors)
    module = BigVGAN(config_from_shapes({name: tuple(value.shape) for name, value in used.items()}, source))
    weights.load_into(module, used, source)
    for part in module.modules():
        if isinstance(part, AntiAliasedSnake):
            part.compute_filters()
    return module.requires_grad_(False).eval()


def used_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Published tensors under the module's names: weight norm folded, without the filters."""
    return weights.fold_weight_norm({name: value for name, value in tensors.items() if not _FILTER.search(name)})


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> BigVGANConfig:
    """The configuration of a file's shapes, weight norm folded; `UserError` naming `source` if it is no BigVGAN."""
    try:
        channels, n_mels, _ = shapes["conv_pre.weight"]
        rates = tuple(shapes[f"ups.{level}.0.weight"][2] // 2
                      for level in range(sum(name.startswith("ups.") and name.endswith("weight") for name in shapes)))
        blocks = sum(name.endswith(".convs1.0.weight") for name in shapes)
        kernels = tuple(shapes[f"resblocks.{block}.convs1.0.weight"][2] for block in range(blocks // len(rates)))
        return BigVGANConfig(n_mels, channels, upsample_rates=rates, resblock_kernel_sizes=kernels)
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise UserError(f"{source} is no BigVGAN: it has {len(shapes)} tensors, and not the one for {error}.",
                        _GIVE) from error
