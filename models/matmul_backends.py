"""Matrix products by the fastest backend of the processor at hand; the backends agree to rounding.

torch multiplies float32 matrices on a CPU by MKL, which leaves AVX-512 unused on AMD; oneDNN, in the same torch, does
not. On two cores of an EPYC with AVX-512 and weights of 4096 x 1024: 2 rows in 0.58 against 1.75 ms, 1600 rows at 202
against 87 GFLOP/s, both in float32. Where MKL uses AVX-512, it takes 0.7 to 0.8 of oneDNN's time for up to 8 rows, and
the two are alike beyond. A call of oneDNN costs 11 us, of MKL 2, so that small products are MKL's on every processor.
Results that must be bit-identical have to come from the same backend: which one is a matter of the shapes, and of a
measurement whose outcomes lie far apart. On a GPU everything here is torch's own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_HAS_MKL = torch.backends.mkl.is_available()
_HAS_AVX512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
_SMALL = 2**20  # multiplications below which the call takes longer than the product
_FEW_ROWS = 16
_SLOW = 1.3  # of torch's time over oneDNN's: 1.79 to 1.86 where MKL leaves AVX-512 unused, 0.26 to 0.97 elsewhere


class Linear(nn.Linear):
    """`nn.Linear`, by oneDNN for float32 on a CPU without gradients."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs)."""
        if (_HAS_ONEDNN and not torch.is_grad_enabled() and rows.device.type == "cpu"
                and rows.dtype == self.weight.dtype == torch.float32 and _prefers_onednn(rows, self.weight)):
            return product(rows, self.weight, self.bias)
        return _by_torch(rows, self.weight, self.bias)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (..., width) by weight (N, width), plus bias (N,): (..., N); by oneDNN as in `Linear`."""
    by_onednn = _uses_onednn(rows) and _prefers_onednn(rows, weight)
    return product(rows, weight, bias) if by_onednn else _by_torch(rows, weight, bias)


def _by_torch(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if rows.numel() == rows.shape[-1] and rows.numel() * len(weight) >= _SMALL and _HAS_MKL and _uses_onednn(rows):
        # MKL's product for one row takes 11 to 17% longer than its product for two rows (told that it is on an Intel).
        made = F.linear(rows.reshape(1, -1).expand(2, -1), weight, bias)[:1]
        return made.reshape(*rows.shape[:-1], len(weight))
    return F.linear(rows, weight, bias)


def _uses_onednn(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and not torch.is_grad_enabled() and can_pack()


def _prefers_onednn(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN multiplies rows (..., width) by weights (N, width) faster than torch's own product."""
    if rows.numel() * len(weight) < _SMALL:
        return False
    return rows.numel() >= _FEW_ROWS * rows.shape[-1] or torch.compiler.is_compiling() or _torch_is_slow()


@lru_cache(maxsize=1)
def _torch_is_slow() -> bool:
    """Whether torch's product of two rows takes much longer here than oneDNN's, by a measurement of 5 to 20 ms.

    On one thread: on two they waited for each other beside other programs, and with AVX2 the ratio was 1.22 to 1.29.
    """
    rows, weight = torch.ones(2, 1024), torch.ones(1024, 1024)
    products: tuple[Callable[..., torch.Tensor], ...] = (F.linear, product)
    best, threads = [math.inf, math.inf], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(10):
            for index, multiply in enumerate(products):
                started = time.perf_counter()
                multiply(rows, weight)
                best[index] = min(best[index], time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return best[0] > _SLOW * best[1]


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Scaled dot-product attention over (B, H, F, D).

    With AVX-512, torch's fused CPU kernel takes 30 ms of processor time for 2 x 8 x 750 x 64, also in bfloat16;
    separate products take 20 ms in float32, head by head, and 13 ms in bfloat16, row by row (the scores of more than
    that do not fit into the processor's cache). With AVX2 alone, where oneDNN's products are no faster than MKL's, the
    fused kernel is ahead: 43 against 50 ms for 750 frames, 111 against 153 for 1291.
    """
    by_row = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    by_head = _uses_onednn(query) and _HAS_AVX512
    if not by_row and not by_head:
        return F.scaled_dot_product_attention(query, key, value)
    # oneDNN takes a thousand times as long for weights that are not contiguous
    query, key, value = (query / math.sqrt(query.shape[-1])).contiguous(), key.contiguous(), value.contiguous()
    mixed = torch.empty_like(query)
    for row in range(query.shape[0]):
        if by_head:
            for head in range(query.shape[1]):
                weights = linear(query[row, head], key[row, head]).softmax(-1)  # (F, F)
                mixed[row, head] = linear(weights, value[row, head].t())
        else:
            torch.matmul((query[row] @ key[row].transpose(-1, -2)).softmax(-1), value[row], out=mixed[row])
    return mixed


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Whether weights of `dtype` can be packed for oneDNN once, instead of at each product.

    In bfloat16 oneDNN needs AVX-512 (or AVX-NE-CONVERT); elsewhere the call raises an error.
    """
    known = _HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return known and (dtype is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Weights (N, width) in oneDNN's own layout, for products of about `rows` rows; only `product` can read them."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return packed


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (..., width) by weights (N, width) of the same type, plain or packed, by oneDNN: (..., N)."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return result
