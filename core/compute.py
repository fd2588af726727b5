"""Device, threads and repeatability of the process that computes; decided here and nowhere else."""

from __future__ import annotations

import os
import platform
from pathlib import Path

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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def conditions(device: torch.device) -> str:
    """On what the last bits of a result depend: device, number of threads, and the build of torch."""
    count = torch.get_num_threads()
    return f"{name(device)}, {count} thread{'s' if count > 1 else ''}, torch {torch.__version__}"
