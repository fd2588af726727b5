"""Speaker embedding: a unit vector of 256 numbers from a clip at 16 kHz.

The d-vector encoder of Wan et al. 2018 (arXiv:1710.10467) in the form of Resemble AI's Chatterbox (MIT): mel power,
overlapping windows of 1.6 s through three LSTM layers, the last state projected, rectified and scaled to unit length,
and the mean over the windows scaled again. State-dict keys are those of the published `ve.safetensors`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from data.acoustics import audio

SAMPLE_RATE = 16000  # Hz
N_FFT, HOP_LENGTH, N_MELS = 400, 160, 40
WINDOW = 160  # frames
STEP = round(SAMPLE_RATE / 1.3 / WINDOW)  # 77 frames: the published rate of 1.3
COVERAGE = 0.8  # share of the last window that must be covered, else it is left out
WINDOWS_PER_BATCH = 512


class VoiceEncoder(nn.Module):
    """Mel windows -> LSTM -> unit vectors."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.lstm = nn.LSTM(N_MELS, width, num_layers=3, batch_first=True)
        self.proj = nn.Linear(width, width)
        # Scale and offset of the training loss; published with the weights, unused here.
        self.similarity_weight = nn.Parameter(torch.tensor([10.0]))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Mel power (N, WINDOW, N_MELS) to unit vectors (N, width)."""
        _, (last, _) = self.lstm(windows)  # last: (layers, N, width)
        return F.normalize(F.relu(self.proj(last[-1])), dim=-1)

    def embed(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (S,) at 16 kHz to its unit vector (width,); silence at its ends is trimmed."""
        return self.embed_batch([waveform])[0]

    @torch.inference_mode()
    def embed_batch(self, waveforms: Sequence[torch.Tensor]) -> torch.Tensor:
        """Waveforms (S,) at 16 kHz to unit vectors (B, width); the windows of all clips go through the LSTM together.

        A silent clip, or one with less than 201 samples between its silent ends, raises `UserError`.
        """
        clips = [_windows(mel_power(waveform.to(self.proj.weight.device))) for waveform in waveforms]
        vectors = torch.cat([self(batch) for batch in torch.cat(clips).split(WINDOWS_PER_BATCH)])  # (N, width)
        counts = list(map(len, clips))
        means = [rows.mean(0) for rows in vectors.split(counts)]
        return F.normalize(torch.stack(means), dim=-1)


def mel_power(waveform: torch.Tensor) -> torch.Tensor:
    """Mel power (F, N_MELS) of (S,) at 16 kHz between its silent ends."""
    audio.require_samples(waveform, 1, SAMPLE_RATE)
    audio.require_sound(waveform)
    trimmed = audio.trim_silence(waveform)
    audio.require_samples(trimmed, N_FFT // 2 + 1, SAMPLE_RATE)
    filters = audio.slaney_filters(SAMPLE_RATE, N_FFT, N_MELS, 8000.0).to(trimmed.device)
    window = torch.hann_window(N_FFT, device=trimmed.device)
    return audio.mel_power(trimmed[None], filters, window, HOP_LENGTH)[0].T


def _windows(mel: torch.Tensor) -> torch.Tensor:
    """Mel (F, N_MELS) to windows (N, WINDOW, N_MELS), one every STEP frames, the last one padded with zeros."""
    complete = max(len(mel) - WINDOW + STEP, 0) // STEP
    covered = len(mel) - complete * STEP  # frames of one more window
    count = complete + 1 if complete == 0 or covered >= COVERAGE * WINDOW else complete
    length = (count - 1) * STEP + WINDOW
    mel = F.pad(mel, (0, 0, 0, max(length - len(mel), 0)))[:length]
    return mel.unfold(0, WINDOW, STEP).transpose(1, 2)
