"""Sharding of what scope `full` trains, by torch's FSDP2.

Trained weights, their gradients and the optimizer's moments are sharded over the ranks. A pass gathers the weights of
one block after the other and frees them (Zhao et al. 2023, arXiv:2304.11277), so all ranks take each pass together.
Rank 0 also has a full copy of the model, into which the trained weights are gathered before it evaluates or saves. A
checkpoint holds full tensors, like one that a single process writes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from core.model.loading import TTSModel
from models.base import LanguageModel, Losses, TokenLogits


class ShardedModel(nn.Module):
    """The forward passes of a sharded language model, as methods that FSDP can hook; all ranks call each of them."""

    def __init__(self, lm: LanguageModel) -> None:
        super().__init__()
        self.module, self._lm = lm.module, lm

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """A mapping, in which FSDP finds the tensors that the backward pass begins with."""
        return dict(vars(self._lm.losses(*args, **kwargs)))

    def losses(self, *args: Any, **kwargs: Any) -> Losses:
        """`LanguageModel.losses`."""
        return Losses(**self(*args, **kwargs))

    def predictions(self, *args: Any, **kwargs: Any) -> TokenLogits:
        """`LanguageModel.predictions`."""
        return self._lm.predictions(*args, **kwargs)


def shard_model(tts: TTSModel, mesh: DeviceMesh, *, guided: bool,
                keep_whole: bool) -> tuple[TTSModel, ShardedModel]:
    """`tts` sharded over `mesh`, and its forward passes; `guided`: with the guided attention loss.

    Only trained parameters are sharded. `keep_whole`: shard a copy, which shares the frozen tensors with `tts`.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # it takes seconds to load

    lm = copy.copy(tts.lm)
    frozen = {value for value in lm.module.parameters() if not value.requires_grad}
    if keep_whole:
        shared = (*frozen, *lm.module.buffers())
        # `module` is read-only in the protocol; `lm` is our own copy
        lm.module = copy.deepcopy(lm.module, {id(value): value for value in shared})  # type: ignore[misc]
    for block in lm.shardable_layers(guided):
        if any(value.requires_grad for value in block.parameters()):
            fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=frozen)
    passes = ShardedModel(lm)
    # Also the outermost frees its weights after each pass: those gathered for a teacher's pass have other values.
    fully_shard(passes, mesh=mesh, reshard_after_forward=True, ignored_params=frozen)
    register_fsdp_forward_method(passes, "predictions")
    return replace(tts, lm=lm), passes


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that this process holds of `tensors`."""
    return sum((value.to_local() if hasattr(value, "to_local") else value).nbytes for value in tensors)


def gather_tensors(tensors: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
    """`tensors` with the sharded ones gathered, in the processor's memory; all ranks call it.

    With `keep` False they are empty.
    """
    gathered = {}
    for name, value in tensors.items():
        if hasattr(value, "full_tensor"):
            full = value.full_tensor()
            value = full.cpu() if keep else full.new_empty(0)
        gathered[name] = value
    return gathered


def shard_like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The whole `value` as `parameter` is: itself, or this process's part of it. Other shapes stay as they are."""
    if not hasattr(parameter, "full_tensor") or hasattr(value, "full_tensor") or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    part = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements,
                             src_data_rank=None)
    # A view would keep the whole tensor in memory.
    return part.clone()


@torch.no_grad()
def copy_full_tensors(sharded: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor] | None) -> None:
    """Gather sharded tensors into the whole ones of the same names; ranks other than 0 keep nothing."""
    for name, value in sharded.items():
        full = value.full_tensor()  # type: ignore[attr-defined]
        if into is not None:
            into[name].copy_(full)


def full_value(value: torch.Tensor) -> torch.Tensor:
    """A number that was reduced over sharded tensors, as a plain tensor on its device."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
