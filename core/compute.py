"""Device, threads, determinism and free memory of a process that computes."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from config.errors import UserError
from core import machine, wait_policy


def setup_device(choice: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`; sets one thread per physical core, and how threads wait.

    OMP_NUM_THREADS overrides the number of threads, and `wait_policy.VARIABLES` how they wait. Algorithms are
    deterministic on a CPU, for which bit-identical results are claimed: on a GPU they slow the write of every key and
    value, and fill every new tensor.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device that torch can use.", "Choose the device `auto` or `cpu`.")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(physical_cores())
    if torch.get_num_threads() > 1:
        wait_policy.start()
    device = torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(device.type == "cpu", warn_only=True)
    return device


def trim_memory() -> None:
    """Hand freed memory of the heap back to the system, which glibc else keeps for the next time."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    # musl, the library of Alpine, has no malloc_trim.
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@contextmanager
def deterministic() -> Iterator[None]:
    """Context with deterministic algorithms on any device, for a comparison of bits."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic, warn_only=True)


def physical_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = cpu_capabilities().get("num_physical_cores") or allowed
    return max(1, min(allowed, int(physical)))


def reads_bfloat16_fast() -> bool:
    """Whether a step with bfloat16 weights is faster than with float32 ones, although it widens them.

    It is with AVX2 or AVX-512 where `models.cpu_loops` has threads (Linux); AVX2 was measured on a processor with both.
    """
    return sys.platform == "linux" and torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512"))


def cpu_capabilities() -> Mapping[str, Any]:
    """What the processor has, as torch tells it, or Linux where torch (2.8) does not."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else machine.cpu_capabilities()


def device_name(device: torch.device) -> str:
    """The model name of the GPU or processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return str(cpu_capabilities().get("cpu_name") or platform.machine())


def numeric_environment(device: torch.device) -> str:
    """What the last bits of a result depend on: device, torch's build, and on a CPU vector width and threads."""
    if device.type == "cuda":
        return f"{device_name(device)}, torch {torch.__version__}"
    count = torch.get_num_threads()
    return (f"{device_name(device)} ({torch.backends.cpu.get_cpu_capability()}), {count} "
            f"thread{'s' if count > 1 else ''}, "
            f"torch {torch.__version__}")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process may still take on `device`; None where that cannot be known.

    On a GPU they include what the pools of captured graphs have free, which other tensors cannot take.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return machine.free_memory()


@dataclass(frozen=True)
class Accelerator:
    """One CUDA device. `bfloat16`: supported by the hardware, not emulated by torch."""

    name: str
    capability: str  # such as "9.0"
    memory_gib: float
    bfloat16: bool


@dataclass(frozen=True)
class Hardware:
    """Versions, cores and CUDA devices."""

    torch: str
    torchaudio: str
    # The CUDA version of torch's build; empty without CUDA.
    cuda: str
    # The architectures that torch was built for, such as sm_90; empty without CUDA.
    architectures: tuple[str, ...]
    cores: int
    accelerators: tuple[Accelerator, ...]


def describe() -> Hardware:
    """The machine as torch finds it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Hardware(
        torch=torch.__version__,
        torchaudio=version("torchaudio"),
        cuda=torch.version.cuda or "",
        architectures=tuple(torch.cuda.get_arch_list()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        accelerators=tuple(_accelerator(index) for index in range(count)),
    )


def _accelerator(index: int) -> Accelerator:
    properties = torch.cuda.get_device_properties(index)
    return Accelerator(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        memory_gib=round(properties.total_memory / 2**30, 1),
        bfloat16=properties.major >= 8,  # `torch.cuda.is_bf16_supported()` is true by emulation on a T4
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(describe())) + "\n")
