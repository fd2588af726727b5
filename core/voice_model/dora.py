"""DoRA (Liu et al. 2024, arXiv:2402.09353) as a variant of peft's layers. Imports peft: to be imported on use.

A layer's output is `scale * (W x + s B A x)` with one scale a row: its learnt magnitude over the norm of that row
of `W + s B A`. peft computes the norms from a dense `W + s B A` at every product, in the type of the activations;
here they are in float32, from the factors, once for as long as no factor changes. So they are there, too, when the
weights have been packed into another form for speaking.
"""

from __future__ import annotations

import torch
from peft.tuners.lora.variants import DoraLinearVariant
from torch import nn


class RememberedDora(DoraLinearVariant):
    """The variant of one layer."""

    def __init__(self) -> None:
        self._norm: torch.Tensor | None = None  # (outputs,)
        self._seen: tuple[object, ...] = ()

    def forward(self, module, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **_: object) -> torch.Tensor:
        """Rows (..., width) whose base product is `result` (..., outputs) to (..., outputs)."""
        factors = module.lora_B[active_adapter](module.lora_A[active_adapter](module.lora_dropout[active_adapter](x)))
        bias = getattr(module.get_base_layer(), "bias", None)
        plain = result if bias is None else result - bias
        made = self.scale(module, active_adapter) * (plain + factors * module.scaling[active_adapter])
        return made if bias is None else made + bias

    def scale(self, module, active_adapter: str) -> torch.Tensor:
        """(outputs,), with a gradient for the magnitude alone: the paper takes the norm as a constant."""
        return module.lora_magnitude_vector[active_adapter].weight / self._norms(module, active_adapter)

    @torch.compiler.disable
    def _norms(self, module, active_adapter: str) -> torch.Tensor:
        first, second = module.lora_A[active_adapter].weight, module.lora_B[active_adapter].weight
        weight = getattr(module.get_base_layer(), "weight", None)
        plain = weight if isinstance(weight, nn.Parameter) else None  # it is not when it has been packed
        kind = self._seen[3:] if plain is None else (plain.dtype,)
        seen = (first._version, second._version, first.device, *kind)
        if self._norm is None or seen != self._seen:
            assert plain is not None, "the norms are wanted before the weights are packed"
            self._norm, self._seen = _row_norms(plain, first, second, module.scaling[active_adapter]), seen
        return self._norm


def _row_norms(weight: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scaling: float) -> torch.Tensor:
    """Norms (outputs,) of the rows of `weight + scaling * second @ first`, in float32, without that matrix."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        plain, a, b = weight.detach().float(), first.detach().float(), second.detach().float()
        crossed = ((plain @ a.T) * b).sum(1)
        added = ((b @ (a @ a.T)) * b).sum(1)
        return (plain.square().sum(1) + 2 * scaling * crossed + scaling**2 * added).clamp(min=0).sqrt()
