"""Resemble AI's Perth watermark, which every published output of Chatterbox carries: inaudible, and found again later.

The package brings its own weights. It is imported on use: it takes seconds.
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

_BEFORE_S, _HELD_S = 0.2, 0.02
_SHORTEST_S = 0.1  # the watermark lives in a spectrogram; a shorter sound has too little of it


def marked(waveform: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """Waveform (S,) with the watermark in it, of the same length."""
    if len(waveform) < _SHORTEST_S * sample_rate:
        return waveform
    made = torch.from_numpy(_watermarker().apply_watermark(waveform.float().numpy(), sample_rate=sample_rate))
    return torch.nn.functional.pad(made, (0, max(0, len(waveform) - len(made))))[:len(waveform)].to(waveform.dtype)


class Marking:
    """The watermark in sound that comes in pieces: each is marked with what was before it, and faded into it."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._before = torch.zeros(0)  # unmarked
        self._held = torch.zeros(0)  # marked, and not handed out yet

    def push(self, piece: torch.Tensor, last: bool = False) -> torch.Tensor:
        """A piece (n,) to marked samples (S,); all but the last one hold back 20 ms."""
        together = torch.cat([self._before, piece])
        fresh = marked(together, self._sample_rate)[len(self._before) - len(self._held):]
        ramp = torch.linspace(0, 1, len(self._held) + 2)[1:-1]
        fresh = torch.cat([torch.lerp(self._held, fresh[:len(self._held)], ramp), fresh[len(self._held):]])
        hold = 0 if last else min(len(fresh), round(_HELD_S * self._sample_rate))
        self._before = together[-round(_BEFORE_S * self._sample_rate):]
        self._held = fresh[len(fresh) - hold:]
        return fresh[:len(fresh) - hold]


def found(waveform: torch.Tensor, sample_rate: int) -> bool:
    """Whether a waveform (S,) carries it."""
    with torch.no_grad():
        return bool(_watermarker().get_watermark(waveform.float().numpy(), sample_rate=sample_rate).mean() > 0.5)


@lru_cache(maxsize=1)
def _watermarker() -> Any:
    try:
        # It prints what it loads, draws weights before it reads them, and is kept for later calls of any mode.
        with (contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]),
              torch.inference_mode(mode=False), warnings.catch_warnings()):
            warnings.simplefilter("ignore")  # of the package's own old-fashioned imports
            import_librosa()  # the package imports it too
            from perth import PerthImplicitWatermarker

            return PerthImplicitWatermarker()
    except (ImportError, TypeError) as error:  # the package sets a name it could not import to None
        raise UserError(
            f"The watermark cannot be made: the package resemble-perth does not load ({error}).",
            "Install it: pip install -r requirements.txt. Or switch the watermark off.",
        ) from error
