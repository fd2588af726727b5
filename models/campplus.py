"""Speaker embedding for mel decoders: 192 numbers from a clip at 16 kHz.

CAM++ (Wang et al. 2023, arXiv:2303.00332) as 3D-Speaker publishes it, and CosyVoice 2 and IndexTTS2 use it: Kaldi
filterbank with its mean over the clip removed, a small 2-D residual network over frequency, three densely connected
blocks of dilated convolutions with context-aware masks, and the mean and standard deviation over time. State-dict keys
are those of funasr/campplus, and of `speaker_encoder.*` in the published S3Gen files.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from data.acoustics import audio

SAMPLE_RATE = 16000  # Hz
N_MELS = 80
MIN_SAMPLES = 720  # three frames of the filterbank, two after the first convolution: fewer have no deviation
HEAD = 32  # channels of the residual network
WIDTH = 128  # channels after the first convolution over time, and inside a dense layer
GROWTH = 32  # channels that a dense layer adds
BLOCKS = ((12, 1), (24, 2), (16, 2))  # dense layers and dilation of each block
SEGMENT = 100  # frames that share a local context
EMBEDDING = 192


class CAMPPlus(nn.Module):
    """Filterbank -> speaker embedding, in `eval()`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = _Head()
        layers: OrderedDict[str, nn.Module] = OrderedDict(tdnn=_TimeConvolution())
        width = WIDTH
        # Each dense layer adds channels, and each transit halves them.
        for number, (depth, dilation) in enumerate(BLOCKS, start=1):
            layers[f"block{number}"] = _DenseBlock(depth, width, dilation)
            width += depth * GROWTH
            layers[f"transit{number}"] = _Transit(width)
            width //= 2
        layers["out_nonlinear"] = _norm_relu(width)
        layers["stats"] = _Statistics()
        layers["dense"] = _Projection(2 * width)
        self.xvector = nn.Sequential(layers)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Filterbank (B, F, 80), mean removed, to vectors (B, 192)."""
        vectors: torch.Tensor = self.xvector(self.head(features.transpose(1, 2)))
        return vectors

    @torch.inference_mode()
    def embed(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (S,) at 16 kHz to its vector (192,), not normalised.

        The clip is not cut and takes some 3 MB of memory per second; the published pipeline gives at most 10 s.
        """
        assert not self.training, "call eval() first: batch norms would read, and change by, this one clip"
        audio.require_samples(waveform, MIN_SAMPLES, SAMPLE_RATE)
        audio.require_sound(waveform)
        features = audio.kaldi_filterbank(waveform.to(next(self.parameters()).device), N_MELS)
        vector: torch.Tensor = self((features - features.mean(0))[None])[0]
        return vector


class _Head(nn.Module):
    """(B, 80, F) to (B, 320, F): frequency is an axis of the image, then folded into the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, HEAD, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(HEAD)
        self.layer1 = nn.Sequential(_Residual(stride=2), _Residual(stride=1))
        self.layer2 = nn.Sequential(_Residual(stride=2), _Residual(stride=1))
        self.conv2 = nn.Conv2d(HEAD, HEAD, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(features[:, None])))  # (B, 32, 80, F)
        x = self.layer2(self.layer1(x))  # (B, 32, 20, F)
        x = F.relu(self.bn2(self.conv2(x)))  # (B, 32, 10, F)
        return x.flatten(1, 2)


class _Residual(nn.Module):
    """Two convolutions and a shortcut; `stride` is over frequency."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(HEAD, HEAD, 3, stride=(stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(HEAD)
        self.conv2 = nn.Conv2d(HEAD, HEAD, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(HEAD)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.Conv2d(HEAD, HEAD, 1, stride=(stride, 1), bias=False))
            self.shortcut.append(nn.BatchNorm2d(HEAD))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


def _norm_relu(width: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(width), relu=nn.ReLU()))


class _TimeConvolution(nn.Module):
    """(B, 320, F) to (B, 128, ceil(F / 2)), 50 frames a second."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Conv1d(HEAD * N_MELS // 8, WIDTH, 5, stride=2, padding=2, bias=False)
        self.nonlinear = _norm_relu(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.nonlinear(self.linear(x))
        return y


class _DenseBlock(nn.ModuleDict):
    """Each layer reads all channels so far and adds GROWTH channels."""

    def __init__(self, depth: int, width: int, dilation: int) -> None:
        super().__init__({
            f"tdnnd{number + 1}": _DenseLayer(width + number * GROWTH, dilation) for number in range(depth)
        })

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.values():
            x = torch.cat([x, layer(x)], dim=1)
        return x


class _DenseLayer(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = _norm_relu(width)
        self.linear1 = nn.Conv1d(width, WIDTH, 1, bias=False)
        self.nonlinear2 = _norm_relu(WIDTH)
        self.cam_layer = _MaskedConvolution(dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))
        return y


class _MaskedConvolution(nn.Module):
    """A convolution over time, each channel weighted by the context of the clip and of the segment of 2 s."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(WIDTH, GROWTH, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(WIDTH, WIDTH // 2, 1)
        self.linear2 = nn.Conv1d(WIDTH // 2, GROWTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        segments = F.avg_pool1d(x, SEGMENT, SEGMENT, ceil_mode=True)  # (B, WIDTH, segments); the last may be short
        context = x.mean(-1, keepdim=True) + segments
        weights = torch.sigmoid(self.linear2(F.relu(self.linear1(context))))  # (B, GROWTH, segments)
        return self.linear_local(x) * weights.repeat_interleave(SEGMENT, dim=-1)[..., :x.shape[-1]]


class _Transit(nn.Module):
    """Halves the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nonlinear = _norm_relu(width)
        self.linear = nn.Conv1d(width, width // 2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(self.nonlinear(x))
        return y


class _Statistics(nn.Module):
    """Mean and standard deviation over time, (B, C, F) to (B, 2 C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.mean(-1), x.std(-1)], dim=-1)


class _Projection(nn.Module):
    """(B, C) to (B, 192), normalised without a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(width, EMBEDDING, 1, bias=False)
        self.nonlinear = nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(EMBEDDING, affine=False)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.nonlinear(self.linear(x[..., None])[..., 0])
        return y
