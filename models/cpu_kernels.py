"""Kernels for one position of a few rows on a CPU, which take most of the time of a decoding step.

The functions are those of `models.triton_kernels`. An operation of torch takes one to three microseconds for a few
rows, a call of a module another one, and a layer has about a hundred of them. Here a layer is five compiled loops
(`models.cpu_loops`), with the norms, activations and residuals in them. Results differ from those of the modules by
rounding. Layers with adapters, and others that the loops do not multiply, are called as they are, between loops that
give the same bits: what adapters do not act on is bit-identical with the model that has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models import cpu_loops
from models.matmul_backends import Linear, uses_loops
from models.quantize import BFloat16Linear, FusedLinearPart, Int8Linear

_ACTIVATIONS = {"": cpu_loops.PLAIN, "gelu": cpu_loops.GELU, "swiglu": cpu_loops.SWIGLU}


def linear(rows: torch.Tensor, layers: Sequence[nn.Module], norm: Any = None,
           residual: torch.Tensor | None = None, activation: str = "") -> torch.Tensor:
    """Rows (B, width) by linear layers of the same shape: (B, layers * outputs).

    `norm` is applied to the rows before, `residual` (B, outputs) is added after. The activation is `gelu`, or `swiglu`
    of two layers: silu of the first times the second, (B, outputs).
    """
    rows, fused, parameters, kind = rows.contiguous(), _fused(layers), _parameters(norm), _ACTIVATIONS[activation]
    residual = None if residual is None else residual.contiguous()
    if isinstance(fused, Int8Linear):
        return cpu_loops.multiply(rows, [fused.weight], [fused.bias], [fused.scale], parameters, residual, kind)

    # The loops read each weight once, which is faster than a library for few rows.
    parts: Sequence[Any] = [fused] if isinstance(fused, BFloat16Linear) else layers
    if all(part.uses_loops(rows) if isinstance(part, BFloat16Linear)
           else type(part) is Linear and uses_loops(rows, part.weight, part.bias) for part in parts):
        return cpu_loops.multiply(rows, [part.weight for part in parts], [part.bias for part in parts], (),
                                  parameters, residual, kind)

    # Other shapes are multiplied by a library; norm, activation and residual stay in loops of their own.
    if parameters is not None:
        rows = cpu_loops.normalize(rows, parameters)
    products = [layer(rows) for layer in ([fused] if fused is not None else layers)]
    if kind == cpu_loops.SWIGLU and len(products) == 1:
        products = list(products[0].chunk(2, -1))
    return cpu_loops.finish(products, kind, residual)


def rotation(decoder: Any, cache, positions: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """Rotary positions in the form of `attend`: cosines and signed sines (B, head size) at `positions` (B,)."""
    parts = decoder.rotation(positions[:, None])
    return None if parts is None else tuple(part.flatten(1) for part in parts)


def attend(joined: torch.Tensor, heads: int, rotation: tuple[torch.Tensor, torch.Tensor] | None, cache, layer: int,
           positions: torch.Tensor) -> torch.Tensor:
    """Store keys and values of one position in the `cache` of a layer and attend to it and what is before it.

    `joined` (B, 3 * width) are queries, keys and values; `rotation` cosines and signed sines (B, head size),
    `positions` (B,). The result is (B, width).
    """
    mixed, queries = cpu_loops.attend(joined.contiguous(), heads, rotation, cache.storage[layer],
                                      positions.contiguous())
    if layer in cache.watched:
        cache.queries[layer] = queries
    return mixed


def _fused(layers: Sequence[nn.Module]) -> nn.Module | None:
    """The one layer that computes all of `layers`, which `models.quantize` fuses in their order, or None."""
    if len(layers) == 1:
        return layers[0]
    parts = [layer for layer in layers if isinstance(layer, FusedLinearPart)]
    return parts[0].fused.layer if parts and len(parts) == len(layers) == len(parts[0].fused.sizes) else None


def _parameters(norm: Any) -> tuple[torch.Tensor, torch.Tensor | None, float] | None:
    """Weights and biases (width,) and the epsilon of a norm; a root-mean-square norm has no biases."""
    if norm is None:
        return None
    if isinstance(norm, nn.LayerNorm):
        assert norm.bias is not None
        return norm.weight, norm.bias, norm.eps
    return norm.weight, None, norm.epsilon
