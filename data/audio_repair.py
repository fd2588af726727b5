"""Repairs of a recording: silent ends are trimmed and the level is set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.loudness import gain_to
from data.measures import Measures, Samples

EDGE_SILENCE_S = 0.2  # at each end
TRIM, LEVEL = "trim", "level"
_FADE_S = 0.005


def repair(waveform: Samples, sample_rate: int, measures: Measures, fixes: Sequence[str],
           target_lufs: float) -> Samples:
    """(S,) with `fixes` applied: `trim` to 0.2 s of silence at each end, `level` to `target_lufs` or near it."""
    if TRIM in fixes:
        waveform = _trimmed(waveform, sample_rate, measures)
    if LEVEL in fixes and measures.level_lufs is not None:
        waveform = waveform * np.float32(gain_to(target_lufs, measures.level_lufs, float(np.abs(waveform).max())))
    return waveform.astype(np.float32)


def _trimmed(waveform: Samples, sample_rate: int, measures: Measures) -> Samples:
    begin = max(0, round((measures.silence_start_s - EDGE_SILENCE_S) * sample_rate))
    end = len(waveform) - max(0, round((measures.silence_end_s - EDGE_SILENCE_S) * sample_rate))
    cut = waveform[begin:end].copy()
    fade = np.linspace(0, 1, max(1, round(_FADE_S * sample_rate)), dtype=np.float32)[:len(cut)]
    if begin:
        cut[:len(fade)] *= fade
    if end < len(waveform):
        cut[len(cut) - len(fade):] *= fade[::-1]
    return cut
