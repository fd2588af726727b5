"""One position of a few rows on a CPU, in few operations: what a decoding step spends its time on, beside the weights.

The functions are those of `models.triton_kernels`. An operation of torch takes one to three microseconds for a few
rows, a call of a module another one, and a layer has about a hundred of them; here it has half as many. Results differ
from those of the modules by rounding, except that layers with adapters or other changes are called as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.quantize import FusedLinearPart, Int8Linear, split_digits


def supports(hidden: torch.Tensor, norm: nn.Module) -> bool:
    """Whether a step on `hidden` (B, T, width) can be computed here: one position in float32, without gradients."""
    return (hidden.device.type == "cpu" and hidden.shape[1] == 1 and not torch.is_grad_enabled()
            and hidden.dtype == norm.weight.dtype == torch.float32)


def linear(rows: torch.Tensor, layers: Sequence[nn.Module], norm: Any = None,
           residual: torch.Tensor | None = None, activation: str = "") -> torch.Tensor:
    """Rows (B, width) by linear layers of the same shape: (B, layers * outputs).

    `norm` is applied to the rows before, `residual` (B, outputs) is added after. The activation is `gelu`, or `swiglu`
    of two layers: silu of the first times the second, (B, outputs).
    """
    length, factor = None, 1.0  # the product is divided by (B, 1) and multiplied with the other
    if isinstance(norm, nn.LayerNorm):
        rows = F.layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        factor = math.sqrt(rows.shape[-1])
        length = torch.linalg.vector_norm(rows, 2, -1, True).hypot_(_root(norm.epsilon * rows.shape[-1]))
        rows = rows * norm.weight
    whole = _fused(layers)
    if isinstance(whole, Int8Linear) and whole.exact:
        digits, scale = split_digits(rows)
        if length is not None:
            scale = scale.div_(length)
        sums = whole.sums(digits, factor)
        if residual is not None and whole.bias is None:
            return torch.addcmul(residual, sums, scale)
        made = sums.mul_(scale) if whole.bias is None else torch.addcmul(whole.bias, sums, scale)
    else:
        if length is not None:
            rows = rows.div_(length / factor)
        parts = [layer(rows) for layer in ([whole] if whole is not None else layers)]
        if activation == "swiglu" and len(parts) == 2:
            return F.silu(parts[0]).mul_(parts[1])
        made = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    if activation == "swiglu":
        gate, up = made.chunk(2, -1)
        return F.silu(gate).mul_(up)
    if activation == "gelu":
        made = F.gelu(made, approximate="tanh")
    return made if residual is None else residual + made


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, cache, layer: int,
           positions: torch.Tensor) -> torch.Tensor:
    """Store keys and values of one position in the `cache` of a layer and attend to it and what is before it.

    `joined` (B, 3 * width) are queries, keys and values, and is overwritten; `rotation` cosines and signed sines
    (B, head size), `positions` (B,). The result is (B, width).
    """
    rows, storage, span = len(joined), cache.storage[layer], cache.span
    vectors = joined.view(rows, 3, heads, -1)
    if rotation is not None:
        cosines, sines = rotation
        turning = vectors[:, :2]  # queries and keys
        swapped = turning.roll(turning.shape[-1] // 2, -1)
        turning.mul_(cosines[:, None, None]).addcmul_(swapped, sines[:, None, None])
    queries = vectors[:, 0, :, None]
    stored = vectors[:, 1:].transpose(0, 1)  # (2, B, heads, head size)
    if cache.aligned:
        storage[:, :, :, span - 1] = stored
    else:
        index = positions[None, :, None, None, None].expand(2, -1, heads, 1, stored.shape[-1])
        storage.scatter_(3, index, stored[:, :, :, None].to(storage.dtype))
    if layer in cache.watched:
        cache.queries[layer] = queries
    keys, values = storage[:, :, :, :span]
    mixed = F.scaled_dot_product_attention(queries.to(keys.dtype), keys, values, cache.mask(positions[:, None]))
    return mixed.to(joined.dtype).view(rows, -1)


def _fused(layers: Sequence[nn.Module]) -> nn.Module | None:
    """The one layer that computes all of `layers`, which `models.quantize` fuses in their order, or None."""
    if len(layers) == 1:
        return layers[0]
    parts = [layer for layer in layers if isinstance(layer, FusedLinearPart)]
    return parts[0].fused.layer if parts and len(parts) == len(layers) == len(parts[0].fused.sizes) else None


@lru_cache
def _root(value: float) -> torch.Tensor:
    return torch.tensor(math.sqrt(value))
