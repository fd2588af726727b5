"""One-dimensional convolutions of vocoders, over (B, C, 1, T): in two dimensions they are faster on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import nn


def full_precision() -> AbstractContextManager[None]:
    """Convolutions on a GPU in float32 instead of TF32."""
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
