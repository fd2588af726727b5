"""Smaller weights for speaking on a processor: each step reads all of them, so fewer bytes are less time.

The layers' matrices are kept in bfloat16, or in 8 bits with one scale a row; activations
between them stay float32, and so do embeddings, norms, heads and the cache. What it costs
in accuracy is measured by `python -m scripts.benchmark`. The change is for good: load the
model again to train it or to prove anything about it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models.linear import Linear, can_pack, packed, product

_ADAPTERS = "lora_"
_SPOKEN_ROWS = 2  # of a step with guidance; a prefill of many takes as long in this layout as in torch's own
_FEW_ROWS = 24  # up to here the 8-bit product is faster than widening the weights first (measured on an EPYC)


class Bfloat16Linear(nn.Module):
    """A linear layer without bias whose product is in bfloat16, of weights laid out for few rows where that can be."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        half = weight.detach().to(torch.bfloat16)
        self.packed = can_pack() and half.device.type == "cpu"
        self.register_buffer("weight", packed(half, _SPOKEN_ROWS) if self.packed else half)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type it came in."""
        rows = hidden.to(torch.bfloat16)
        made = product(rows, self.weight) if self.packed else F.linear(rows, self.weight)
        return made.to(hidden.dtype)


class Int8Linear(nn.Module):
    """A linear layer without bias, of weights in 8 bits; a row's result does not depend on other rows of the batch."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        largest = weight.detach().abs().amax(1).clamp(min=1e-12)
        scale = (largest / 127).to(torch.bfloat16)  # rounded before the weights are: its rounding costs nothing
        self.register_buffer("scale", scale)
        rounded = (weight.detach() / scale.float()[:, None]).round().clamp(-128, 127)
        self.register_buffer("weight", rounded.to(torch.int8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type it came in."""
        rows = hidden.reshape(-1, hidden.shape[-1]).to(torch.bfloat16)
        if len(rows) <= _FEW_ROWS:
            product = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            product = F.linear(rows, self.weight.to(torch.bfloat16)) * self.scale
        return product.reshape(*hidden.shape[:-1], -1).to(hidden.dtype)


KINDS: dict[str, type[nn.Module]] = {"bfloat16": Bfloat16Linear, "int8": Int8Linear}


def compact(layers: nn.Module, kind: str) -> int:
    """Put every matrix of `layers` but the adapters' into `kind`; how many bytes one step then reads."""
    if kind not in KINDS:
        raise UserError(f"There is no compact form {kind!r}.", f"Choose one of: {', '.join(KINDS)}.")
    found = [(name, layer) for name, layer in layers.named_modules()
             if type(layer) in (nn.Linear, Linear) and _ADAPTERS not in name]
    for name, layer in found:
        parent, _, leaf = name.rpartition(".")
        setattr(layers.get_submodule(parent), leaf, KINDS[kind](layer.weight))
    return sum(value.numel() * value.element_size() for value in layers.state_dict().values())
