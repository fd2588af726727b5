"""Triton kernels for what lies between the matrix products of the flow's estimator, and for the vocoder's Snake.

By torch's own operations a step of the estimator is a thousand kernels, most of which read or write a megabyte: two to
three microseconds each, also inside a CUDA graph. Here the residual sum, the layer norm, Mish, what is added after it,
the conversion to half precision and the arrangement for a convolution are one kernel. A Snake is one instead of seven.
They compute in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

TAPS = 3  # of the estimator's causal convolutions


def normalise(rows: torch.Tensor, norm: nn.LayerNorm | None, dtype: torch.dtype, *, added: torch.Tensor | None = None,
              mish: bool = False, after: torch.Tensor | None = None, taps: bool = False
              ) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows (B, F, C) plus `added` (B, F, C): the sum in float32, or the rows where nothing is added, and the result.

    The result, of the type `dtype`, is the sum after `norm` and Mish, plus `after` (B, F, C) or (C,). With `taps` it is
    (B, F, 3C): of each frame the results of the two frames before it, which are zero before the first, and its own.
    """
    batch, length, width = rows.shape
    made = torch.empty(batch, length, TAPS * width if taps else width, dtype=dtype, device=rows.device)
    total = None if added is None else torch.empty_like(rows, dtype=torch.float32)
    _normalise[(batch * length,)](
        rows.contiguous(), None if added is None else added.contiguous(), None if norm is None else norm.weight,
        None if norm is None else norm.bias, None if after is None else after.contiguous(),
        width if after is not None and after.dim() > 1 else 0, total, made, length, 0.0 if norm is None else norm.eps,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), MISH=mish, BY_TAPS=taps, num_warps=2)
    return rows if total is None else total, made


@triton.jit
def _normalise(rows, added, gain, shift, after, after_stride, total, made, length, epsilon,
               WIDTH: tl.constexpr, BLOCK: tl.constexpr, MISH: tl.constexpr, BY_TAPS: tl.constexpr):
    """One row."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(rows + row * WIDTH + column, mask=inside, other=0).to(tl.float32)
    if added is not None:
        value += tl.load(added + row * WIDTH + column, mask=inside, other=0).to(tl.float32)
        tl.store(total + row * WIDTH + column, value, mask=inside)
    if gain is not None:
        centred = tl.where(inside, value - tl.sum(value, 0) / WIDTH, 0)
        scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + epsilon)
        value = centred * scale * tl.load(gain + column, mask=inside, other=0).to(tl.float32)
        value += tl.load(shift + column, mask=inside, other=0).to(tl.float32)
    if MISH:  # x tanh(log(1 + e^x)), as a fraction; beyond 20 it is x
        power = tl.exp(tl.minimum(value, 20))
        power = power * (power + 2)
        value = value * (power / (power + 2))
    if after is not None:
        value += tl.load(after + row * after_stride + column, mask=inside, other=0).to(tl.float32)
    value = value.to(made.dtype.element_ty)
    if BY_TAPS:
        frame = row % length
        own = made + row * (3 * WIDTH) + column
        tl.store(own + 2 * WIDTH, value, mask=inside)
        tl.store(own + 4 * WIDTH, value, mask=inside & (frame + 1 < length))  # of the next frame
        tl.store(own + 6 * WIDTH, value, mask=inside & (frame + 2 < length))
        zero = tl.zeros_like(value)
        tl.store(own, zero, mask=inside & (frame < 2))
        tl.store(own + WIDTH, zero, mask=inside & (frame < 1))
    else:
        tl.store(made + row * WIDTH + column, value, mask=inside)


def snake(signal: torch.Tensor, alpha: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
    """x + sin(a x)^2 / a of a signal (B, C, 1, T), dense in memory in any order of its axes, and a (C,).

    With `length` (), an integer on the GPU, the result is zero from that position on.
    """
    made, block = torch.empty_like(signal), 1024
    _snake[(triton.cdiv(signal.numel(), block),)](
        signal, alpha, made, length, signal.numel(), signal.stride(1), signal.stride(3), signal.shape[3],
        CHANNELS=signal.shape[1], BLOCK=block)
    return made


@triton.jit
def _snake(signal, alpha, made, length, count, channel_stride, position_stride, positions, CHANNELS: tl.constexpr,
           BLOCK: tl.constexpr):
    """A block of entries in their order in memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(signal + at, mask=at < count, other=0)
    rate = tl.load(alpha + at // channel_stride % CHANNELS)
    half = 0.5 / (rate + 1e-9)
    value = value + half - half * tl.cos(value * (2 * rate))
    if length is not None:
        value = tl.where(at // position_stride % positions < tl.load(length), value, 0)
    tl.store(made + at, value, mask=at < count)
