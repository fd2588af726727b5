"""How a clip that was cut is made ready: noise taken off where that is asked for, one rate, one loudness.

Loudness is that of `data.level`; noise goes by the spectral gate of noisereduce
(Sainburg et al. 2020), by what the recording's pauses sound like.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr

from data.level import gain_to, loudness
from data.voice_activity import RATE


@dataclass(frozen=True)
class Finish:
    """`sample_rate` 0 keeps the recording's own; `lufs` None the loudness it has."""

    sample_rate: int = 0
    lufs: float | None = -23.0
    denoise: bool = False


def finished(samples: np.ndarray, rate: int, finish: Finish, noise: np.ndarray) -> tuple[np.ndarray, int]:
    """A clip (S,) at `rate` Hz, and `noise` at 16 kHz, to the clip as it is kept, and its rate."""
    if finish.denoise and len(noise) >= RATE // 4 and len(samples):
        samples = _without_noise(samples, rate, noise)
    wanted = finish.sample_rate or rate
    if wanted != rate:
        samples = soxr.resample(samples, rate, wanted, quality="VHQ").astype(np.float32)
    return (samples if finish.lufs is None else at_loudness(samples, wanted, finish.lufs)), wanted


def at_loudness(samples: np.ndarray, rate: int, lufs: float) -> np.ndarray:
    """The clip at this loudness, or as near as its peak allows: it is never clipped. Silence stays."""
    measured = loudness(samples, rate)
    if measured is None:
        return samples
    return (samples * gain_to(lufs, measured, float(np.abs(samples).max()))).astype(np.float32)


def _without_noise(samples: np.ndarray, rate: int, noise: np.ndarray) -> np.ndarray:
    import noisereduce  # slow to load, and seldom asked for

    sound = soxr.resample(noise, RATE, rate, quality="HQ") if rate != RATE else noise
    made = noisereduce.reduce_noise(y=samples, sr=rate, y_noise=sound, stationary=True, prop_decrease=0.9)
    return np.asarray(made, dtype=np.float32)
