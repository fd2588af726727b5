"""Matrix products by the fastest backend of the processor at hand; the backends agree to rounding.

torch multiplies float32 matrices on a CPU by MKL, which leaves AVX-512 unused on AMD; oneDNN, in the same torch, does
not. On two cores of an EPYC with AVX-512 and weights of 4096 x 1024, 1600 rows are multiplied at 202 against 87
GFLOP/s in float32; on another, and where MKL uses AVX-512, the two are nearly alike. Few rows take as long as their
weights take to be read: they are multiplied by `models.cpu_loops`. A call of oneDNN costs 11 us, of MKL 2, so that
small products are MKL's on every processor. Results that must be bit-identical have to come from the same backend:
which one is a matter of the shapes alone, but for the attention of vocoders, which is measured once on a machine. On a
GPU everything here is torch's own.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import timeit
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from data.durable_files import write_json

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_HAS_AVX512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
_SMALL = 2**20  # multiplications below which the call takes longer than the product
_FEW_ROWS = 16
# With AVX-512 oneDNN takes 2 to 5 times as long for 16 to 47 rows by 4096 x 1024 (two cores of an EPYC); by weights
# with fewer outputs than their width it is faster.
_FEW_ROWS_OF_MANY_OUTPUTS = 48 if _HAS_AVX512 else _FEW_ROWS
_LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "LD_PRELOAD")  # variables that limit libraries
_MEASURED_SHAPE = (1, 4, 750, 64)  # shape of attention
_MAX_TIME_RATIO = 0.85  # if the two are nearly alike, it is always the fused kernel
_LOOP_WIDTH = 32  # half of `models.cpu_loops.WIDTH_UNIT`


class Linear(nn.Linear):
    """`nn.Linear`, by the backend of `linear`."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., outputs)."""
        return linear(rows, self.weight, self.bias)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (..., width) by weight (N, width), plus bias (N,): (..., N).

    On a CPU, in float32 and without gradients, by the compiled loops if the rows are few, else by oneDNN.
    """
    if uses_loops(rows, weight, bias):
        from models.cpu_loops import multiply  # Numba takes half a second

        result = multiply(rows.reshape(-1, rows.shape[-1]).contiguous(), [weight], [bias])
        return result.view(*rows.shape[:-1], len(weight))
    if (_HAS_ONEDNN and _is_plain(rows, weight) and rows.numel() * len(weight) >= _SMALL
            and (rows.numel() >= _FEW_ROWS * rows.shape[-1] or torch.compiler.is_compiling())):
        return product(rows, weight, bias)
    return F.linear(rows, weight, bias)


def uses_loops(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               kind: torch.dtype = torch.float32, fewer_than: int | None = None) -> bool:
    """Whether rows (..., width) are multiplied by weights (N, width) of the type `kind` with `models.cpu_loops`.

    They are for fewer than `fewer_than` rows, by default as many as the loops multiply faster than oneDNN, and if the
    call takes no longer than the product.
    """
    if fewer_than is None:
        fewer_than = _FEW_ROWS if len(weight) < rows.shape[-1] else _FEW_ROWS_OF_MANY_OUTPUTS
    is_small = rows.numel() < fewer_than * rows.shape[-1] and rows.numel() * len(weight) >= _SMALL
    if not is_small or type(rows) is not torch.Tensor or torch.compiler.is_compiling():
        return False  # many, fake or traced
    if not _is_plain(rows, weight, kind):
        return False  # another type
    fits = rows.shape[-1] == weight.shape[1] and not weight.shape[1] % _LOOP_WIDTH and weight.is_contiguous()
    return fits and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == rows.dtype
                                      and bias.is_contiguous()))


def _is_plain(rows: torch.Tensor, weight: torch.Tensor, kind: torch.dtype = torch.float32) -> bool:
    """Whether both are on the CPU, rows float32 and weights of the type `kind`, and no gradients are needed."""
    types = (rows.device.type, weight.device.type, rows.dtype, weight.dtype)
    return types == ("cpu", "cpu", torch.float32, kind) and not torch.is_grad_enabled()


@dataclass(frozen=True)
class SeenKeys:
    """Which keys of each row `attend` reads on a GPU: the first ones, whose number is a tensor that a graph can read.

    Flash attention takes the lengths; where it does not run, a mask is added to the scores.
    """

    lengths: torch.Tensor  # (B,) int32
    offsets: torch.Tensor  # (B + 1,) int32, of each row's first key if the rows are joined
    mask: torch.Tensor | None  # (B, 1, 1, F), 0 or -inf

    @classmethod
    def of(cls, lengths: torch.Tensor, frames: int, dtype: torch.dtype) -> SeenKeys:
        """The first `lengths` (B,) int32 of `frames` keys, for queries of the type `dtype`."""
        offsets = _row_offsets(len(lengths), frames, lengths.device)
        if dtype in (torch.bfloat16, torch.float16) and _has_flash_attention(lengths.device):
            return cls(lengths, offsets, None)
        unseen = torch.arange(frames, device=lengths.device) >= lengths[:, None, None, None]
        return cls(lengths, offsets, torch.zeros_like(unseen, dtype=dtype).masked_fill_(unseen, -torch.inf))


def _row_offsets(rows: int, frames: int, device: torch.device) -> torch.Tensor:
    return torch.arange(rows + 1, device=device, dtype=torch.int32) * frames


@lru_cache
def _has_flash_attention(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _attend_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: SeenKeys) -> torch.Tensor:
    """`attend` by the kernel for rows of different lengths; torch's own functions do not pass the lengths on."""
    rows, _, queries, _ = query.shape
    keys = key.shape[2]
    offsets = seen.offsets if queries == keys else _row_offsets(rows, queries, query.device)
    joined = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))  # (B * F, H, D)
    mixed: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *joined, offsets, seen.offsets, queries, keys, 0.0, False, False, seqused_k=seen.lengths)[0]
    return mixed.unflatten(0, (rows, queries)).transpose(1, 2)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: SeenKeys | None = None) -> torch.Tensor:
    """Scaled dot-product attention over (B, H, F, D); on a GPU, to those keys that are `seen`.

    In bfloat16 on a CPU, separate products, row by row, take two thirds to four fifths of the time of torch's fused
    kernel (the scores of more than a row do not fit into the processor's cache). In float32 with AVX-512 they take two
    thirds of it, head by head, on one EPYC and five fourths on another, so that the faster of the two is measured. With
    AVX2 alone, where oneDNN's products are no faster than MKL's, the fused kernel is ahead: 43 against 50 ms for 2 x 8
    x 750 x 64, 111 against 153 for 1291 frames.
    """
    if seen is not None:
        if seen.mask is None:
            return _attend_flash(query, key, value, seen)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen.mask)
    if query.device.type == "cpu":
        if query.dtype == torch.bfloat16:
            return _attend_by_products(query, key, value, by_head=False)
        if (query.dtype == torch.float32 and _HAS_ONEDNN and _HAS_AVX512 and not torch.is_grad_enabled()
                and type(query) is torch.Tensor and _products_attend_faster()):
            return _attend_by_products(query, key, value, by_head=True)
    return F.scaled_dot_product_attention(query, key, value)


def _attend_by_products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, by_head: bool) -> torch.Tensor:
    """`attend` by two products and a softmax for each row of the batch, or each of its heads."""
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


def _products_attend_faster() -> bool:
    """Whether float32 attention by products is clearly faster here than torch's fused kernel; see `_measured_ratio`.

    Remembered in the user's cache for this processor, number of threads and build of torch, so that sound has the same
    bits in every process.
    """
    from llvmlite import binding

    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ]
    return _remembered_choice(", ".join((binding.get_host_cpu_name(), *limits, f"{torch.get_num_threads()} threads",
                                         f"torch {torch.__version__}")))


@lru_cache
def _remembered_choice(key: str) -> bool:
    path, choices = _remembered_choices(), {}
    with suppress(OSError, ValueError, TypeError):  # missing or damaged
        choices = dict(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(choices.get(key), bool):
        choices[key] = _measured_ratio() < _MAX_TIME_RATIO
        with suppress(OSError):  # else each process measures
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, choices, sync=False)
    return bool(choices[key])


def _remembered_choices() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lisan", "attention.json")


def _measured_ratio() -> float:
    """How many times as long attention by products takes as the fused kernel, the median of pairs (0.2 s in all)."""
    tensor = torch.zeros(_MEASURED_SHAPE, device="cpu", dtype=torch.float32)

    def seconds(attention: Callable[[], torch.Tensor]) -> float:
        return timeit.timeit(attention, number=1)

    ratios = [seconds(lambda: _attend_by_products(tensor, tensor, tensor, by_head=True))
              / seconds(lambda: F.scaled_dot_product_attention(tensor, tensor, tensor)) for _ in range(10)]
    return statistics.median(ratios[1:])


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` can be packed for oneDNN once, instead of at each product.

    bfloat16 is packed only for processors that multiply it: with plain AVX-512 oneDNN emulates it, and elsewhere it
    raises an error.
    """
    has_packing = _HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return has_packing and (dtype is not torch.bfloat16 or _multiplies_bfloat16())


def _multiplies_bfloat16() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and (torch.cpu._is_avx512_bf16_supported()
                                                             or torch.cpu._is_amx_tile_supported())


def pack(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Weights (N, width) in oneDNN's own layout, for products of about `rows` rows; only `product` can read them."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    return packed


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows (..., width) by weights (N, width) of the same type, plain or packed, by oneDNN: (..., N)."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return result
