"""Triton kernels for one position of a few rows on a GPU: what a decoding step spends its time on.

A step of a full-size model reads its weights once, a gigabyte, in a third of a millisecond on an H100. By torch's own
operations it launches about a thousand kernels, each of which takes two to three microseconds also inside a CUDA
graph. Here a layer is five kernels: normalisation with the products that follow it, rotation with the cache and the
attention, and products with what is added to them, adapters included. Sums are in float32 and results are rounded
once, so they differ from those of torch by rounding. Only `models.decoder` imports this module,
on a GPU where Triton can compile; elsewhere, and where `supports` says no, torch's operations run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

MAX_ROWS, MAX_RANK = 64, 64
_HALVES = (torch.bfloat16, torch.float16)
_WIDE = (torch.bfloat16,)  # types that hold rows which are not yet normalised
_PLAIN, _GELU, _SWIGLU = 0, 1, 2
_NO_NORM, _NORM_AFTER, _NORM_BEFORE = 0, 1, 2  # the product
_KEYS = 128  # of a block of the attention


@dataclass(frozen=True)
class LowRank:
    """What an adapter makes of a product: `magnitude * (W x + scaling * B (energies * (A x)))`, in the rows of `mask`.

    AdaLoRA divides the scaling by its `count` of directions.
    """

    first: torch.Tensor  # A (R, width)
    second: torch.Tensor  # B (outputs, R)
    scaling: float
    count: torch.Tensor | None = None  # (1,)
    energies: torch.Tensor | None = None  # (R,)
    magnitude: torch.Tensor | None = None  # (outputs,)
    mask: torch.Tensor | None = None  # (rows or a divisor of them,), bool


def supports(hidden: torch.Tensor, head_size: int, layers: Sequence[nn.Module]) -> bool:
    """Whether a step on `hidden` (B, T, width) through these linear layers can be computed here.

    It can for one position of at most `MAX_ROWS` rows, weights in half precision with inputs in multiples of 64, heads
    of a power of two of at least 16, and adapters of at most rank `MAX_RANK`.
    """
    return (hidden.shape[1] == 1 and len(hidden) <= MAX_ROWS and not torch.is_grad_enabled()
            and head_size >= 16 and head_size & (head_size - 1) == 0 and all(map(_readable, layers)))


def _readable(layer: nn.Module) -> bool:
    base = getattr(layer, "base_layer", layer)
    if (not isinstance(base, nn.Linear) or base.weight.dtype not in _HALVES or not base.weight.is_contiguous()
            or base.in_features % 64):
        return False
    name = _active(layer)
    return name is None or len(_weight(layer.lora_A[name])) <= MAX_RANK  # type: ignore[index]


def linear(rows: torch.Tensor, layers: Sequence[nn.Module], norm: nn.Module | None = None,
           residual: torch.Tensor | None = None, activation: str = "") -> torch.Tensor:
    """Rows (B, width) by linear layers of the same shape: (B, layers * outputs).

    `norm` is applied to the rows before, `residual` (B, outputs) is added after, and gives the result its type. The
    activation is `gelu`, or `swiglu` of two layers: silu of the first times the second, (B, outputs).
    """
    bases: list[Any] = [getattr(layer, "base_layer", layer) for layer in layers]
    adapters = [_adapter(layer) for layer in layers]
    if activation == "swiglu" and any(adapters):
        gate, up = linear(rows, layers, norm).chunk(2, -1)
        return F.silu(gate) * up
    weights, count = [base.weight for base in bases], len(bases)
    outputs, width = weights[0].shape
    kind = weights[0].dtype if residual is None else residual.dtype
    parts = 1 if activation == "swiglu" else count
    made = torch.empty(len(rows), parts * outputs, dtype=kind, device=rows.device)
    of_norm: tuple[int, Any, Any, Any] = (_NO_NORM, None, None, 0.0)
    if isinstance(norm, nn.LayerNorm):
        of_norm = (_NORM_BEFORE, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        after = weights[0].dtype in _WIDE
        of_norm = (_NORM_AFTER if after else _NORM_BEFORE, norm.weight, None, norm.epsilon)
    norm_kind, gain, shift, epsilon = of_norm
    rank = max((adapter.first.shape[0] for adapter in adapters if adapter), default=0)
    if rank and len({adapter.first.shape[0] if adapter else 0 for adapter in adapters}) > 1:
        separate = [linear(rows, [layer], norm) for layer in layers]
        return torch.cat(separate, -1)
    few = len(rows) <= 16
    block_rows, block_outputs = max(16, triton.next_power_of_2(len(rows))), 16 if few else 32
    # within 99 KiB of shared memory, which the smaller GPUs have
    wanted = 256 if few and not rank else 128 if few and rank <= 32 else 64
    block_width = next(size for size in (256, 128, 64) if size <= wanted and width % size == 0)
    first = adapters[0]
    masks = first.mask if first else None
    _linear[(triton.cdiv(outputs, block_outputs), parts)](
        rows, gain, shift, *_filled(weights), *_filled([base.bias for base in bases]),
        *_filled([adapter and adapter.first for adapter in adapters]),
        *_filled([adapter and adapter.second for adapter in adapters]),
        *_filled([adapter.scaling if adapter else 0.0 for adapter in adapters]),
        *_filled([adapter and adapter.count for adapter in adapters]),
        *_filled([adapter and adapter.energies for adapter in adapters]),
        *_filled([adapter and adapter.magnitude for adapter in adapters]),
        masks, len(masks) if masks is not None else 1, residual, made, len(rows), outputs, rank, epsilon,
        WIDTH=width, PARTS=parts, NORM=norm_kind,
        ACTIVATION={"": _PLAIN, "gelu": _GELU, "swiglu": _SWIGLU}[activation],
        RANK=max(16, triton.next_power_of_2(rank)) if rank else 0,
        BLOCK_ROWS=block_rows, BLOCK_OUTPUTS=block_outputs, BLOCK_WIDTH=block_width, num_warps=4, num_stages=4)
    return made


def _filled(given: Sequence[Any]) -> list[Any]:
    """Three arguments of the kernel; those that it does not read are the first."""
    return [*given, *[given[0]] * (3 - len(given))]


def _active(layer) -> str | None:
    """The name of the adapter that is on in a linear layer which peft has wrapped."""
    if not hasattr(layer, "base_layer") or layer.disable_adapters:
        return None
    return next((name for name in layer.active_adapters if name in layer.scaling), None)


def _weight(factor) -> torch.Tensor:
    """LoRA's factors are layers, AdaLoRA's are tensors."""
    return factor if isinstance(factor, torch.Tensor) else factor.weight


def _adapter(layer) -> LowRank | None:
    if (name := _active(layer)) is None:
        return None
    adaptive = name in getattr(layer, "lora_E", {})
    variant = None if adaptive else layer.lora_variant.get(name)
    return LowRank(_weight(layer.lora_A[name]), _weight(layer.lora_B[name]), layer.scaling[name],
                   layer.ranknum[name] if adaptive else None, layer.lora_E[name] if adaptive else None,
                   None if variant is None else variant.scale(layer, name), getattr(layer, "rows_switched", None))


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, cache, layer: int,
           positions: torch.Tensor) -> torch.Tensor:
    """Store keys and values of one position in the `cache` of a layer and attend to it and what is before it.

    `joined` (B, 3 * width) are queries, keys and values, `rotation` cosines and signed sines (B, head size),
    `positions` (B,). The result is (B, width), of the type of `joined`.
    """
    keys, values = cache.storage[layer]
    rows, size = len(joined), keys.shape[-1]
    mixed = joined.new_empty(rows, heads * size)
    cosines, sines = rotation or (None, None)
    _attend[(rows, heads)](joined, cosines, sines, keys, values, positions, mixed, cache.watch(layer, mixed),
                           keys.stride(0), keys.stride(1), size**-0.5, HEADS=heads, SIZE=size, BLOCK=_KEYS, num_warps=8)
    return mixed


@triton.jit
def _linear(rows, gain, shift, weight0, weight1, weight2, bias0, bias1, bias2, first0, first1, first2,
            second0, second1, second2, scaling0, scaling1, scaling2, count0, count1, count2,
            energies0, energies1, energies2, magnitude0, magnitude1, magnitude2, mask, mask_length,
            residual, made, row_count, outputs, rank, epsilon,
            WIDTH: tl.constexpr, PARTS: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr, RANK: tl.constexpr,
            BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """A block of outputs of one part, for all rows."""
    part = tl.program_id(1)
    weight, bias, first, second, scaling, count, energies, magnitude = (
        weight0, bias0, first0, second0, scaling0, count0, energies0, magnitude0)
    if PARTS > 1:
        if part == 1:
            weight = weight1
            if bias0 is not None:
                bias = bias1
            if RANK > 0:
                first, second, scaling = first1, second1, scaling1
                if energies0 is not None:
                    count, energies = count1, energies1
                if magnitude0 is not None:
                    magnitude = magnitude1
        if part == 2:
            weight = weight2
            if bias0 is not None:
                bias = bias2
            if RANK > 0:
                first, second, scaling = first2, second2, scaling2
                if energies0 is not None:
                    count, energies = count2, energies2
                if magnitude0 is not None:
                    magnitude = magnitude2
    m = tl.arange(0, BLOCK_ROWS)
    n = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    k = tl.arange(0, BLOCK_WIDTH)
    inside = (m < row_count)[:, None]
    wanted = (n < outputs)[:, None]
    read = rows + m[:, None] * WIDTH + k[None, :]
    sums = tl.zeros([BLOCK_ROWS, BLOCK_WIDTH], tl.float32)  # reduced once, after a loop
    squares = tl.zeros([BLOCK_ROWS, BLOCK_WIDTH], tl.float32)
    if NORM == 2:
        for start in range(0, WIDTH, BLOCK_WIDTH):
            vectors = tl.load(read + start, mask=inside, other=0.0).to(tl.float32)
            if shift is not None:
                sums += vectors
            squares += vectors * vectors
        mean = tl.sum(sums, 1) / WIDTH
        factor = 1.0 / tl.sqrt(tl.sum(squares, 1) / WIDTH - mean * mean + epsilon)
    kind = weight0.dtype.element_ty
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    other = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    if RANK > 0:
        r = tl.arange(0, RANK)
        low = tl.zeros([BLOCK_ROWS, RANK], tl.float32)
    for start in range(0, WIDTH, BLOCK_WIDTH):
        vectors = tl.load(read + start, mask=inside, other=0.0)
        if NORM == 1:  # the rows' factors are taken after the product
            vectors = vectors.to(tl.float32)
            squares += vectors * vectors
            vectors = vectors * tl.load(gain + start + k).to(tl.float32)[None, :]
        if NORM == 2:
            vectors = (vectors.to(tl.float32) - mean[:, None]) * factor[:, None]
            vectors = vectors * tl.load(gain + start + k).to(tl.float32)[None, :]
            if shift is not None:
                vectors += tl.load(shift + start + k).to(tl.float32)[None, :]
        vectors = vectors.to(kind)
        at = n[:, None] * WIDTH + start + k[None, :]
        total += tl.dot(vectors, tl.trans(tl.load(weight + at, mask=wanted, other=0.0)))
        if ACTIVATION == 2:
            other += tl.dot(vectors, tl.trans(tl.load(weight1 + at, mask=wanted, other=0.0)))
        if RANK > 0:
            directions = tl.load(first + r[:, None] * WIDTH + start + k[None, :], mask=(r < rank)[:, None], other=0.0)
            low += tl.dot(vectors, tl.trans(directions.to(kind)))
    if NORM == 1:
        factor = 1.0 / tl.sqrt(tl.sum(squares, 1) / WIDTH + epsilon)
        total = total * factor[:, None]
        other = other * factor[:, None]
        if RANK > 0:
            low = low * factor[:, None]
    if RANK > 0:
        if energies is not None:
            low = low * tl.load(energies + r, mask=r < rank, other=0.0).to(tl.float32)[None, :]
        back = tl.load(second + n[:, None] * rank + r[None, :], mask=wanted & (r < rank)[None, :], other=0.0)
        if count is not None:
            scaling = scaling / (tl.load(count).to(tl.float32) + 1e-5)
        adapted = total + tl.dot(low.to(kind), tl.trans(back.to(kind))) * scaling
        if magnitude is not None:
            adapted = adapted * tl.load(magnitude + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
        if mask is not None:
            on = tl.load(mask + m % mask_length)
            adapted = tl.where(on[:, None], adapted, total)
        total = adapted
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
    tl.store(made + (m[:, None] * PARTS + part) * outputs + n[None, :], total.to(made.dtype.element_ty),
             mask=inside & (n < outputs)[None, :])


@triton.jit
def _attend(joined, cosines, sines, keys, values, positions, mixed, rotated, row_stride, head_stride, scale,
            HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, SIZE)
    at = joined + row * (3 * HEADS * SIZE) + head * SIZE
    query, key = tl.load(at + d).to(tl.float32), tl.load(at + HEADS * SIZE + d).to(tl.float32)
    value = tl.load(at + 2 * HEADS * SIZE + d)
    if cosines is not None:
        turned = (d + SIZE // 2) % SIZE
        cosine, sine = tl.load(cosines + row * SIZE + d).to(tl.float32), tl.load(sines + row * SIZE + d).to(tl.float32)
        query = query * cosine + tl.load(at + turned).to(tl.float32) * sine
        key = key * cosine + tl.load(at + HEADS * SIZE + turned).to(tl.float32) * sine
    kind = keys.dtype.element_ty
    position = tl.load(positions + row)
    place = row.to(tl.int64) * row_stride + head * head_stride
    tl.store(keys + place + position * SIZE + d, key.to(kind))
    tl.store(values + place + position * SIZE + d, value.to(kind))
    query = query.to(kind)
    if rotated is not None:
        tl.store(rotated + (row * HEADS + head) * SIZE + d, query)
    query = query.to(tl.float32) * scale
    # Each slot of a block has its own maximum and sums, so that nothing is exchanged between warps in the loop.
    j = tl.arange(0, BLOCK)
    own = tl.sum(query * key.to(kind).to(tl.float32), 0)
    top = tl.where(j == 0, own, float("-inf"))
    weight = tl.where(j == 0, 1.0, 0.0)
    total = tl.where((j == 0)[:, None], value.to(kind).to(tl.float32)[None, :], 0.0)
    start = position * 0
    while start < position:
        inside = start + j < position
        at_block = place + (start + j)[:, None] * SIZE + d[None, :]
        read = tl.load(keys + at_block, mask=inside[:, None], other=0.0)
        stored = tl.load(values + at_block, mask=inside[:, None], other=0.0)
        scores = tl.where(inside, tl.sum(read.to(tl.float32) * query[None, :], 1), float("-inf"))
        higher = tl.maximum(tl.maximum(top, scores), -1e30)  # never the difference of two infinities
        kept, share = tl.exp(top - higher), tl.exp(scores - higher)
        total = total * kept[:, None] + share[:, None] * stored.to(tl.float32)
        weight = weight * kept + share
        top = higher
        start += BLOCK
    share = tl.exp(top - tl.max(top, 0))
    found = tl.sum(total * share[:, None], 0) / tl.sum(weight * share, 0)
    tl.store(mixed + (row * HEADS + head) * SIZE + d, found.to(mixed.dtype.element_ty))
