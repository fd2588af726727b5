"""Sounds from formulas, the same wherever they are made, so that no audio is stored beside reference outputs."""

from __future__ import annotations

import numpy as np


def voiced(samples: int, sample_rate: int, pitch_hz: float = 140.0) -> np.ndarray:
    """A gliding, pulsing voice-like sound (S,) float32, the first eighth and the last sixth of it 50 dB quieter."""
    seconds = np.arange(samples) / sample_rate
    phase = 2 * np.pi * pitch_hz * (seconds - 0.03 * np.cos(2 * np.pi * 0.7 * seconds))
    sound = sum(np.sin(overtone * phase) / overtone for overtone in range(1, 20))
    sound = sound * (0.2 + np.sin(2 * np.pi * 1.9 * seconds) ** 2) + 0.05 * np.sin(9000 * seconds ** 2)
    sound[:samples // 8] *= 0.003
    sound[samples - samples // 6:] *= 0.003
    return (0.2 * sound).astype(np.float32)


def stepped(samples: int, pitch_hz: float) -> np.ndarray:
    """A tone (S,) float32 at 16 kHz whose loudness jumps every 1500 samples over 40 dB: work for a silence trimmer."""
    places = np.arange(samples)
    loudness = 10 ** (-1 - np.sin(places // 1500 * pitch_hz))
    return (0.3 * loudness * np.sin(2 * np.pi * pitch_hz * places / 16000)).astype(np.float32)
