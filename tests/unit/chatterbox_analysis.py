"""What the published package made of the sounds of `tests.reference.clips`, and how near ours must come."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.reference.clips import voiced

SEED = 11
LENGTHS = (9600, 31999, 83333, 192001)  # samples at 16 kHz
STATES, MEL = 1e-4, 1e-5  # of the largest value


@lru_cache(maxsize=1)
def reference() -> dict[str, torch.Tensor]:
    return load_file(Path(__file__).parents[1] / "reference" / "chatterbox" / "analysis.safetensors")


def clip(samples: int, pitch_hz: float = 140.0) -> torch.Tensor:
    return torch.from_numpy(voiced(samples, 16000, pitch_hz))


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())
