"""The NVIDIA GPUs of this machine as their driver's own program tells of them. Never loads torch.

`nvidia-smi` comes with the driver, so that nothing is installed for this; a machine without it has no GPU to use.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free,utilization.gpu",
          "--format=csv,noheader,nounits")
_PATIENCE_S = 10.0
_FRESH_S = 15.0
Probe = Callable[[], tuple["Gpu", ...]]


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment."""

    index: int
    uuid: str
    name: str
    total_mib: int
    free_mib: int
    load: int | None  # percent of the last moments in which it computed; None: it does not tell

    @property
    def total_gib(self) -> float:
        return self.total_mib / 1024

    @property
    def free_gib(self) -> float:
        return self.free_mib / 1024


def look() -> tuple[Gpu, ...]:
    """The GPUs that a job started from here could use; none without a driver, or when it does not answer."""
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible(parse(said.stdout), os.environ)


def parse(text: str) -> tuple[Gpu, ...]:
    """The lines of `nvidia-smi` with the fields of `_QUERY`; a line that says no sizes is left out."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 6 and parts[0].isdigit() and parts[3].isdigit() and parts[4].isdigit():
            load = int(parts[5]) if parts[5].isdigit() else None
            found.append(Gpu(int(parts[0]), parts[1], parts[2], int(parts[3]), int(parts[4]), load))
    return tuple(found)


def visible(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; as with CUDA, the first name that is unknown ends it."""
    asked = environment.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return gpus
    found: list[Gpu] = []
    for word in (part.strip() for part in asked.split(",")):
        gpu = next((one for one in gpus if word == str(one.index) or (word.startswith("GPU-")
                                                                      and one.uuid.startswith(word))), None)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


class Seen:
    """What `probe` saw, asked again when it is older than some seconds: a page asks every second."""

    def __init__(self, probe: Probe = look, fresh_s: float = _FRESH_S) -> None:
        self._probe, self._fresh_s = probe, fresh_s
        self._guard = threading.Lock()
        self._when: float | None = None
        self._gpus: tuple[Gpu, ...] = ()

    def __call__(self) -> tuple[Gpu, ...]:
        with self._guard:
            if self._when is None or time.monotonic() - self._when > self._fresh_s:
                self._gpus, self._when = self._probe(), time.monotonic()
            return self._gpus
