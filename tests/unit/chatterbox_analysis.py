"""What the published package made of the sounds of `tests.reference.clips`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.reference.clips import voiced

SEED = 11
LENGTHS = (9600, 31999, 83333, 192001)  # samples at 16 kHz
STATES = 1e-4  # relative error of states and vectors, as the conformance command's; rounding alone makes 2e-6


@lru_cache(maxsize=1)
def reference() -> dict[str, torch.Tensor]:
    return load_file(Path(__file__).parents[1] / "reference" / "chatterbox" / "analysis.safetensors")


def clip(samples: int, pitch_hz: float = 140.0) -> torch.Tensor:
    return torch.from_numpy(voiced(samples, 16000, pitch_hz))
