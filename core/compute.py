"""Device, threads and repeatability of the process that computes; decided here and nowhere else."""

from __future__ import annotations

import os
import platform

import torch

from config.errors import UserError


def prepare(asked: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`, with one thread a physical core and repeatable algorithms.

    A thread count in OMP_NUM_THREADS is kept.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device that torch can use.", "Choose the device `auto` or `cpu`.")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads())
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu")


def threads() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = torch.cpu.get_capabilities().get("num_physical_cores") or allowed
    return max(1, min(allowed, int(physical)))


def name(device: torch.device) -> str:
    """What the maker calls the GPU or the processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())


def conditions(device: torch.device) -> str:
    """On what the last bits of a result depend: device, torch's build, and on a CPU vector width and threads."""
    if device.type == "cuda":
        return f"{name(device)}, torch {torch.__version__}"
    count = torch.get_num_threads()
    return (f"{name(device)} ({torch.backends.cpu.get_cpu_capability()}), {count} thread{'s' if count > 1 else ''}, "
            f"torch {torch.__version__}")
