"""States of the shipped phonetic encoder, in batches and with gradients: targets and a loss for the codec."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from data.acoustics import audio
from models.phonetic_encoder.encoder import PhoneticEncoder, sinusoids

FLOOR = 1e-10  # of the power, before the logarithm


def states(encoder: PhoneticEncoder, mel: torch.Tensor, layers: int) -> list[torch.Tensor]:
    """Whisper's log-mel (B, 80, F) to states (B, F / 2, 512) after the stem and each of `layers` layers."""
    hidden = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).transpose(1, 2)
    outputs = [hidden + sinusoids(hidden.shape[1]).to(hidden)]
    for layer in encoder.layers[:layers]:
        outputs.append(layer(outputs[-1]))
    return outputs


def whisper_mel(waveform: torch.Tensor) -> torch.Tensor:
    """Log-mel of (B, S) at 16 kHz as Whisper takes it: (B, 80, S // 160)."""
    window = torch.hann_window(400, device=waveform.device)
    filters = audio.slaney_filters(16000, 400, 80, 8000.0).to(waveform.device)
    power = audio.mel_power(waveform, filters, window, 160)[..., :-1]
    return _scaled(power.clamp(min=FLOOR).log10())


def from_log_mel(mel: torch.Tensor) -> torch.Tensor:
    """About Whisper's log-mel (B, 80, F), from the built-in log-mel (B, 80, F), whose windows are twice as long.

    The constant is the mean difference of the two over recordings; the standard deviation is 0.5 of a decade.
    """
    return _scaled(2 * mel / math.log(10) + 0.4)


def _scaled(logs: torch.Tensor) -> torch.Tensor:
    loudest = logs.amax((1, 2), keepdim=True)
    return (torch.maximum(logs, loudest - 8) + 4) / 4
