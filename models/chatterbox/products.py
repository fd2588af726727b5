"""Products of the flow's estimator in the form that is fastest on the processor at hand; they agree to rounding.

On a GPU everything here is torch's own. On a CPU, see `models.linear` for float32. An AMD EPYC with AVX-512 takes
7.9 ms of processor time for 1500 x 256 x 1024 by MKL, 3.8 ms by oneDNN, and 2.2 ms in bfloat16.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from models.linear import can_pack, product


def as_image(frames: torch.Tensor) -> torch.Tensor:
    """(B, F, C) as (B, C, 1, F) with channels last in memory: the same numbers, not copied."""
    return frames[:, None].permute(0, 3, 1, 2)


def as_frames(image: torch.Tensor) -> torch.Tensor:
    """The reverse of `as_image`."""
    return image[:, :, 0].transpose(1, 2)


def linear(frames: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Frames (..., C) by weight (N, C), plus bias (N,): (..., N)."""
    if _by_onednn(frames):
        return product(frames, weight, bias)
    return F.linear(frames, weight, bias)


def _by_onednn(frames: torch.Tensor) -> bool:
    return frames.device.type == "cpu" and frames.dtype == torch.float32 and not torch.is_grad_enabled() and can_pack()


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Scaled dot-product attention over (B, H, F, D); keep (B, 1, 1, F) is False on keys that are padding.

    Torch's fused kernel for CPUs takes 30 ms of processor time for 2 x 8 x 750 x 64, in bfloat16 too; separate
    products take 20 ms in float32, head by head, and 13 ms in bfloat16, row by row (the scores of more at a time
    would not stay in the processor's cache).
    """
    whole = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    by_head = _by_onednn(query)
    if not whole and not by_head:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    # oneDNN takes a thousand times as long for weights that lie apart in memory
    query, key, value = (query / math.sqrt(query.shape[-1])).contiguous(), key.contiguous(), value.contiguous()
    mixed = torch.empty_like(query)
    for row in range(query.shape[0]):
        hide = None if keep is None else ~keep[row, 0]  # (1, F)
        if by_head:
            for head in range(query.shape[1]):
                scores = _shares(linear(query[row, head], key[row, head]), hide)  # (F, F)
                mixed[row, head] = linear(scores, value[row, head].t())
        else:
            torch.matmul(_shares(query[row] @ key[row].transpose(-1, -2), hide), value[row], out=mixed[row])
    return mixed


def _shares(scores: torch.Tensor, hide: torch.Tensor | None) -> torch.Tensor:
    return (scores if hide is None else scores.masked_fill_(hide, -math.inf)).softmax(-1)
