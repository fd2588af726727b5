"""Old rows that cannot move: a buffer beside the only parameter, the new rows.

No optimizer, weight decay, momentum, clipping or averaging can touch what is not a
parameter. The old part of every output comes from the very matrix product the base model
makes, at its old shape, so that it stays bit-identical whatever stands beside it. The old
rows may be cast to half precision for a training; the new rows stay in float32.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import nn


class PrefixEmbedding(nn.Module):
    """Embedding of `prefix` (N, width) frozen rows followed by `new` (M, width) trained ones."""

    weight: torch.Tensor  # the prefix, under the name it has in the base

    def __init__(self, prefix: torch.Tensor, new: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", prefix.detach())
        self.new = nn.Parameter(new.clone())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (...,) below N + M to (..., width)."""
        size = len(self.weight)
        old = F.embedding(ids.clamp(max=size - 1), self.weight)
        new = F.embedding((ids - size).clamp(min=0), self.new)
        return torch.where((ids >= size)[..., None], new, old)


class PrefixLinear(nn.Module):
    """Linear head (no bias) of `prefix` (N, width) frozen rows followed by `new` (M, width) trained ones."""

    weight: torch.Tensor  # the prefix, under the name it has in the base

    def __init__(self, prefix: torch.Tensor, new: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", prefix.detach())
        self.new = nn.Parameter(new.clone())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden (..., width) to logits (..., N + M)."""
        return torch.cat([F.linear(hidden, self.weight), F.linear(hidden, self.new.to(hidden.dtype))], -1)


def extend_tables(module: nn.Module, rows: dict[str, torch.Tensor]) -> None:
    """Replace each named table of `module` by its prefix form, with `rows[name]` (M, width) appended."""
    for name, new in rows.items():
        kind = PrefixEmbedding if isinstance(module.get_submodule(name), nn.Embedding) else PrefixLinear
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, kind(module.get_parameter(f"{name}.weight").data, new))


def new_rows(module: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The trained rows of each extended table."""
    return {name: module.get_parameter(f"{name}.new") for name in names}


def base_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of an extended or adapted module that came from the base, by the base's own names."""
    return {name.replace(".base_layer.", "."): value for name, value in module.state_dict().items() if is_of_base(name)}


def is_of_base(name: str) -> bool:
    """Whether a tensor of an extended or adapted module is the base's: neither a new row nor an adapter's."""
    return not name.endswith(".new") and ".lora_" not in name and not is_count(name)


def is_count(name: str) -> bool:
    """Whether a tensor only says how many directions an adapter has, as AdaLoRA's do."""
    return ".ranknum." in name


def hash_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
