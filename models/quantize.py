"""Smaller weights for decoding on a CPU: a step reads all weights, so fewer bytes are less time.

`speech_network.quantize_decoding_` converts the matrices that a step reads, those of the layers and of the speech
head, to bfloat16, or to int8 with one scale per row. The cache of keys and values is bfloat16 then; attention over it
is float32, and so are embeddings, norms and activations (but see `BFloat16Linear`). `python -m
scripts.dev.benchmark` measures the loss of accuracy. The conversion is permanent: load the model again to train it or
to prove anything about it.

Rows are multiplied with int8 weights by `models.cpu_loops`, rounded to 16-bit integers, and their products are summed
exactly. Nearly all of the error is thus the rounding of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models.matmul_backends import Linear, can_pack, linear, pack, product, uses_loops

_ADAPTERS = "lora_"
_PACKED_ROWS = 4  # rows from which packed weights are faster than the loops, by a third with 8 rows
_WIDENED_ROWS = 48  # rows from which weights that are widened first are faster than the loops
_SAME_INPUT = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gated", "up_proj": "gated"}


class BFloat16Linear(nn.Module):
    """A linear layer with bfloat16 weights on a CPU.

    Few rows are multiplied by `models.cpu_loops`, in float32. Where the processor multiplies bfloat16, more of them,
    and small products, are rounded to it and multiplied by a second, packed copy of the weights, so that a text alone
    is rounded less than among others. On other processors all is float32, and more rows widen the weights at each
    call. The copy is made once: tensors that are loaded into the layer later do not reach it.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().to(torch.bfloat16).contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        packs = can_pack(self.weight.dtype) and self.weight.device.type == "cpu"
        self._packed = pack(self.weight, _PACKED_ROWS) if packs else None

    def uses_loops(self, rows: torch.Tensor) -> bool:
        """Whether rows (..., width) are multiplied by `models.cpu_loops`."""
        max_rows = _WIDENED_ROWS if self._packed is None else _PACKED_ROWS
        return uses_loops(rows, self.weight, self.bias, torch.bfloat16, max_rows)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type of the input."""
        rows = hidden.float()
        if self.uses_loops(rows):
            from models.cpu_loops import multiply

            result = multiply(rows.reshape(-1, rows.shape[-1]).contiguous(), [self.weight], [self.bias])
            return result.view(*hidden.shape[:-1], len(self.weight)).to(hidden.dtype)
        if self._packed is None:
            return linear(rows, self.weight.float(), self.bias).to(hidden.dtype)
        bias = None if self.bias is None else self.bias.to(torch.bfloat16)
        return product(hidden.to(torch.bfloat16), self._packed, bias).to(hidden.dtype)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights on a CPU; the result of a row does not depend on the other rows.

    The weights (outputs, padded width) have one scale for each output.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        from models.cpu_loops import MAX_WEIGHT, WIDTH_UNIT  # Numba takes half a second

        scale = weight.detach().abs().amax(1).clamp(min=1e-12).float() / MAX_WEIGHT
        rounded = (weight.detach() / scale[:, None]).round().clamp(-MAX_WEIGHT, MAX_WEIGHT).to(torch.int8)
        self.register_buffer("scale", scale)
        self.register_buffer("weight", F.pad(rounded, (0, -weight.shape[1] % WIDTH_UNIT)))
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self.width = weight.shape[1]

    @torch.no_grad()
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs), in the type of the input."""
        from models.cpu_loops import multiply

        assert hidden.shape[-1] == self.width
        rows = hidden.reshape(-1, self.width).float().contiguous()
        result = multiply(rows, [self.weight], [self.bias], [self.scale])
        return result.view(*hidden.shape[:-1], len(self.weight)).to(hidden.dtype)


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
    layers = {".".join(filter(None, (within, name))): layer for name, layer in part.named_modules()
             if type(layer) in (nn.Linear, Linear) and _ADAPTERS not in name}

    # Layers with the same input are fused, so that a step reads their weights in one product.
    for names in _groups_of_same_input(layers):
        weights, biases = [layers[name].weight for name in names], [layers[name].bias for name in names]
        converted: list[nn.Module]
        if len(names) == 1:
            converted = [KINDS[kind](weights[0], biases[0])]
        else:
            fused = FusedLinear(weights, kind, biases)
            converted = [FusedLinearPart(fused, index) for index in range(len(names))]
        for name, layer in zip(names, converted, strict=True):
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, layer)
    # A head is another module now, so the part is looked up again.
    part = module.get_submodule(within)
    return sum(value.numel() * value.element_size() for value in (*part.parameters(), *part.buffers()))


def is_quantized(module: Any) -> bool:
    """Whether a part of it was converted by `quantize_`."""
    return any(isinstance(part, tuple(KINDS.values())) for part in module.modules())


def _groups_of_same_input(layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """The names of layers in groups with the same input; an adapter around a layer has that input too."""
    groups: dict[str, list[str]] = {}
    for name in layers:
        parts = name.split(".")
        index = next((number for number, part in enumerate(parts) if part in _SAME_INPUT), None)
        group = name if index is None else ".".join([*parts[:index], _SAME_INPUT[parts[index]]])
        groups.setdefault(group, []).append(name)
    return list(groups.values())
