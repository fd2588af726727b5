"""Triton kernels of vocoders: for what lies between the products of the flows, and for Snake.

By torch's own operations a step of Chatterbox's estimator is a thousand kernels, most of which read or write a
megabyte: two to three microseconds each, also inside a CUDA graph. Here the residual sum, the layer norm, Mish, what is
added after it, the conversion to half precision and the arrangement for a convolution are one kernel. A norm of
IndexTTS2's with its residual sum and conversion is one instead of eight, a rotation one instead of three; a Snake one
instead of seven; BigVGAN's Snake, with the filters around it, one instead of ten. They compute in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import nn

TAPS = 3  # taps of the estimator's causal convolutions
_OUTPUTS = 16  # outputs of an anti-aliased Snake that a thread computes in turn


def normalise(rows: torch.Tensor, norm: nn.LayerNorm | None, dtype: torch.dtype, *, added: torch.Tensor | None = None,
              mish: bool = False, after: torch.Tensor | None = None, taps: bool = False
              ) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of rows (B, F, C) and `added` (B, F, C) in float32, or the rows without `added`; and the result.

    The result, of the type `dtype`, is the sum after `norm` and Mish, plus `after` (B, F, C) or (C,). With `taps` it is
    (B, F, 3C): of each frame the results of the two frames before it, which are zero before the first, and its own.
    """
    batch, length, width = rows.shape
    output = torch.empty(batch, length, TAPS * width if taps else width, dtype=dtype, device=rows.device)
    total = None if added is None else torch.empty(batch, length, width, device=rows.device)
    _normalise[(batch * length,)](
        rows.contiguous(), None if added is None else added.contiguous(), None if norm is None else norm.weight,
        None if norm is None else norm.bias, None if after is None else after.contiguous(),
        width if after is not None and after.dim() > 1 else 0, total, output, length, 0.0 if norm is None else norm.eps,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), MISH=mish, BY_TAPS=taps, CENTRED=True,
        num_warps=2)
    return rows if total is None else total, output


def adaptive_norm(rows: torch.Tensor, added: torch.Tensor | None, gain: torch.Tensor, shift: torch.Tensor,
                  epsilon: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of rows (B, F, C) and `added` (B, F, C) in float32, or the rows without `added`; and its RMS norm.

    The latter, of the type `dtype`, is multiplied by `gain` (C,), and `shift` (C,) is added.
    """
    batch, length, width = rows.shape
    output = torch.empty(batch, length, width, dtype=dtype, device=rows.device)
    total = None if added is None else torch.empty(batch, length, width, device=rows.device)
    _normalise[(batch * length,)](
        rows.contiguous(), None if added is None else added.contiguous(), gain.contiguous(), shift.contiguous(), None,
        0, total, output, length, epsilon, WIDTH=width, BLOCK=triton.next_power_of_2(width), MISH=False, BY_TAPS=False,
        CENTRED=False, num_warps=2)
    return rows if total is None else total, output


@triton.jit(do_not_specialize=["length"])
def _normalise(rows, added, gain, shift, after, after_stride, total, output, length, epsilon,
               WIDTH: tl.constexpr, BLOCK: tl.constexpr, MISH: tl.constexpr, BY_TAPS: tl.constexpr,
               CENTRED: tl.constexpr):
    """One row; its norm is that of a layer, or without CENTRED the root mean square alone."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(rows + row * WIDTH + column, mask=inside, other=0).to(tl.float32)
    if added is not None:
        value += tl.load(added + row * WIDTH + column, mask=inside, other=0).to(tl.float32)
        tl.store(total + row * WIDTH + column, value, mask=inside)

    # Without a gain, the row is copied as it is.
    if gain is not None:
        if CENTRED:
            value = tl.where(inside, value - tl.sum(value, 0) / WIDTH, 0)
        scale = 1 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
        value = value * scale * tl.load(gain + column, mask=inside, other=0).to(tl.float32)
        value += tl.load(shift + column, mask=inside, other=0).to(tl.float32)

    # Mish is x tanh(log(1 + e^x)), written as a fraction; beyond 20 it is x.
    if MISH:
        power = tl.exp(tl.minimum(value, 20))
        power = power * (power + 2)
        value = value * (power / (power + 2))
    if after is not None:
        value += tl.load(after + row * after_stride + column, mask=inside, other=0).to(tl.float32)

    # Each row is written to the three frames that read it; taps before the first frame are zero.
    value = value.to(output.dtype.element_ty)
    if BY_TAPS:
        frame = row % length
        row_start = output + row * (3 * WIDTH) + column
        tl.store(row_start + 2 * WIDTH, value, mask=inside)
        tl.store(row_start + 4 * WIDTH, value, mask=inside & (frame + 1 < length))  # row of the next frame
        tl.store(row_start + 6 * WIDTH, value, mask=inside & (frame + 2 < length))
        zero = tl.zeros_like(value)
        tl.store(row_start, zero, mask=inside & (frame < 2))
        tl.store(row_start + WIDTH, zero, mask=inside & (frame < 1))
    else:
        tl.store(output + row * WIDTH + column, value, mask=inside)


def rotate_pairs(heads: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Heads (B, F, H, D), whose neighbouring pairs are complex numbers, times complex rotary (F, D / 2).

    The heads of a frame are side by side in memory.
    """
    batch, length, count, size = heads.shape
    assert heads.stride()[2:] == (size, 1)
    output = torch.empty(batch, length, count, size, dtype=heads.dtype, device=heads.device)
    block_heads, block_half = triton.next_power_of_2(count), triton.next_power_of_2(size // 2)
    _rotate_pairs[(length, batch)](heads, torch.view_as_real(rotary), output, heads.stride(0), heads.stride(1),
                                   HEADS=count, BLOCK_HEADS=block_heads, HALF=size // 2, BLOCK_HALF=block_half,
                                   num_warps=2)
    return output


@triton.jit
def _rotate_pairs(heads, rotary, output, batch_stride, frame_stride, HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr,
                  HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """One frame of a row of the batch."""
    frame, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, pair = tl.arange(0, BLOCK_HEADS)[:, None], tl.arange(0, BLOCK_HALF)[None]
    inside = (head < HEADS) & (pair < HALF)
    column = head * (2 * HALF) + 2 * pair
    pair_start = heads + row * batch_stride + frame * frame_stride + column
    real = tl.load(pair_start, mask=inside, other=0).to(tl.float32)
    imaginary = tl.load(pair_start + 1, mask=inside, other=0).to(tl.float32)
    cosine = tl.load(rotary + frame * (2 * HALF) + 2 * pair, mask=pair < HALF, other=0)
    sine = tl.load(rotary + frame * (2 * HALF) + 2 * pair + 1, mask=pair < HALF, other=0)
    result = output + (row * tl.num_programs(0) + frame) * (2 * HEADS * HALF) + column
    kind = output.dtype.element_ty
    tl.store(result, (real * cosine - imaginary * sine).to(kind), mask=inside)
    tl.store(result + 1, (real * sine + imaginary * cosine).to(kind), mask=inside)


def snake(signal: torch.Tensor, alpha: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
    """x + sin(a x)^2 / a of a signal (B, C, 1, T), contiguous or with channels last, and a (C,).

    With `length` (), an integer on the GPU, the result is zero from that position on.
    """
    assert signal.is_contiguous() or signal.is_contiguous(memory_format=torch.channels_last)
    output, block = torch.empty_like(signal), 1024
    _snake[(triton.cdiv(signal.numel(), block),)](
        signal, alpha, output, length, signal.numel(), signal.stride(1), signal.stride(3), signal.shape[3],
        CHANNELS=signal.shape[1], BLOCK=block)
    return output


@triton.jit
def _snake(signal, alpha, output, length, count, channel_stride, position_stride, positions, CHANNELS: tl.constexpr,
           BLOCK: tl.constexpr):
    """A block of entries in their order in memory."""
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(signal + offset, mask=offset < count, other=0)
    rate = tl.load(alpha + offset // channel_stride % CHANNELS)
    half = 0.5 / (rate + 1e-9)
    value = value + half - half * tl.cos(value * (2 * rate))
    if length is not None:
        value = tl.where(offset // position_stride % positions < tl.load(length), value, 0)
    tl.store(output + offset, value, mask=offset < count)


def anti_aliased_snake(signal: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor,
                       taps: Sequence[float]) -> torch.Tensor:
    """`models.indextts2.bigvgan.AntiAliasedSnake` of a signal (B, C, 1, T), with the logarithms of a and b (C,).

    `taps` is the first half of the symmetric filter of twelve.
    """
    signal = signal.contiguous(memory_format=torch.channels_last)
    output = torch.empty_like(signal, memory_format=torch.channels_last)
    batch, channels, _, length = signal.shape
    block_channels = min(128, triton.next_power_of_2(channels))
    block = 128 // block_channels
    _anti_aliased_snake[(triton.cdiv(length, block * _OUTPUTS), triton.cdiv(channels, block_channels), batch)](
        signal, alpha, beta, output, length, channels, *taps, BLOCK=block, BLOCK_CHANNELS=block_channels,
        OUTPUTS=_OUTPUTS)
    return output


@triton.jit(do_not_specialize=["length"])
def _anti_aliased_snake(signal, alpha, beta, output, length, channels, tap_0, tap_1, tap_2, tap_3, tap_4, tap_5,
                        BLOCK: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr):
    """OUTPUTS positions in turn of some channels, which are side by side in memory, from BLOCK places at once.

    An output reads the doubled rate, of which an even and an odd value lie at each position, from three positions
    before it to three after; beyond the ends that has its first and its last value. The last six values of each are
    kept, so that each is computed once.
    """
    first_position = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]) * OUTPUTS
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)[None]
    is_channel = channel < channels
    start = tl.program_id(2).to(tl.int64) * length * channels + channel

    # The filter keeps half of a signal with zeros between its values, so that twice its result is the doubled rate.
    rate = 4 * tl.exp(tl.load(alpha + channel, mask=is_channel, other=0))
    height = -0.5 / (tl.exp(tl.load(beta + channel, mask=is_channel, other=0)) + 1e-9)

    # Each by a call of its own: Triton's compiler takes a variable to be unchanged by a loop if it is given the value
    # that it has already, and so loses what moves between variables that begin as one value.
    even_1 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    even_2 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    even_3 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    even_4 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    even_5 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_0 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_1 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_2 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_3 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_4 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)
    odd_5 = tl.zeros((BLOCK, BLOCK_CHANNELS), tl.float32)

    for step in range(OUTPUTS + 6):
        time = first_position + (step - 3)
        centre = tl.minimum(tl.maximum(time, 0), length - 1)
        value_0 = _at(signal + start, centre - 3, length, channels, is_channel)
        value_1 = _at(signal + start, centre - 2, length, channels, is_channel)
        value_2 = _at(signal + start, centre - 1, length, channels, is_channel)
        value_3 = _at(signal + start, centre, length, channels, is_channel)
        value_4 = _at(signal + start, centre + 1, length, channels, is_channel)
        value_5 = _at(signal + start, centre + 2, length, channels, is_channel)
        value_6 = _at(signal + start, centre + 3, length, channels, is_channel)

        even = (tap_0 * value_0 + tap_2 * value_1 + tap_4 * value_2 + tap_5 * value_3 + tap_3 * value_4
                + tap_1 * value_5)
        odd = (tap_1 * value_1 + tap_3 * value_2 + tap_5 * value_3 + tap_4 * value_4 + tap_2 * value_5
               + tap_0 * value_6)

        # Snake at the doubled rate.
        even = 2 * even + height * tl.cos(rate * even)
        odd = 2 * odd + height * tl.cos(rate * odd)
        even, odd = tl.where(time >= length, odd, even), tl.where(time < 0, even, odd)

        # Filter back to the output's rate from the last six values of each kind.
        total = (tap_1 * even_1 + tap_3 * even_2 + tap_5 * even_3 + tap_4 * even_4 + tap_2 * even_5 + tap_0 * even
                 + tap_0 * odd_0 + tap_2 * odd_1 + tap_4 * odd_2 + tap_5 * odd_3 + tap_3 * odd_4 + tap_1 * odd_5)
        position = time - 3
        tl.store(output + start + position * channels, total - height,
                 mask=is_channel & (position >= first_position) & (position < length))
        even_1, even_2, even_3, even_4, even_5 = even_2, even_3, even_4, even_5, even
        odd_0, odd_1, odd_2, odd_3, odd_4, odd_5 = odd_1, odd_2, odd_3, odd_4, odd_5, odd


@triton.jit
def _at(signal, position, length, channels, is_channel):
    """The signal at these positions, or at its end if they are beyond it."""
    position = tl.minimum(tl.maximum(position, 0), length - 1)
    return tl.load(signal + position * channels, mask=is_channel, other=0)
