"""Write the UUIDs of the GPUs in the order in which CUDA counts them, a line each: a program of its own.

Only the driver knows which GPU it takes for the fastest. Who asks it can fork no CUDA process any more, so
`core.jobs.gpus` runs this beside itself. It makes no context and takes no memory of a GPU.
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
    found = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetUuid(ctypes.byref(name), device):
            return []
        found.append(f"GPU-{uuid.UUID(bytes=bytes(name))}")
    return found


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all are counted
    try:
        sys.stdout.write("\n".join(uuids(ctypes.CDLL(_LIBRARY))) + "\n")
    except OSError:
        sys.exit(1)
