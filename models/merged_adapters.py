"""Low-rank adapters merged into the weights of linear layers, as a decoding step on a GPU reads them.

A step is bound by reading weights and by launches, and an adapter's own products are four more of them a layer. The
merged weights are beside the layer's own, in `merged_weight`, at the same address until they are freed, so that a CUDA
graph can read them. They have to be merged again when an adapter changes: `models.generate` does so for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def adapted(layer: Any) -> bool:
    """Whether an adapter is on in this layer, for all rows."""
    return _active(layer) is not None and not hasattr(layer, "rows_switched")


def merge(layers: Iterable[Any]) -> None:
    """Compute the merged weights of adapted layers; what DoRA keeps must be up to date."""
    for layer in layers:
        name, weight = _active(layer), layer.base_layer.weight
        buffer = getattr(layer, "merged_weight", None)
        if buffer is None or (buffer.dtype, buffer.device) != (weight.dtype, weight.device):
            layer.merged_weight = torch.empty_like(weight, requires_grad=False)
        variant = _variant(layer)
        # For LoRA, weights are read and written once.
        if variant is None and name not in getattr(layer, "lora_E", {}):
            factor_a, factor_b = layer.lora_A[name].weight.to(weight), layer.lora_B[name].weight.to(weight)
            torch.addmm(weight, factor_b, factor_a, alpha=layer.scaling[name], out=layer.merged_weight)
            continue
        merged = weight.float() + layer.get_delta_weight(name).float()
        if variant is not None:
            merged = variant.scale(layer, name)[:, None] * merged
        layer.merged_weight.copy_(merged)


def update_norms(layers: Iterable[Any]) -> None:
    """Update the norms that DoRA keeps, in place: a graph reads them there."""
    for layer in layers:
        variant = _variant(layer)
        if variant is not None:
            variant.scale(layer, _active(layer))


@contextmanager
def used(layers: Iterable[Any]) -> Iterator[None]:
    """Context in which these layers, which are merged, are one product each."""
    layers = list(layers)
    for layer in layers:
        layer.forward = partial(F.linear, weight=layer.merged_weight, bias=layer.base_layer.bias)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def free(module: nn.Module) -> None:
    """Free the merged weights of all layers."""
    for layer in module.modules():
        vars(layer).pop("merged_weight", None)


def bytes_to_allocate(layers: Iterable[Any]) -> int:
    """Bytes that `merge` will allocate for those of these layers whose adapter is on."""
    return sum(layer.base_layer.weight.nbytes for layer in layers if adapted(layer) and weight(layer) is None)


def weight(layer: Any) -> torch.Tensor | None:
    """The weight of a linear layer, with an adapter that is on; None if that is not merged or acts by row."""
    if not hasattr(layer, "base_layer"):
        return getattr(layer, "weight", None)
    if _active(layer) is None:
        return layer.base_layer.weight
    merged = getattr(layer, "merged_weight", None)
    fits = merged is not None and merged.dtype == layer.base_layer.weight.dtype
    return merged if fits and adapted(layer) else None


def _active(layer: Any) -> str | None:
    """The name of the adapter that is on in a layer which peft has wrapped."""
    if not hasattr(layer, "base_layer") or layer.disable_adapters:
        return None
    return next((name for name in layer.active_adapters if name in layer.scaling), None)


def _variant(layer: Any) -> Any:
    """What computes the adapter otherwise than LoRA does: DoRA's norms."""
    return getattr(layer, "lora_variant", {}).get(_active(layer))
