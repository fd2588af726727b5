"""Print the UUIDs of the GPUs in CUDA's order, one a line: a separate program.

Only the driver knows which GPU it counts as the fastest (NVML and nvidia-smi count by PCI bus). A process that has
asked it can no longer fork processes that use CUDA, so `core.jobs.gpus` runs this as a child. It makes no context and
takes no GPU memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from typing import Any

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def uuids(driver: Any) -> list[str]:
    """As nvidia-smi writes them; empty where the driver does not answer."""
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    names = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetUuid(ctypes.byref(name), device):
            return []
        names.append(f"GPU-{uuid.UUID(bytes=bytes(name))}")
    return names


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all are counted
    try:
        sys.stdout.write("\n".join(uuids(ctypes.CDLL(_LIBRARY))) + "\n")
    except OSError:
        sys.exit(1)
