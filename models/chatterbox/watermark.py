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

_SHORTEST_S = 0.1  # the watermark lives in a spectrogram; a shorter sound has too little of it


def marked(waveform: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """Waveform (S,) with the watermark in it, of the same length."""
    if len(waveform) < _SHORTEST_S * sample_rate:
        return waveform
    made = torch.from_numpy(_watermarker().apply_watermark(waveform.float().numpy(), sample_rate=sample_rate))
    return torch.nn.functional.pad(made, (0, max(0, len(waveform) - len(made))))[:len(waveform)].to(waveform.dtype)


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
            from perth import PerthImplicitWatermarker

            return PerthImplicitWatermarker()
    except (ImportError, TypeError) as error:  # the package sets a name it could not import to None
        raise UserError(
            f"The watermark cannot be made: the package resemble-perth does not load ({error}).",
            "Install it: pip install -r requirements.txt. Or switch the watermark off.",
        ) from error
