"""Integrated loudness of a clip (ITU-R BS.1770-4, by pyloudnorm), and the gain to a target.

The filters have the standard's coefficients at 48 kHz (B. De Man 2014; pyloudnorm's default ones differ by 0.1 dB). The
meter gets whole blocks only, since the standard counts no other.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyloudnorm

PEAK_CEILING = 10 ** (-1 / 20)  # of full scale, -1 dB (EBU R 128): gain never goes beyond it
OUTPUT_PEAK = 0.99  # of full scale: limit of synthesized and augmented audio
_BLOCK_S, _HOP_S = 0.4, 0.1
_SILENT_LUFS = -70.0  # the absolute gate of BS.1770


def integrated_loudness(samples: NDArray[np.float32], rate: int) -> float | None:
    """Loudness of (S,) in LUFS; None for silence. A clip shorter than 0.4 s is one block."""
    blocks = int((len(samples) / rate - _BLOCK_S) / _HOP_S + 1 + 1e-6)
    if blocks > 0:
        meter = _meter(rate, _BLOCK_S)
        samples = samples[:round((_BLOCK_S + _HOP_S * (blocks - 1)) * rate)]
    elif len(samples):
        meter = _meter.__wrapped__(rate, (len(samples) - 0.5) / rate)  # half a sample less, so that rounding fits
    else:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the mean of no block, in silence
        value = float(meter.integrated_loudness(samples.astype(np.float64)))
    return value if value > _SILENT_LUFS else None


def gain_to(lufs: float, measured: float, peak: float) -> float:
    """The factor that brings a clip of this loudness and peak to `lufs`, or as near as its peak allows."""
    gain = 10 ** ((lufs - measured) / 20)
    return min(gain, max(PEAK_CEILING / peak, 1.0)) if peak else 1.0


@lru_cache(maxsize=8)
def _meter(rate: int, block_s: float) -> pyloudnorm.Meter:
    import pyloudnorm  # on use: it takes scipy

    return pyloudnorm.Meter(rate, filter_class="DeMan", block_size=block_s)
