"""Kernels for one position of a few rows on a CPU: what a decoding step spends its time on, beside the weights.

The functions are those of `models.triton_kernels`. An operation of torch takes one to three microseconds for a few
rows, a call of a module another one, and a layer has about a hundred of them. Here a layer is its products, its
attention, and loops that Numba compiles at their first use and keeps on disk: nine of them in int8, each as long as
one or two operations. Results differ from those of the modules by rounding. Layers with adapters are called as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import nn

from models.quantize import LARGEST, ZERO_POINT, FusedLinearPart, Int8Linear

_PLAIN, _GELU, _SWIGLU = 0, 1, 2
_ACTIVATIONS = {"": _PLAIN, "gelu": _GELU, "swiglu": _SWIGLU}
_NONE = np.empty(0, np.float32)
_NO_ROWS = np.empty((0, 0), np.float32)
f32, i32 = np.float32, np.int32


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by Numba, with sums in any order, so that they are vectors; NaN and infinity stay what they are."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the folder of this file nor the user's can be written: each process compiles
        return njit(**options)(function)


def linear(rows: torch.Tensor, layers: Sequence[nn.Module], norm: Any = None,
           residual: torch.Tensor | None = None, activation: str = "") -> torch.Tensor:
    """Rows (B, width) by linear layers of the same shape: (B, layers * outputs).

    `norm` is applied to the rows before, `residual` (B, outputs) is added after. The activation is `gelu`, or `swiglu`
    of two layers: silu of the first times the second, (B, outputs).
    """
    whole = _fused(layers)
    if isinstance(whole, Int8Linear) and whole.exact:
        digits = torch.empty(2 * len(rows), rows.shape[1], dtype=torch.uint8)
        largest = np.empty(len(rows), np.float32)
        _split_digits(rows.numpy(), *_parameters(norm), digits.numpy(), largest)
        products = whole.products(digits)
        made = torch.empty(len(rows), products.shape[1] // (2 if activation == "swiglu" else 1))
        _combine(products.numpy(), largest, _NONE if whole.bias is None else whole.bias.numpy(),
                 _NO_ROWS if residual is None else residual.numpy(), _ACTIVATIONS[activation], made.numpy())
        return made
    if norm is not None:
        plain, rows = rows, torch.empty_like(rows)
        _normalize(plain.numpy(), *_parameters(norm), rows.numpy())
    parts = [layer(rows) for layer in ([whole] if whole is not None else layers)]
    if activation == "swiglu":
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        return F.silu(gate).mul_(up)
    made = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if activation == "gelu":
        made = F.gelu(made, approximate="tanh")
    return made if residual is None else residual + made


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, cache, layer: int,
           positions: torch.Tensor) -> torch.Tensor:
    """Store keys and values of one position in the `cache` of a layer and attend to it and what is before it.

    `joined` (B, 3 * width) are queries, keys and values; `rotation` cosines and signed sines (B, head size),
    `positions` (B,). The result is (B, width).
    """
    rows, storage = len(joined), cache.storage[layer]
    queries = torch.empty(rows, heads, 1, storage.shape[-1])
    cosines, sines = (_NO_ROWS, _NO_ROWS) if rotation is None else (part.numpy() for part in rotation)
    _rotate_and_store(joined.numpy(), cosines, sines, positions.numpy(), queries.numpy(), storage.numpy())
    if layer in cache.watched:
        cache.queries[layer] = queries
    keys, values = storage[:, :, :, :cache.span]
    mixed = F.scaled_dot_product_attention(queries, keys, values, cache.mask(positions[:, None]))
    return mixed.view(rows, -1)


def _fused(layers: Sequence[nn.Module]) -> nn.Module | None:
    """The one layer that computes all of `layers`, which `models.quantize` fuses in their order, or None."""
    if len(layers) == 1:
        return layers[0]
    parts = [layer for layer in layers if isinstance(layer, FusedLinearPart)]
    return parts[0].fused.layer if parts and len(parts) == len(layers) == len(parts[0].fused.sizes) else None


def _parameters(norm: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights and biases (width,) and the epsilon of a norm, empty where it has none."""
    if norm is None:
        return _NONE, _NONE, 0.0
    if isinstance(norm, nn.LayerNorm):
        return norm.weight.detach().numpy(), norm.bias.detach().numpy(), norm.eps
    return norm.weight.detach().numpy(), _NONE, norm.epsilon


@intrinsic
def _float_of_bits(_context, _bits):
    """The float32 with the bits of an int32."""
    return types.float32(types.int32), lambda _c, builder, _s, given: builder.bitcast(given[0], ir.FloatType())


@intrinsic
def _bits_of_float(_context, _value):
    """The bits of a float32 as an int32."""
    return types.int32(types.float32), lambda _c, builder, _s, given: builder.bitcast(given[0], ir.IntType(32))


@_compiled
def _normalize_row(row, weight, bias, epsilon, made):
    """One row (width,): layer normalisation if there is a bias, else root-mean-square; a copy without weights."""
    mean, squares = f32(0), f32(0)
    if len(weight) == 0:
        made[:] = row
        return
    if len(bias):
        for at in range(len(row)):
            mean += row[at]
        mean /= f32(len(row))
    for at in range(len(row)):
        squares += (row[at] - mean) * (row[at] - mean)
    factor = f32(1) / np.sqrt(squares / f32(len(row)) + f32(epsilon))
    if len(bias):
        for at in range(len(row)):
            made[at] = (row[at] - mean) * factor * weight[at] + bias[at]
    else:
        for at in range(len(row)):
            made[at] = row[at] * factor * weight[at]


@_compiled
def _normalize(rows, weight, bias, epsilon, made):
    for index in range(len(rows)):
        _normalize_row(rows[index], weight, bias, epsilon, made[index])


@_compiled
def _split_digits(rows, weight, bias, epsilon, digits, largest):
    """`models.quantize.split_digits` of normalised rows: digits (2 B, width), largest values (B,)."""
    width = rows.shape[1]
    row = np.empty(width, np.float32)
    for index in range(len(rows)):
        _normalize_row(rows[index], weight, bias, epsilon, row)
        bits = i32(0)  # those of positive numbers are in the order of the numbers, and of NaN above them
        for at in range(width):
            bits = max(bits, _bits_of_float(abs(row[at])))
        largest[index] = _float_of_bits(bits)
        factor = f32(LARGEST) / largest[index] if bits else f32(0)
        lower, upper = digits[index], digits[len(rows) + index]
        for at in range(width):
            value = i32(np.floor(row[at] * factor + f32(0.5))) + i32(256 * ZERO_POINT + ZERO_POINT)
            lower[at] = value & i32(255)
            upper[at] = value >> i32(8)


@_compiled
def _sigmoid(value):
    """Of a float32, to 4e-7 up to values of 4 and 4e-6 at 80, at least 1e-38; without branches, as vectors need it."""
    power = min(max(value * f32(-1.442695041), f32(-126)), f32(126))  # e^-value = 2^power
    whole = np.floor(power)
    part = power - whole  # 2^part to 7.5e-8: the minimax polynomial on [0, 1), fitted by Lawson's iteration
    made = f32(1.87757666e-3)
    made = made * part + f32(8.98934013e-3)
    made = made * part + f32(5.5826318e-2)
    made = made * part + f32(2.40153617e-1)
    made = made * part + f32(6.93153073e-1)
    made = made * part + f32(9.99999925e-1)
    return f32(1) / (f32(1) + made * _float_of_bits((i32(whole) + i32(127)) << i32(23)))


@_compiled
def _combine(products, largest, bias, residual, activation, made):
    """Rows of the products of their digits (2 B, outputs), with bias, activation and residual."""
    count, outputs = made.shape
    row = np.empty(products.shape[1], np.float32)
    for index in range(count):
        lower, upper, scale, result = products[index], products[count + index], largest[index], made[index]
        for at in range(len(row)):
            row[at] = (upper[at] + lower[at] * f32(1 / 256)) * scale
        if len(bias):
            for at in range(len(row)):
                row[at] += bias[at]
        if activation == _SWIGLU:
            for at in range(outputs):
                row[at] *= _sigmoid(row[at]) * row[outputs + at]
        elif activation == _GELU:  # by tanh, as GPT-2: tanh(x) = 2 sigmoid(2 x) - 1
            for at in range(outputs):
                row[at] *= _sigmoid(f32(1.5957691216) * (row[at] + f32(0.044715) * row[at] * row[at] * row[at]))
        if len(residual):
            added = residual[index]
            for at in range(outputs):
                result[at] = row[at] + added[at]
        else:
            result[:] = row[:outputs]


@_compiled
def _rotate_and_store(joined, cosines, sines, positions, queries, storage):
    """Rotated queries (B, heads, 1, size); rotated keys, and values, at the positions of a layer's storage."""
    rows, heads, _, size = queries.shape
    half = size // 2
    for index in range(rows):
        position = positions[index]
        for head in range(heads):
            query = joined[index, head * size:(head + 1) * size]
            key = joined[index, (heads + head) * size:(heads + head + 1) * size]
            value = joined[index, (2 * heads + head) * size:(2 * heads + head + 1) * size]
            new_query, new_key = queries[index, head, 0], storage[0, index, head, position]
            new_value = storage[1, index, head, position]
            for at in range(size):
                new_value[at] = value[at]
            if len(cosines) == 0:
                for at in range(size):
                    new_query[at] = query[at]
                    new_key[at] = key[at]
                continue
            cosine, sine = cosines[index], sines[index]
            for at in range(half):
                new_query[at] = query[at] * cosine[at] + query[half + at] * sine[at]
                new_key[at] = key[at] * cosine[at] + key[half + at] * sine[at]
            for at in range(half, size):
                new_query[at] = query[at] * cosine[at] + query[at - half] * sine[at]
                new_key[at] = key[at] * cosine[at] + key[at - half] * sine[at]
