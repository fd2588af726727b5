"""Memory: the peak of a computation, and the plan by which a training step fits into memory.

On CUDA the allocator counts. On a CPU every tensor that an operation returns is counted while it is alive; what an
operation allocates internally is not.
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
from config.schema import HardwareOptions

_STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes that `work` allocates at its peak, beyond those that were allocated before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - allocated
    with _LiveTensors() as live:
        work()
    return live.peak


def peak_since_last_call(device: torch.device) -> tuple[int | None, str]:
    """Peak memory in bytes, and what it counts: `gpu` (tensors since the last call) or `process` (since its start).

    That of the process is its resident memory (VmHWM on Linux), including libraries and model.
    """
    if device.type != "cuda":
        return _process_peak(), "process"
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak, "gpu"


class _LiveTensors(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside it and alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # A view or an in-place result shares its input's memory, which is counted already.
        input_storages = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs))
                          if isinstance(tensor, torch.Tensor)}
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in input_storages:
                self._count(tensor.untyped_storage())
        return outputs

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
    """Peak resident bytes; None if the system does not report them. getrusage would include the parent's peak."""
    if not _STATUS.is_file():
        return None
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else None


@dataclass(frozen=True)
class MicrobatchPlan:
    """How a step is computed. Its samples do not depend on it, and its result only by rounding."""

    splits: int = 1  # micro-batches that each batch is split into
    activation_checkpointing: bool = False  # activations are recomputed in the backward pass

    def micro_batch_size(self, batch_size: int) -> int:
        """Clips in a micro-batch, at most."""
        return -(-batch_size // self.splits)

    def halved(self, batch_size: int) -> MicrobatchPlan | None:
        """The plan with micro-batches of half the size; None if they have a single clip already."""
        return replace(self, splits=self.splits * 2) if self.micro_batch_size(batch_size) > 1 else None


def first_plan(options: HardwareOptions, *, sharded: bool, saved: MicrobatchPlan = MicrobatchPlan()) -> MicrobatchPlan:
    """The plan that a run begins with, or resumes with after `saved`. A sharded run never changes its plan.

    `activation_checkpointing` `auto` means on in a sharded run, because sharding is chosen when memory is short.
    """
    auto = options.activation_checkpointing == "auto" and (sharded or saved.activation_checkpointing)
    return MicrobatchPlan(1 if sharded else saved.splits, options.activation_checkpointing == "on" or auto)


def sharded_out_of_memory(step: int) -> UserError:
    """The error of a sharded run that ran out of memory at `step`."""
    return UserError(
        f"Out of memory at step {step}. A sharded run cannot change the size of its micro-batches, because all ranks "
        "compute each of them together.",
        "Start a run with half the batch_size and twice the gradient_accumulation, which takes the same steps.")


def plan_after_out_of_memory(plan: MicrobatchPlan, batch_size: int, options: HardwareOptions,
                             step: int) -> tuple[MicrobatchPlan, str]:
    """The plan after `step` ran out of memory, and a warning; `UserError` if there is no smaller plan.

    Micro-batches are halved first, and activation checkpointing is switched on when they have a single clip. Before the
    first step (`run_plan.fit_memory_plan`) the order is the reverse, because checkpointing changes no rounding. Here a
    batch of unusually long clips may be the reason, and smaller micro-batches cost less time than recomputing the
    activations of every later step.
    """
    smaller = plan.halved(batch_size)
    if smaller is None and not plan.activation_checkpointing and options.activation_checkpointing == "auto":
        smaller = replace(plan, activation_checkpointing=True)
    if smaller is None:
        raise UserError(
            f"Out of memory at step {step}, with micro-batches of a single clip.",
            "Close what else uses the device, leave out the longest clips, or train where there is more memory.")
    change = "activation checkpointing" if smaller.splits == plan.splits else (
        f"micro-batches of {smaller.micro_batch_size(batch_size)} clips instead of "
        f"{plan.micro_batch_size(batch_size)}")
    return smaller, (f"Out of memory at step {step}: {change} from here on. The step is repeated with the same "
                     "samples.")
