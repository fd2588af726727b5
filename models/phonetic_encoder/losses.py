"""States of the phonetic encoder in batches and with gradients: targets of a codec's training, and a loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from data.acoustics import audio
from models.phonetic_encoder.encoder import PhoneticEncoder, sinusoids

FLOOR = 1e-10  # The least power, before the logarithm.


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


def phonetic_distance(encoder: PhoneticEncoder, decoded: torch.Tensor, target: torch.Tensor,
                      layers: int) -> torch.Tensor:
    """Squared distance of the states of two built-in log-mels (B, 80, F), relative to the variance of the target's.

    The mean over the convolutions and `layers` layers.
    """
    states_of_decoded, states_of_target = (states(encoder, from_log_mel(mel), layers) for mel in (decoded, target))
    distances = []
    for decoded_states, target_states in zip(states_of_decoded, states_of_target, strict=True):
        variance = (target_states.float() - target_states.float().mean(1, keepdim=True)).square().mean()
        distances.append((decoded_states.float() - target_states.float()).square().mean() / variance)
    return torch.stack(distances).mean()
