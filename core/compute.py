"""Device, threads and determinism of a process that computes."""

from __future__ import annotations

import os
import platform

import torch

from config.errors import UserError


def setup_device(choice: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`; sets one thread per physical core and deterministic algorithms.

    OMP_NUM_THREADS overrides the number of threads.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device that torch can use.", "Choose the device `auto` or `cpu`.")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(physical_cores())
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = torch.cpu.get_capabilities().get("num_physical_cores") or allowed
    return max(1, min(allowed, int(physical)))


def device_name(device: torch.device) -> str:
    """The model name of the GPU or processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())


def numeric_environment(device: torch.device) -> str:
    """What the last bits of a result depend on: device, torch's build, and on a CPU vector width and threads."""
    if device.type == "cuda":
        return f"{device_name(device)}, torch {torch.__version__}"
    count = torch.get_num_threads()
    return (f"{device_name(device)} ({torch.backends.cpu.get_cpu_capability()}), {count} "
            f"thread{'s' if count > 1 else ''}, "
            f"torch {torch.__version__}")
