"""What torch finds on this machine. Loads torch: the machine check runs it as `python -m core.hardware`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version

import torch

import data.acoustics.audio  # noqa: F401  (fails here if torchaudio does not match torch)


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
    cuda: str  # of torch's build; empty without CUDA
    cores: int
    accelerators: tuple[Accelerator, ...]


def describe() -> Hardware:
    """The machine as torch finds it."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Hardware(
        torch=torch.__version__,
        torchaudio=version("torchaudio"),
        cuda=torch.version.cuda or "",
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
