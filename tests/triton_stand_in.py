"""What the kernels of `models.triton_kernels` compute, by torch's operations, on the very tensors that they are given.

`tests.emulated_cuda` records them in its graphs, which Triton's own kernels would not pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


class Kernel:
    """Launched as a kernel is: with a grid in brackets, then with its arguments."""

    def __init__(self, compute: Callable[..., None]) -> None:
        self.compute, self.launches = compute, 0

    def __getitem__(self, grid: object) -> Callable[..., None]:
        self.launches += 1
        return self.compute


def linear(rows: torch.Tensor, gain: Any, shift: Any, *given: Any, WIDTH: int, PARTS: int, NORM: int,
           ACTIVATION: int, **_: object) -> None:
    """`_few_rows` and `_many_rows`."""
    weights, biases, (residual, made, _count, _outputs, epsilon) = given[:3], given[3:6], given[6:]
    vectors = rows.float()
    if NORM and shift is not None:
        vectors = F.layer_norm(vectors, (WIDTH,), gain.float(), shift.float(), epsilon)
    elif NORM:
        vectors = F.rms_norm(vectors, (WIDTH,), gain.float(), epsilon)
    totals = []
    for weight, bias in list(zip(weights, biases, strict=True))[:2 if ACTIVATION == 2 else PARTS]:
        total = vectors @ weight.float().T
        totals.append(total if bias is None else total + bias.float())
    if ACTIVATION == 2:
        totals = [F.silu(totals[0]) * totals[1]]
    result = torch.cat(totals, 1)
    if ACTIVATION == 1:
        result = F.gelu(result, approximate="tanh")
    if residual is not None:
        result = result + residual.float()
    made.copy_(result)


def attend(joined: torch.Tensor, cosines: Any, sines: Any, keys: torch.Tensor, values: torch.Tensor,
           positions: torch.Tensor, mixed: torch.Tensor, rotated: Any, row_stride: int, head_stride: int,
           scale: float, *, HEADS: int, SIZE: int, **_: object) -> None:
    """`_attend`."""
    query, key, value = joined.view(len(joined), 3, HEADS, SIZE).float().unbind(1)
    if cosines is not None:
        cosine, sine = cosines[positions][:, None].float(), sines[positions][:, None].float()
        query, key = (one * cosine + one.roll(SIZE // 2, -1) * sine for one in (query, key))
    at = positions[:, None, None, None].expand(-1, HEADS, 1, SIZE)
    keys.scatter_(2, at, key[:, :, None].to(keys.dtype))
    values.scatter_(2, at, value[:, :, None].to(values.dtype))
    query = query.to(keys.dtype)
    if rotated is not None:
        rotated.copy_(query.flatten(1))
    scores = (keys.float() @ (query.float() * scale)[..., None])[..., 0]
    after = torch.arange(keys.shape[2], device=keys.device) > positions[:, None]
    weights = scores.masked_fill(after[:, None], -torch.inf).softmax(-1)
    mixed.copy_((weights[:, :, None] @ values.float()).flatten(1))
