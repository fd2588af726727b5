"""Triton kernels for one position of a few rows on a GPU, which take most of the time of a decoding step.

A step of a full-size model reads its weights once, a gigabyte, in a third of a millisecond on an H100. By torch's own
operations it launches about a thousand kernels, each of which takes two to three microseconds also inside a CUDA
graph. Here a layer is five kernels: normalisation with the products that follow it, rotation with the cache and the
attention, and products with what is added to them. Adapters are merged into the weights before
(`models.merged_adapters`). With one or two rows a kernel starts on Hopper GPUs while the one before it ends
(programmatic dependent launch), and reads weights, keys and values until its rows are there. Sums are in float32 and
results are rounded once, so they differ from those of torch by rounding. Only `models.decoder` imports this module, on
a GPU where Triton can compile; elsewhere, and where `supports` says no, torch's operations run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from models import merged_adapters

MAX_ROWS = 64
_FEW = 2  # rows that are multiplied without tensor cores
_HALVES = (torch.bfloat16, torch.float16)
_WIDE = (torch.bfloat16,)  # types that hold rows which are not yet normalised
_PLAIN, _GELU, _SWIGLU = 0, 1, 2
_NO_NORM, _ROOT_MEAN_SQUARE, _LAYER_NORM = 0, 1, 2
_ACTIVATIONS = {"": _PLAIN, "gelu": _GELU, "swiglu": _SWIGLU}
_EARLY_LAUNCHES = (9, 0)  # compute capability


def supports(hidden: torch.Tensor, head_size: int, layers: Sequence[nn.Module]) -> bool:
    """Whether a step on `hidden` (B, T, width) through these linear layers can be computed here.

    It can for one position of at most `MAX_ROWS` rows, weights in half precision with inputs in multiples of 64, heads
    of a power of two of at least 16, and adapters that are merged and act on all rows.
    """
    return (hidden.shape[1] == 1 and len(hidden) <= MAX_ROWS and not torch.is_grad_enabled()
            and head_size >= 16 and head_size & (head_size - 1) == 0 and all(map(_readable, layers)))


def _readable(layer: nn.Module) -> bool:
    base, weight = getattr(layer, "base_layer", layer), merged_adapters.weight(layer)
    return (isinstance(base, nn.Linear) and weight is not None and weight.dtype in _HALVES and weight.is_contiguous()
            and base.in_features % 64 == 0)


def linear(rows: torch.Tensor, layers: Sequence[nn.Module], norm: nn.Module | None = None,
           residual: torch.Tensor | None = None, activation: str = "") -> torch.Tensor:
    """Rows (B, width) by linear layers of the same shape: (B, layers * outputs).

    `norm` is applied to the rows before, `residual` (B, outputs) is added after, and gives the result its type. The
    activation is `gelu`, or `swiglu` of two layers: silu of the first times the second, (B, outputs).
    """
    bases: list[Any] = [getattr(layer, "base_layer", layer) for layer in layers]
    weights: list[Any] = [merged_adapters.weight(layer) for layer in layers]
    outputs, width = weights[0].shape
    kind = weights[0].dtype if residual is None else residual.dtype
    parts = 1 if activation == "swiglu" else len(layers)
    output = torch.empty(len(rows), parts * outputs, dtype=kind, device=rows.device)
    # A norm before the product is part of the kernel.
    of_norm: tuple[int, Any, Any, Any] = (_NO_NORM, None, None, 0.0)
    if isinstance(norm, nn.LayerNorm):
        of_norm = (_LAYER_NORM, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        of_norm = (_ROOT_MEAN_SQUARE, norm.weight, None, norm.epsilon)

    norm_kind, gain, shift, epsilon = of_norm
    biases = [base.bias for base in bases]
    arguments = (rows, gain, shift, *_filled(weights), *_filled(biases), residual, output, outputs, epsilon)
    chosen = {"PARTS": parts, "NORM": norm_kind, "ACTIVATION": _ACTIVATIONS[activation], "WIDTH": width}

    # Few rows are limited by reading the weights, many by the tensor cores.
    if len(rows) <= _FEW:
        block_outputs, warps = _few_rows_blocks(width, outputs, activation == "swiglu")
        _few_rows[(triton.cdiv(outputs, block_outputs), parts)](
            *arguments, ROWS=len(rows), BLOCK_OUTPUTS=block_outputs, BLOCK_WIDTH=triton.next_power_of_2(width),
            num_warps=warps, **chosen, **_early(rows))
    else:
        block_outputs, block_width, warps, stages = _many_rows_blocks(rows, width, outputs * parts)
        _many_rows[(triton.cdiv(outputs, block_outputs), parts)](
            *arguments, len(rows), WIDE=weights[0].dtype in _WIDE,
            BLOCK_ROWS=max(16, triton.next_power_of_2(len(rows))),
            BLOCK_OUTPUTS=block_outputs, BLOCK_WIDTH=block_width, num_warps=warps, num_stages=stages, **chosen)
    return output


def _few_rows_blocks(width: int, outputs: int, gated: bool) -> tuple[int, int]:
    """Outputs and warps of a block of `_few_rows`: the fastest of those tried on an H100."""
    if width <= 1024:
        return (8, 4) if gated else (2, 1)
    return (4, 2) if width <= 2048 else (2, 8) if width <= 4096 else (2, 4)


def _many_rows_blocks(rows: torch.Tensor, width: int, outputs: int) -> tuple[int, int, int, int]:
    """Outputs, inputs, warps and stages of a block of `_many_rows`: the fastest of those tried on an H100.

    They fit into the 99 KiB of shared memory that the smaller GPUs have, for which 64 rows in float32 have two stages.
    """
    is_few, narrow, large = len(rows) <= 16, outputs <= 1280, len(rows) > 32 and rows.dtype == torch.float32
    block_outputs, block_width, warps, stages = (
        ((16, 256, 4, 4) if narrow else (32, 128, 4, 4)) if is_few
        else (16, 128, 4, 2 if large else 4) if narrow else (32, 64, 4, 4))
    fitting = next(size for size in (256, 128, 64) if size <= block_width and width % size == 0)
    return block_outputs, fitting, warps, stages


def _filled(arguments: Sequence[Any]) -> list[Any]:
    """Three arguments of the kernel; those that it does not read are the first."""
    return [*arguments, *[arguments[0]] * (3 - len(arguments))]


def _early(rows: torch.Tensor) -> dict[str, Any]:
    """How kernels of these rows are launched: before the last one ends, where the GPU can do that.

    With few rows that takes 0.2 of 0.9 ms from a code of T3 on an H100. With 64 rows blocks that wait were in the way
    of those that compute: a code took 2.8 ms instead of 2.1.
    """
    early = len(rows) <= _FEW and _launches_early(rows.device)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@lru_cache
def _launches_early(device: torch.device) -> bool:
    return (device.type == "cuda" and torch.version.hip is None
            and torch.cuda.get_device_capability(device) >= _EARLY_LAUNCHES)


def rotation(decoder: Any, cache, positions: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """What `attend` wants of rotary positions: cosines and signed sines of all positions of the cache.

    Each is (capacity, head size), and computed once for a cache.
    """
    if not cache.rotation and decoder.config.rotary_theta is not None:
        every = torch.arange(cache.storage.shape[4], device=positions.device)
        cache.rotation += [part[0, 0] for part in decoder.rotation(every[None])]
    return tuple(cache.rotation) or None


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, cache, layer: int,
           positions: torch.Tensor) -> torch.Tensor:
    """Store keys and values of one position in the `cache` of a layer and attend to it and what is before it.

    `joined` (B, 3 * width) are queries, keys and values, `rotation` cosines and signed sines (positions, head size) by
    position, `positions` (B,). The result is (B, width), of the type of `joined`.
    """
    keys, values = cache.storage[layer]
    rows, size = len(joined), keys.shape[-1]
    mixed = joined.new_empty(rows, heads * size)
    cosines, sines = rotation or (None, None)
    block, warps = _attend_blocks(rows * heads, cache.span)
    _attend[(rows, heads)](joined, cosines, sines, keys, values, positions.contiguous(), mixed,
                           cache.watch(layer, mixed), keys.stride(0), keys.stride(1), size**-0.5, HEADS=heads,
                           SIZE=size, BLOCK=block, num_warps=warps, **_early(joined))
    return mixed


def _attend_blocks(programs: int, span: int) -> tuple[int, int]:
    """Positions and warps of a block of `_attend`: the fastest of those tried on an H100."""
    if programs <= 128:
        return (128, 4) if span <= 128 else (256, 8)
    return 64, 4


@triton.jit
def _few_rows(rows, gain, shift, weight0, weight1, weight2, bias0, bias1, bias2, residual, output, outputs, epsilon,
              WIDTH: tl.constexpr, PARTS: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
              ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, EARLY: tl.constexpr):
    """A block of outputs of one part, for all rows; all its weights are read at once."""
    if EARLY:
        gdc_launch_dependents()
    # Each part is the product with another layer.
    part = tl.program_id(1)
    weight, bias = _of_part(weight0, weight1, weight2, PARTS), bias0
    if bias0 is not None:
        bias = _of_part(bias0, bias1, bias2, PARTS)

    n = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    k = tl.arange(0, BLOCK_WIDTH)
    is_output, inside = n < outputs, k < WIDTH
    offset, is_weight = n[:, None] * WIDTH + k[None, :], is_output[:, None] & inside[None, :]

    # Weights are read before the rows are written: they do not depend on the kernel before this one.
    factors = tl.load(weight + offset, mask=is_weight, other=0.0)
    if ACTIVATION == 2:
        gate_factors = tl.load(weight1 + offset, mask=is_weight, other=0.0)
    if NORM > 0:
        gains = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
        if shift is not None:
            shifts = tl.load(shift + k, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        biases = tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)
        if ACTIVATION == 2:
            gate_biases = tl.load(bias1 + n, mask=is_output, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    # For two rows, each value of the second is read and each sum is made together with the first: one wait, not two.
    vector = tl.load(rows + k, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(rows + (ROWS - 1) * WIDTH + k, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        added = tl.load(residual + n, mask=is_output, other=0.0).to(tl.float32)
        other_added = tl.load(residual + (ROWS - 1) * outputs + n, mask=is_output, other=0.0).to(tl.float32)
    # The factor of a root-mean-square norm is taken after the product.
    factor, other_factor = 1.0, 1.0

    # Normalise the rows.
    if NORM == 1:
        squares, other_squares = tl.reduce((vector * vector, other * other), 0, _add_pairs)
        factor, other_factor = tl.rsqrt(squares / WIDTH + epsilon), tl.rsqrt(other_squares / WIDTH + epsilon)
        vector, other = vector * gains, other * gains
    if NORM == 2:
        sums, other_sums = tl.reduce((vector, other), 0, _add_pairs)
        mean, other_mean = sums / WIDTH, other_sums / WIDTH
        vector, other = tl.where(inside, vector - mean, 0.0), tl.where(inside, other - other_mean, 0.0)
        squares, other_squares = tl.reduce((vector * vector, other * other), 0, _add_pairs)
        vector = vector * tl.rsqrt(squares / WIDTH + epsilon) * gains + shifts
        other = other * tl.rsqrt(other_squares / WIDTH + epsilon) * gains + shifts

    # Multiply.
    wide = factors.to(tl.float32)
    if ROWS == 1:
        total = tl.sum(wide * vector[None, :], 1) * factor
        if ACTIVATION == 2:
            gated = tl.sum(gate_factors.to(tl.float32) * vector[None, :], 1) * factor
    else:
        total, other_total = tl.reduce((wide * vector[None, :], wide * other[None, :]), 1, _add_pairs)
        total, other_total = total * factor, other_total * other_factor
        if ACTIVATION == 2:
            wide = gate_factors.to(tl.float32)
            gated, other_gated = tl.reduce((wide * vector[None, :], wide * other[None, :]), 1, _add_pairs)
            gated, other_gated = gated * factor, other_gated * other_factor

    # Bias, activation and residual.
    for row in tl.static_range(ROWS):
        if row == 1:
            total = other_total
            if ACTIVATION == 2:
                gated = other_gated
            if residual is not None:
                added = other_added
        if bias is not None:
            total += biases
        if ACTIVATION == 1:
            total = total * tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
        if ACTIVATION == 2:
            if bias is not None:
                gated += gate_biases
            total = total * tl.sigmoid(total) * gated
        if residual is not None:
            total += added
        tl.store(output + (row * PARTS + part) * outputs + n, total.to(output.dtype.element_ty), mask=is_output)


@triton.jit
def _of_part(pointer_0, pointer_1, pointer_2, PARTS: tl.constexpr):
    """The pointer of this program's part."""
    chosen = pointer_0
    if PARTS > 1:
        if tl.program_id(1) == 1:
            chosen = pointer_1
        if tl.program_id(1) == 2:
            chosen = pointer_2
    return chosen


@triton.jit
def _add_pairs(left_1, left_2, right_1, right_2):
    return left_1 + right_1, left_2 + right_2


@triton.jit
def _many_rows(rows, gain, shift, weight0, weight1, weight2, bias0, bias1, bias2, residual, output, outputs, epsilon,
               row_count, WIDTH: tl.constexpr, PARTS: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
               WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """A block of outputs of one part, for all rows, by tensor cores.

    The factors of a root-mean-square norm are taken after the product if its type holds `WIDE` rows.
    """
    part = tl.program_id(1)
    weight, bias = _of_part(weight0, weight1, weight2, PARTS), bias0
    if bias0 is not None:
        bias = _of_part(bias0, bias1, bias2, PARTS)

    m = tl.arange(0, BLOCK_ROWS)
    n = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    k = tl.arange(0, BLOCK_WIDTH)
    inside = (m < row_count)[:, None]
    is_output = (n < outputs)[:, None]
    read = rows + m[:, None] * WIDTH + k[None, :]
    # With a wide type, the factor of a root-mean-square norm is taken after the product.
    AFTER: tl.constexpr = NORM == 1 and WIDE
    sums = tl.zeros([BLOCK_ROWS, BLOCK_WIDTH], tl.float32)  # reduced once, after a loop
    squares = tl.zeros([BLOCK_ROWS, BLOCK_WIDTH], tl.float32)

    # Without a wide type, the rows are normalised before the product, which takes a pass of its own.
    if NORM > 0 and not AFTER:
        for start in range(0, WIDTH, BLOCK_WIDTH):
            vectors = tl.load(read + start, mask=inside, other=0.0).to(tl.float32)
            if NORM == 2:
                sums += vectors
            squares += vectors * vectors
        mean = tl.sum(sums, 1) / WIDTH
        factor = 1.0 / tl.sqrt(tl.sum(squares, 1) / WIDTH - mean * mean + epsilon)

    # The product, in blocks of inputs.
    kind = weight0.dtype.element_ty
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    other = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for start in range(0, WIDTH, BLOCK_WIDTH):
        vectors = tl.load(read + start, mask=inside, other=0.0)
        if NORM > 0:
            vectors = vectors.to(tl.float32)
            if AFTER:
                squares += vectors * vectors
            else:
                vectors = (vectors - mean[:, None]) * factor[:, None]
            vectors = vectors * tl.load(gain + start + k).to(tl.float32)[None, :]
            if shift is not None:
                vectors += tl.load(shift + start + k).to(tl.float32)[None, :]
        vectors = vectors.to(kind)
        offset = n[:, None] * WIDTH + start + k[None, :]
        total += tl.dot(vectors, tl.trans(tl.load(weight + offset, mask=is_output, other=0.0)))
        if ACTIVATION == 2:
            other += tl.dot(vectors, tl.trans(tl.load(weight1 + offset, mask=is_output, other=0.0)))

    # Factors, bias, activation and residual.
    if AFTER:
        factor = 1.0 / tl.sqrt(tl.sum(squares, 1) / WIDTH + epsilon)
        total = total * factor[:, None]
        other = other * factor[:, None]
    if bias is not None:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == 1:
        total = total * tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    if ACTIVATION == 2:
        if bias is not None:
            other += tl.load(bias1 + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
        total = total * tl.sigmoid(total) * other
    if residual is not None:
        total += tl.load(residual + m[:, None] * outputs + n[None, :], mask=inside & (n < outputs)[None, :],
                         other=0.0).to(tl.float32)
    tl.store(output + (m[:, None] * PARTS + part) * outputs + n[None, :], total.to(output.dtype.element_ty),
             mask=inside & (n < outputs)[None, :])


@triton.jit
def _attend(joined, cosines, sines, keys, values, positions, mixed, rotated, row_stride, head_stride, scale,
            HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One head of one row. Keys and values of the first block are read before the rows are there."""
    if EARLY:
        gdc_launch_dependents()

    row, head = tl.program_id(0), tl.program_id(1)
    d, j = tl.arange(0, SIZE), tl.arange(0, BLOCK)
    position = tl.load(positions + row)
    place = row.to(tl.int64) * row_stride + head * head_stride
    inside = j < position
    at_block = place + j[:, None] * SIZE + d[None, :]
    read = tl.load(keys + at_block, mask=inside[:, None], other=0.0)
    stored = tl.load(values + at_block, mask=inside[:, None], other=0.0)
    if cosines is not None:
        cosine = tl.load(cosines + position * SIZE + d).to(tl.float32)
        sine = tl.load(sines + position * SIZE + d).to(tl.float32)
    if EARLY:
        gdc_wait()

    # Rotate query and key of this position, and store key and value.
    row_start = joined + row * (3 * HEADS * SIZE) + head * SIZE
    query, key = tl.load(row_start + d).to(tl.float32), tl.load(row_start + HEADS * SIZE + d).to(tl.float32)
    value = tl.load(row_start + 2 * HEADS * SIZE + d)
    if cosines is not None:
        turned = (d + SIZE // 2) % SIZE
        query = query * cosine + tl.load(row_start + turned).to(tl.float32) * sine
        key = key * cosine + tl.load(row_start + HEADS * SIZE + turned).to(tl.float32) * sine
    kind = keys.dtype.element_ty
    tl.store(keys + place + position * SIZE + d, key.to(kind))
    tl.store(values + place + position * SIZE + d, value.to(kind))
    query = query.to(kind)
    if rotated is not None:
        tl.store(rotated + (row * HEADS + head) * SIZE + d, query)
    query = query.to(tl.float32) * scale
    # Each slot of a block has its own maximum and sums, so that nothing is exchanged between warps in the loop.
    own_score = tl.sum(query * key.to(kind).to(tl.float32), 0)
    top = tl.where(j == 0, own_score, float("-inf"))
    weight = tl.where(j == 0, 1.0, 0.0)
    total = tl.where((j == 0)[:, None], value.to(kind).to(tl.float32)[None, :], 0.0)
    start = position * 0
    while start < position:
        scores = tl.where(inside, tl.sum(read.to(tl.float32) * query[None, :], 1), float("-inf"))
        # The maximum is finite, so that two infinities are never subtracted.
        higher = tl.maximum(tl.maximum(top, scores), -1e30)
        decay, share = tl.exp(top - higher), tl.exp(scores - higher)
        total = total * decay[:, None] + share[:, None] * stored.to(tl.float32)
        weight = weight * decay + share
        top = higher
        start += BLOCK
        inside = start + j < position
        at_block = place + (start + j)[:, None] * SIZE + d[None, :]
        read = tl.load(keys + at_block, mask=inside[:, None], other=0.0)
        stored = tl.load(values + at_block, mask=inside[:, None], other=0.0)

    # Combine the slots.
    share = tl.exp(top - tl.max(top, 0))
    result = tl.sum(total * share[:, None], 0) / tl.sum(weight * share, 0)
    tl.store(mixed + (row * HEADS + head) * SIZE + d, result.to(mixed.dtype.element_ty))
