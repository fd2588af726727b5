"""A linear layer that is twice as fast on some processors, for the models that all families share.

torch multiplies float32 matrices on a processor by MKL, which leaves AVX-512 unused on AMD;
oneDNN, in the same torch, does not. Two cores of an EPYC with AVX-512, weights of 4096 x 1024:
2 rows in 0.58 against 1.75 ms, 1600 rows at 202 against 87 GFLOP/s. Both are float32
throughout. What must equal another product to the bit is to be computed by the same one.
"""

from __future__ import annotations

import torch
from torch import nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """`nn.Linear`, by oneDNN where no gradient is wanted and all is float32 on a processor."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs)."""
        if (_HAS_ONEDNN and not torch.is_grad_enabled() and rows.device.type == "cpu"
                and rows.dtype == self.weight.dtype == torch.float32 and rows.numel()):
            return product(rows, self.weight, self.bias)
        return super().forward(rows)


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Whether weights of `dtype` can be laid out for oneDNN once, instead of at each product.

    In bfloat16 oneDNN wants AVX-512 (or AVX-NE-CONVERT); elsewhere its call is an error.
    """
    known = _HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return known and (dtype is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Weights (N, width) in oneDNN's own layout for products of about `rows` rows; only `product` can read them."""
    laid_out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return laid_out


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (..., width) by weights (N, width) of the same type, plain or packed, by oneDNN: (..., N)."""
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return made
