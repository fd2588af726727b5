"""Smaller weights for decoding on a CPU: a step reads all weights, so fewer bytes are less time.

`speech_network.quantize_decoding_` converts the matrices that a step reads, those of the layers and of the speech
head, to bfloat16, or to int8 with one scale per row. Activations between them stay float32, and so do embeddings,
norms and the cache. `python -m scripts.dev.benchmark` measures the loss of accuracy. The conversion is permanent: load
the model again to train it or to prove anything about it.

Where the processor multiplies int8 (VNNI), an activation is split into two digits of base 256 and the products are
exact sums of integers: only the weights are rounded. The weights are what takes the time: four rows of digits take as
long as one. Two rows by 4096 x 1024 on two cores of an EPYC take 0.14 ms, and 0.21 ms by torch's int8 kernel, which
serves elsewhere and rounds activations to bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models.matmul_backends import Linear, can_pack, pack, product

_ADAPTERS = "lora_"
_DECODED_ROWS = 2  # of a step with guidance; a prefill of many takes as long in this layout as in torch's own
_FEW_ROWS = 24  # up to here torch's int8 product is faster than widening the weights first (measured on an EPYC)
_SAME_INPUT = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gated", "up_proj": "gated"}
_MAX_WEIGHT, ZERO_POINT = 127, 128  # the largest, and the digit zero as an unsigned byte
LARGEST = 32_639  # what the largest value of a row becomes: both digits are then from -128 to 127
_SHIFT = torch.tensor(float(2**23 + 256 * ZERO_POINT + ZERO_POINT))  # float32 has no fractions from 2**23 on


class BFloat16Linear(nn.Module):
    """A linear layer that multiplies in bfloat16, with packed weights where possible."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        half = weight.detach().to(torch.bfloat16)
        self.packed = can_pack(half.dtype) and half.device.type == "cpu"
        self.register_buffer("weight", pack(half, _DECODED_ROWS) if self.packed else half)
        self.register_buffer("bias", None if bias is None else bias.detach().to(torch.bfloat16))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type of the input."""
        rows = hidden.to(torch.bfloat16)
        multiply = product if self.packed else F.linear
        result = multiply(rows, self.weight, self.bias)
        return result.to(hidden.dtype)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights; the result of a row does not depend on the other rows."""

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.exact = has_exact_int8_products() and weight.device.type == "cpu"
        largest = weight.detach().abs().amax(1).clamp(min=1e-12)
        scale = largest / _MAX_WEIGHT
        if not self.exact:
            scale = scale.to(torch.bfloat16)  # rounded before the weights are, so that its rounding costs nothing
        rounded = (weight.detach() / scale.float()[:, None]).round().clamp(-_MAX_WEIGHT, _MAX_WEIGHT).to(torch.int8)
        self.register_buffer("scale", scale * (256 / LARGEST) if self.exact else scale)
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(rounded, None) if self.exact else rounded)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self._zero_points = torch.zeros(len(scale), dtype=torch.int64)  # of the weights

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type of the input."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        result = self._exact_product(rows.float()) if self.exact else self._rounded_product(rows.to(torch.bfloat16))
        return result.reshape(*hidden.shape[:-1], -1).to(hidden.dtype)

    def products(self, digits: torch.Tensor) -> torch.Tensor:
        """Of digits (2 N, width), without bias: (2 N, outputs). Those of upper digits count 256 times as much."""
        return _int8_product(digits, self.weight, self.scale, self._zero_points)

    @torch.no_grad()
    def _exact_product(self, rows: torch.Tensor) -> torch.Tensor:
        digits, largest = split_digits(rows)
        lower, upper = self.products(digits).chunk(2)
        result = torch.add(upper, lower, alpha=1 / 256)
        return result.mul_(largest) if self.bias is None else torch.addcmul(self.bias, result, largest)

    def _rounded_product(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) <= _FEW_ROWS:
            result = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            result = F.linear(rows, self.weight.to(torch.bfloat16)) * self.scale
        return result if self.bias is None else result + self.bias


@lru_cache(maxsize=1)
def has_exact_int8_products() -> bool:
    """Whether oneDNN's int8 products are exact here, found by a product of the largest values.

    Without VNNI, oneDNN adds two products in 16 bits, which saturate. The processor's flags do not tell which
    instructions oneDNN chose (DNNL_MAX_CPU_ISA limits them).
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        return False
    width = 64
    weight = torch.ops.onednn.qlinear_prepack(torch.full((16, width), _MAX_WEIGHT, dtype=torch.int8), None)
    result = _int8_product(torch.full((2, width), ZERO_POINT + _MAX_WEIGHT, dtype=torch.uint8), weight,
                           torch.ones(16), torch.zeros(16, dtype=torch.int64))
    return bool((result == width * _MAX_WEIGHT * _MAX_WEIGHT).all())


def _int8_product(
    rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero_points: torch.Tensor,
) -> torch.Tensor:
    """Bytes (N, width) with zero point 128 by packed weights of `scale` (outputs,): (N, outputs)."""
    result: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, ZERO_POINT, weight, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], "")
    return result


def split_digits(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (N, width) in float32 as bytes (2 N, width), lower digits before upper ones, and largest values (N, 1).

    A row is `largest * (256 * upper + lower) / 32639` to one part in 65,000 of `largest`; digits are stored plus 128.
    The digits of a row of zeros mean nothing.
    """
    largest = rows.abs().amax(1, keepdim=True)
    shifted = torch.addcdiv(_SHIFT, rows, largest, value=LARGEST)  # rounded
    digits = shifted.view(torch.uint8).as_strided((2, *rows.shape), (1, 4 * rows.shape[1], 4))
    return digits.reshape(-1, rows.shape[1]), largest


KINDS: dict[str, type[nn.Module]] = {"bfloat16": BFloat16Linear, "int8": Int8Linear}


class FusedLinear(nn.Module):
    """Layers with the same input as one product: fewer and larger products are faster.

    The first of them that is called computes the product; the others take their parts of it.
    """

    def __init__(self, weights: Sequence[torch.Tensor], kind: str,
                 biases: Sequence[torch.Tensor | None] | None = None) -> None:
        super().__init__()
        bias = None
        if biases is not None and any(part is not None for part in biases):
            bias = torch.cat([weight.new_zeros(len(weight)) if part is None else part
                              for weight, part in zip(weights, biases, strict=True)])
        self.layer = KINDS[kind](torch.cat(list(weights)), bias)
        self.sizes = [len(weight) for weight in weights]
        self._input: torch.Tensor | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    def part(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """The result of the layer `index` for (..., width)."""
        if self._input is not hidden or index not in self._waiting:
            self._input, self._waiting = hidden, dict(enumerate(self.layer(hidden).split(self.sizes, -1)))
        result = self._waiting.pop(index)
        if not self._waiting:
            self._input = None
        return result


class FusedLinearPart(nn.Module):
    """One of the layers of a `FusedLinear`."""

    def __init__(self, fused: FusedLinear, index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    @property
    def bias(self) -> torch.Tensor | None:
        """Its part of the bias (outputs,), which adapters around it ask for."""
        bias = self.fused.layer.bias
        return bias.split(self.fused.sizes)[self.index] if isinstance(bias, torch.Tensor) else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type of the input."""
        return self.fused.part(self.index, hidden)


def quantize_(module: nn.Module, kind: str, within: str = "") -> int:
    """Convert every matrix of `module`, or of its part `within`, to `kind` in place, except adapters.

    Returns the bytes that a step reads of them.
    """
    if kind not in KINDS:
        raise UserError(f"There is no precision {kind!r} of weights.", f"Choose one of: {', '.join(KINDS)}.")
    part = module.get_submodule(within)
    found = {".".join(filter(None, (within, name))): layer for name, layer in part.named_modules()
             if type(layer) in (nn.Linear, Linear) and _ADAPTERS not in name}
    for names in _groups_of_same_input(found):
        weights, biases = [found[name].weight for name in names], [found[name].bias for name in names]
        converted: list[nn.Module]
        if len(names) == 1:
            converted = [KINDS[kind](weights[0], biases[0])]
        else:
            fused = FusedLinear(weights, kind, biases)
            converted = [FusedLinearPart(fused, index) for index in range(len(names))]
        for name, layer in zip(names, converted, strict=True):
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, layer)
    part = module.get_submodule(within)  # a head is another module now
    return sum(value.numel() * value.element_size() for value in (*part.parameters(), *part.buffers()))


def _groups_of_same_input(layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """The names of layers in groups with the same input; an adapter around a layer has that input too."""
    groups: dict[str, list[str]] = {}
    for name in layers:
        parts = name.split(".")
        at = next((index for index, part in enumerate(parts) if part in _SAME_INPUT), None)
        group = name if at is None else ".".join([*parts[:at], _SAME_INPUT[parts[at]]])
        groups.setdefault(group, []).append(name)
    return list(groups.values())
