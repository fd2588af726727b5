"""Reproducible random weights: for comparisons with reference implementations, and for tests.

Two implementations that are filled with the same random weights can be compared without a checkpoint of gigabytes. An
entry depends only on the seed, its state-dict key and its shape; its scale keeps activations in a natural range
through deep networks.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import nn


def tensor(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The array of one state-dict key: float32, except the int64 counter of batches, which is zero."""
    kind = key.rpartition(".")[2]
    if kind == "num_batches_tracked":
        return np.zeros(shape, dtype=np.int64)
    start = int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:8], "little")
    normal = np.random.Generator(np.random.PCG64(start)).standard_normal(size=shape, dtype=np.float32)
    values = np.asarray(normal, dtype=np.float32)
    match kind:
        case "running_var":
            return np.asarray(0.5 + np.abs(values), dtype=np.float32)
        case "running_mean":
            return np.asarray(0.1 * values, dtype=np.float32)
        case "original0" | "weight_g":  # magnitude of a weight-normalised layer, in torch's new and old form
            return np.asarray(0.6 + 0.1 * np.abs(values), dtype=np.float32)
        case "alpha":  # frequency of a Snake activation
            return np.asarray(1.0 + 0.1 * np.abs(values), dtype=np.float32)
        case "bias":
            return np.asarray(0.02 * values, dtype=np.float32)
    if len(shape) < 2:  # gains and scalars
        return np.asarray(1.0 + 0.1 * values, dtype=np.float32)
    return np.asarray(values / np.float32(math.sqrt(math.prod(shape[1:]))), dtype=np.float32)


@torch.no_grad()
def fill(module: nn.Module, seed: int, prefix: str = "", skip: tuple[str, ...] = ()) -> None:
    """Overwrite the entries of `module.state_dict()` in place, named `prefix + key`, but for keys in `skip`."""
    for key, value in module.state_dict().items():
        if key not in skip:
            value.copy_(torch.from_numpy(tensor(prefix + key, tuple(value.shape), seed)))
