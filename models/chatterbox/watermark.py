"""Resemble AI's Perth watermark: inaudible and detectable; every published output of Chatterbox carries it.

The package contains its weights. It is imported on first use, which takes seconds.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from functools import lru_cache
from typing import Any

import torch

from config.errors import UserError
from data.augmentation import import_librosa

_CONTEXT_S, _FADE_S = 0.2, 0.02
_MIN_DURATION_S = 0.1  # the watermark is in the spectrogram, of which a shorter waveform has too little


def add_watermark(waveform: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """Waveform (S,) with the watermark, of the same length."""
    if len(waveform) < _MIN_DURATION_S * sample_rate:
        return waveform
    marked = torch.from_numpy(_watermarker().apply_watermark(waveform.float().numpy(), sample_rate=sample_rate))
    return torch.nn.functional.pad(marked, (0, max(0, len(waveform) - len(marked))))[:len(waveform)].to(waveform.dtype)


class StreamingWatermark:
    """The watermark for a waveform in chunks: each is marked together with its predecessor and cross-faded."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._context = torch.zeros(0)  # end of the waveform so far, without watermark
        self._held_back = torch.zeros(0)  # marked, for the next cross-fade

    def push(self, chunk: torch.Tensor, last: bool = False) -> torch.Tensor:
        """A chunk (n,) to marked samples (S,); all but the last one hold back 20 ms."""
        together = torch.cat([self._context, chunk])
        fade = len(self._held_back)
        marked = add_watermark(together, self._sample_rate)[len(self._context) - fade:]
        ramp = torch.linspace(0, 1, fade + 2)[1:-1]
        marked = torch.cat([torch.lerp(self._held_back, marked[:fade], ramp), marked[fade:]])
        hold = 0 if last else min(len(marked), round(_FADE_S * self._sample_rate))
        self._context = together[-round(_CONTEXT_S * self._sample_rate):]
        self._held_back = marked[len(marked) - hold:]
        return marked[:len(marked) - hold]


def has_watermark(waveform: torch.Tensor, sample_rate: int) -> bool:
    """Whether a waveform (S,) has the watermark."""
    with torch.no_grad():
        return bool(_watermarker().get_watermark(waveform.float().numpy(), sample_rate=sample_rate).mean() > 0.5)


@lru_cache(maxsize=1)
def _watermarker() -> Any:
    try:
        # It prints, uses the random generator to initialise, and is reused by calls in any mode.
        with (contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]),
              torch.inference_mode(mode=False), warnings.catch_warnings()):
            warnings.simplefilter("ignore")  # of the package's deprecated imports
            import_librosa()  # the package imports it too
            from perth import PerthImplicitWatermarker

            return PerthImplicitWatermarker()
    except (ImportError, TypeError) as error:  # the package sets a name it could not import to None
        raise UserError(
            f"The watermark cannot be made: the package resemble-perth does not load ({error}).",
            "Install it: pip install -r requirements.txt. Or switch the watermark off.",
        ) from error
