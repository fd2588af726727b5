"""The machine of a measurement: processor, cores, device, load, versions and commit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from core import compute

_ROOT = Path(__file__).resolve().parents[3]
CHANGED = "-dirty"  # after a commit whose files were changed


@dataclass(frozen=True)
class Machine:
    """Recorded at the start; `load` is the average of runnable processes over a minute, this one not yet among them."""

    device: str
    processor: str
    cores: int
    threads: int
    memory_gib: float
    load: float
    torch: str
    commit: str


def describe(device: torch.device) -> Machine:
    """The machine now. The device's name begins with `cpu` or `cuda`."""
    hardware = compute.describe()
    name = f"cuda: {hardware.accelerators[device.index or 0].name}" if device.type == "cuda" else "cpu"
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(name, _processor(), hardware.cores, torch.get_num_threads(), round(pages / 2**30, 1),
                   round(os.getloadavg()[0], 1), hardware.torch, _commit())


def _processor() -> str:
    """Its name, its generation by numbers where Linux tells them, and its relevant instruction sets."""
    flags = compute.cpu_capabilities()
    features = [flag for flag in ("avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "amx_bf16") if flags.get(flag)]
    name, information = compute.device_name(torch.device("cpu")), Path("/proc/cpuinfo")
    lines = information.read_text("utf-8").splitlines() if information.is_file() else []
    numbers = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "cpu family" in numbers:  # virtual machines name many generations alike
        name += f", family {numbers['cpu family']} model {numbers['model']}"
    return f"{name} ({', '.join(features)})" if features else name


def _commit() -> str:
    """Short hash, marked if files other than documents were changed since; empty outside a repository."""
    commands = (["git", "describe", "--always", "--exclude", "*"],
                ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs"])
    try:
        commit, changes = (subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()
                           for command in commands)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + CHANGED if changes else commit
