"""The machine that this process runs on: memory, checks, and whose rented machine it is. Never loads torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MEMINFO, _CGROUP, _CPUINFO = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/cpuinfo")
_OWN_GROUP = Path("/proc/self/cgroup")


def free_memory() -> int | None:
    """Bytes that a process may still take; None where that cannot be known."""
    sizes = [size for size in (_in_system("MemAvailable"), _free_in_container()) if size is not None]
    return min(sizes, default=None)


def total_memory() -> int | None:
    """Bytes of memory of the machine, or of the container where that has less; None where it cannot be known."""
    sizes = [size for size in (_in_system("MemTotal"), _container_limit()) if size is not None]
    return min(sizes, default=None)


def _in_system(field: str) -> int | None:
    """A field of /proc/meminfo; MemAvailable is Linux's own estimate of what can be taken without swapping."""
    if not _MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    return int(lines[field].split()[0]) * 1024 if field in lines else None


def count_oom_kills() -> int:
    """How many processes of this control group were killed because its memory was full; 0 if that is not known."""
    for path in (_CGROUP / _own_group() / "memory.events", _CGROUP / "memory.events",
                 _CGROUP / "memory" / "memory.oom_control"):
        try:
            fields = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _own_group() -> str:
    """The path of this process's control group of version 2; empty if it has none."""
    try:
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")


def _container_limit() -> int | None:
    """What a control group of version 2 allows; None without a limit."""
    path = _CGROUP / "memory.max"
    limit = path.read_text().strip() if path.is_file() else "max"
    return None if limit == "max" else int(limit)


def _free_in_container() -> int | None:
    """What a control group of version 2 leaves, files that it only caches not counted; None without a limit."""
    files = [_CGROUP / name for name in ("memory.current", "memory.stat")]
    limit = _container_limit()
    if limit is None or not all(path.is_file() for path in files):
        return None
    used, numbers = (path.read_text().strip() for path in files)
    cached = dict(line.split() for line in numbers.splitlines()).get("inactive_file", "0")
    return max(0, limit - int(used) + int(cached))


def cpu_capabilities() -> dict[str, object]:
    """What Linux tells of the processor, under the names of `torch.cpu.get_capabilities`, which torch 2.8 lacks."""
    entries = [dict(_pair(line) for line in entry.splitlines() if ":" in line)
               for entry in (_CPUINFO.read_text() if _CPUINFO.is_file() else "").strip().split("\n\n")]
    cpu_entry = entries[0]
    cores = {(entry.get("physical id"), entry["core id"]) for entry in entries if "core id" in entry}
    capabilities: dict[str, object] = dict.fromkeys(cpu_entry.get("flags", cpu_entry.get("Features", "")).split(),
                                                    True)
    return {**capabilities, "cpu_name": cpu_entry.get("model name", ""), "num_physical_cores": len(cores)}


def allowed_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Physical cores that this process may use, as Linux counts them."""
    return max(1, min(allowed_cores(), int(str(cpu_capabilities()["num_physical_cores"])) or allowed_cores()))


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


@dataclass(frozen=True)
class MachineCheck:
    """One row of `core.machine_check`: what was checked, its status, what was found, and what to do about it."""

    name: str
    result: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""


@dataclass(frozen=True)
class Platform:
    """A rented machine. `address`: what a browser must open, empty where only the platform's own page knows it."""

    name: str
    address: str
    note: str  # the one thing that differs there
    listens_on_all: bool = False  # its proxy comes from outside of the machine, so the app must not listen on loopback


def detect_platform(port: int, environment: Mapping[str, str] = os.environ) -> Platform | None:
    """The platform that the environment variables name, with the address of `port`; None on any other machine.

    Lightning's variables and addresses are those of its packages (lightning.app, litdata), Runpod's of its
    documentation, Colab's of google.colab.output, a Space's of the hub's documentation.
    """
    host = environment.get("LIGHTNING_CLOUDSPACE_HOST", "")
    space = environment.get("LIGHTNING_CLOUD_SPACE_ID")
    if not host and space:
        host = f"{space}.cloudspaces.litng.ai"
    if host:
        return Platform("Lightning studio", f"https://{port}-{host}",
                        "A switch of machine and the sleep end every process. `python -m scripts lightning install` "
                        "starts the app with the studio, and its jobs go on.", listens_on_all=True)

    # Notebooks have no port of their own.
    if "COLAB_RELEASE_TAG" in environment or "COLAB_GPU" in environment:
        return Platform("Colab", "",
                        f"Run in a cell: from google.colab import output; output.serve_kernel_port_as_window({port}). "
                        "The disk is deleted with the runtime: download exports before.")
    if "KAGGLE_KERNEL_RUN_TYPE" in environment:
        return Platform("Kaggle", "", "No port can be reached from outside: start the app with --share and a "
                                      "sign-in. Only /kaggle/working is kept, and only in a saved version.")
    pod = environment.get("RUNPOD_POD_ID")
    if pod:
        return Platform("Runpod", f"https://{pod}-{port}.proxy.runpod.net",
                        f"Port {port} must stand in the pod's list of HTTP ports. Only /workspace (the volume) "
                        "outlives a stop.", listens_on_all=True)
    host = environment.get("SPACE_HOST", "")
    if host:
        return Platform("Hugging Face Space", f"https://{host}",
                        "The disk is deleted at each restart unless the Space has storage.", listens_on_all=True)
    connection = environment.get("SSH_CONNECTION", "").split()
    if connection:
        server = connection[2] if len(connection) > 2 else "this-machine"
        user = environment.get("USER") or environment.get("LOGNAME") or "you"
        return Platform("SSH", f"http://127.0.0.1:{port}",
                        f"First, on your own machine: ssh -N -L {port}:127.0.0.1:{port} {user}@{server}")
    return None
