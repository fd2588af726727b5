"""Smaller weights for speaking on a processor: each step reads all of them, so fewer bytes are less time.

The layers' matrices are kept in bfloat16, or in 8 bits with one scale a row; activations
between them stay float32, and so do embeddings, norms, heads and the cache. What it costs
in accuracy is measured by `python -m scripts.dev.benchmark`. The change is for good: load the
model again to train it or to prove anything about it.

Where the processor multiplies 8-bit integers (VNNI), an activation goes in as two digits to
base 254, and the products are exact sums of integers: only the weights are rounded. Two rows
by 4096 x 1024 on two cores of an EPYC: 0.14 ms, and 0.21 ms by torch's kernel for 8-bit
weights, which serves elsewhere and rounds activations to bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models.linear import Linear, can_pack, packed, product

_ADAPTERS = "lora_"
_SPOKEN_ROWS = 2  # of a step with guidance; a prefill of many takes as long in this layout as in torch's own
_FEW_ROWS = 24  # up to here torch's 8-bit product is faster than widening the weights first (measured on an EPYC)
_SAME_INPUT = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gated", "up_proj": "gated"}
_DIGIT, _MIDDLE = 127, 128  # largest digit; where zero lies in unsigned bytes


class Bfloat16Linear(nn.Module):
    """A linear layer without bias whose product is in bfloat16, of weights laid out for few rows where that can be."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        half = weight.detach().to(torch.bfloat16)
        self.packed = can_pack(half.dtype) and half.device.type == "cpu"
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
        self.exact = can_multiply_bytes() and weight.device.type == "cpu"
        largest = weight.detach().abs().amax(1).clamp(min=1e-12)
        scale = largest / _DIGIT
        if not self.exact:
            scale = scale.to(torch.bfloat16)  # rounded before the weights are: its rounding costs nothing
        self.register_buffer("scale", scale)
        rounded = (weight.detach() / scale.float()[:, None]).round().clamp(-_DIGIT, _DIGIT).to(torch.int8)
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(rounded, None) if self.exact else rounded)
        self._zero = torch.zeros(len(scale), dtype=torch.int64)  # of the weights, which oneDNN wants to be told

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type it came in."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        made = self._exact_product(rows.float()) if self.exact else self._rounded_product(rows.to(torch.bfloat16))
        return made.reshape(*hidden.shape[:-1], -1).to(hidden.dtype)

    @torch.no_grad()
    def _exact_product(self, rows: torch.Tensor) -> torch.Tensor:
        bytes_, scale = digits(rows)
        first, second = _product_of_bytes(bytes_, self.weight, self.scale, self._zero).chunk(2)
        return torch.add(first, second, alpha=1 / (2 * _DIGIT)).mul_(scale)

    def _rounded_product(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) <= _FEW_ROWS:
            return torch._weight_int8pack_mm(rows, self.weight, self.scale)
        return F.linear(rows, self.weight.to(torch.bfloat16)) * self.scale


@lru_cache(maxsize=1)
def can_multiply_bytes() -> bool:
    """Whether oneDNN's products of bytes are exact here, found by the product of the largest ones.

    Without VNNI, oneDNN adds two products in 16 bits, where they are cut off: a processor's flags do not tell which
    instructions oneDNN chose (DNNL_MAX_CPU_ISA limits them).
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        return False
    width = 64
    weight = torch.ops.onednn.qlinear_prepack(torch.full((16, width), _DIGIT, dtype=torch.int8), None)
    made = _product_of_bytes(torch.full((2, width), _MIDDLE + _DIGIT, dtype=torch.uint8), weight, torch.ones(16),
                             torch.zeros(16, dtype=torch.int64))
    return bool((made == width * _DIGIT * _DIGIT).all())


def _product_of_bytes(
    rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor,
) -> torch.Tensor:
    """Bytes (N, width), 128 standing for 0, by packed weights of `scale` (outputs,): (N, outputs) float32."""
    made: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, _MIDDLE, weight, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")
    return made


def digits(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (N, width) in float32 as bytes (2 N, width), first digits before second ones, and scales (N, 1).

    A row is `scale * (first + second / 254)` to one part in 32,000 of its largest number; digits are stored plus 128.
    """
    scale = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12).div_(_DIGIT)
    both = rows.new_empty(2 * len(rows), rows.shape[1])
    first, second = both.chunk(2)
    torch.div(rows, scale, out=second)
    torch.round(second, out=first)
    second.sub_(first).mul_(2 * _DIGIT)
    return both.add_(_MIDDLE + 0.5).to(torch.uint8), scale  # cut off, which with the half is rounding


KINDS: dict[str, type[nn.Module]] = {"bfloat16": Bfloat16Linear, "int8": Int8Linear}


class Joined(nn.Module):
    """Layers that are given the same vectors, as one product: fewer and larger ones are faster.

    The product is made when the first of them is called and kept until each has taken its part.
    """

    def __init__(self, weights: Sequence[torch.Tensor], kind: str) -> None:
        super().__init__()
        self.layer = KINDS[kind](torch.cat(list(weights)))
        self.sizes = [len(weight) for weight in weights]
        self._given: torch.Tensor | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    def part(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer of this index makes of (..., width)."""
        if self._given is not hidden or index not in self._waiting:
            self._given, self._waiting = hidden, dict(enumerate(self.layer(hidden).split(self.sizes, -1)))
        taken = self._waiting.pop(index)
        if not self._waiting:
            self._given = None
        return taken


class Part(nn.Module):
    """One of the layers that are joined."""

    def __init__(self, joined: Joined, index: int) -> None:
        super().__init__()
        self.joined, self.index = joined, index

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type it came in."""
        return self.joined.part(self.index, hidden)


def compact(layers: nn.Module, kind: str) -> int:
    """Put every matrix of `layers` but the adapters' into `kind`; how many bytes one step then reads."""
    if kind not in KINDS:
        raise UserError(f"There is no compact form {kind!r}.", f"Choose one of: {', '.join(KINDS)}.")
    found = {name: layer for name, layer in layers.named_modules()
             if type(layer) in (nn.Linear, Linear) and _ADAPTERS not in name}
    for names in _together(found):
        weights = [found[name].weight for name in names]
        made = [KINDS[kind](weights[0])] if len(names) == 1 else _parts(Joined(weights, kind))
        for name, layer in zip(names, made, strict=True):
            parent, _, leaf = name.rpartition(".")
            setattr(layers.get_submodule(parent), leaf, layer)
    return sum(value.numel() * value.element_size() for value in (*layers.parameters(), *layers.buffers()))


def _parts(joined: Joined) -> list[nn.Module]:
    return [Part(joined, index) for index in range(len(joined.sizes))]


def _together(found: Mapping[str, nn.Module]) -> list[list[str]]:
    """The names in groups that are given the same vectors; an adapter around a layer is given them too."""
    groups: dict[str, list[str]] = {}
    for name in found:
        parts = name.split(".")
        place = next((at for at, part in enumerate(parts) if part in _SAME_INPUT), None)
        group = name if place is None else ".".join([*parts[:place], _SAME_INPUT[parts[place]]])
        groups.setdefault(group, []).append(name)
    return list(groups.values())
