"""Pictures of sound: log-mel spectrograms that read well on a dark and on a light page.

Drawn by matplotlib without a display. Clips that stand side by side share one time scale.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from data.acoustics import audio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#8a8a8a"  # contrast of at least 3 against black and against white
_SIZE_INCHES, _DPI = (6.4, 2.2), 120
_RANGE = 7.0  # natural logarithms of amplitude below the loudest that are shown, about 60 dB


def save(path: Path, waveform: torch.Tensor, sample_rate: int, duration_s: float | None = None) -> None:
    """Draw waveform (S,) as PNG over `duration_s` seconds (default: its own length)."""
    path.write_bytes(draw(waveform, sample_rate, duration_s))


def draw(waveform: torch.Tensor, sample_rate: int, duration_s: float | None = None) -> bytes:
    """See `save`; the picture as bytes of a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    own_s = max(len(waveform) / sample_rate, 1e-3)
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    figure.patch.set_alpha(0.0)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    mel = _log_mel(waveform, sample_rate)
    axes.imshow(mel, origin="lower", aspect="auto", cmap="magma", interpolation="nearest",
                extent=(0.0, own_s, 0.0, len(mel)), vmin=mel.max() - _RANGE, vmax=mel.max())
    axes.set_xlim(0.0, duration_s or own_s)
    _label(axes, len(mel), sample_rate)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _settings(sample_rate: int) -> audio.MelSettings:
    return replace(audio.MelSettings(), sample_rate=sample_rate, f_max=sample_rate / 2)


def _log_mel(waveform: torch.Tensor, sample_rate: int) -> np.ndarray:
    settings = _settings(sample_rate)
    short = max(0, settings.n_fft - len(waveform))
    padded = torch.nn.functional.pad(waveform.float(), (0, short))
    frames = max(1, len(waveform) // settings.hop_length)
    return audio.log_mel(padded[None], settings)[0, :, :frames].numpy()


def _label(axes: Axes, bands: int, sample_rate: int) -> None:
    centres = _centres(sample_rate)
    wanted = [hz for hz in (250, 500, 1000, 2000, 4000, 8000, 16000) if hz <= centres[-1]]
    axes.set_yticks(np.interp(wanted, centres, np.arange(bands) + 0.5), [f"{hz:,}" for hz in wanted])
    axes.set_xlabel("Time (s)", color=_INK)
    axes.set_ylabel("Frequency (Hz)", color=_INK)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.patch.set_alpha(0.0)
    for spine in axes.spines.values():
        spine.set_color(_INK)


def _centres(sample_rate: int) -> Sequence[float]:
    """Frequency in Hz at which each mel band answers most."""
    settings = _settings(sample_rate)
    peaks = audio.mel_filterbank(settings).argmax(0).numpy()
    return np.maximum.accumulate(peaks * sample_rate / settings.n_fft + np.arange(len(peaks)) * 1e-6).tolist()
