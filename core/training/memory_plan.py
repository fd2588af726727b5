"""Memory: what a computation takes at its peak, and how a step is split so that it fits.

On CUDA the allocator counts. On a processor every tensor that an operation makes is counted
while it lives; what an operation needs inside is not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from config.errors import UserError
from config.schema import TrainOptions

_STATUS = Path("/proc/self/status")
_GIB = 2**30


def format_bytes(size: float) -> str:
    """Such as `5.1 GiB`, and in MiB below a tenth of one."""
    return f"{size / _GIB:.1f} GiB" if size >= 0.1 * _GIB else f"{size / 2**20:.0f} MiB"


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes that `work` takes at its peak beyond those that are taken before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _LiveTensors() as live:
        work()
    return live.peak


def peak_since_last_call(device: torch.device) -> tuple[int | None, str]:
    """Bytes at the peak, and of what: tensors on the `gpu` since the last call, or the `process` since its start.

    The process's is its resident memory (VmHWM on Linux), with the libraries and the model in it.
    """
    if device.type != "cuda":
        return _process_peak(), "process"
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most, "gpu"


class _LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors made inside it that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs))
                 if isinstance(tensor, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.now -= size


def _process_peak() -> int | None:
    """None where the system does not tell it. getrusage's would hold the peak of whoever started this process."""
    if not _STATUS.is_file():
        return None
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


@dataclass(frozen=True)
class MicrobatchPlan:
    """How a step is computed; neither its samples nor, but for rounding, its result depend on it."""

    splits: int = 1  # micro-batches that each batch is split into
    activation_checkpointing: bool = False  # activations are recomputed in the backward pass

    def size(self, batch_size: int) -> int:
        """Clips in a micro-batch."""
        return -(-batch_size // self.splits)

    def halved(self, batch_size: int) -> MicrobatchPlan | None:
        """Micro-batches of half the size; None when they have a single clip already."""
        return replace(self, splits=self.splits * 2) if self.size(batch_size) > 1 else None


def first_plan(options: TrainOptions, *, sharded: bool, before: MicrobatchPlan = MicrobatchPlan()) -> MicrobatchPlan:
    """The plan that a run begins with, or resumes with after `before`; a sharded run has the same throughout.

    Whoever shards is short of memory, so `auto` is on there.
    """
    auto = options.activation_checkpointing == "auto" and (sharded or before.activation_checkpointing)
    return MicrobatchPlan(1 if sharded else before.splits, options.activation_checkpointing == "on" or auto)


def plan_after_out_of_memory(plan: MicrobatchPlan, options: TrainOptions, step: int, *,
                             sharded: bool) -> tuple[MicrobatchPlan, str]:
    """After `step` ran out of memory: micro-batches of half the size; with single clips, activation checkpointing.

    The order is not that of the first plan. There the peak is measured, and checkpointing, which changes no rounding,
    is tried first. Here a batch of unusually long clips may be the reason: smaller micro-batches cost less time than
    recomputing the activations of every later step.
    The plan and the warning; `UserError` where there is no smaller plan.
    """
    if sharded:
        raise UserError(
            f"Out of memory at step {step}. A sharded run cannot make its micro-batches smaller on the way: all ranks "
            "take each of them.",
            "Start a run with half the batch_size and twice the gradient_accumulation, which takes the same steps.")
    smaller = plan.halved(options.batch_size)
    if smaller is None and not plan.activation_checkpointing and options.activation_checkpointing == "auto":
        smaller = replace(plan, activation_checkpointing=True)
    if smaller is None:
        raise UserError(
            f"Out of memory at step {step}, with micro-batches of a single clip.",
            "Close what else uses the device, leave out the longest clips, or train where there is more memory.")
    change = "activation checkpointing" if smaller.splits == plan.splits else (
        f"micro-batches of {smaller.size(options.batch_size)} clips instead of {plan.size(options.batch_size)}")
    return smaller, (f"Out of memory at step {step}: {change} from here on. The step is taken again with the same "
                     "samples.")
