"""Waveforms in and out, log-mel spectrograms and Griffin-Lim; the only module that imports torchaudio.

Every rate is stated once, in `MelSettings`. A file that is not audio raises `UserError` naming it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio.functional as AF

from config.errors import UserError


@dataclass(frozen=True)
class MelSettings:
    """A log-mel spectrogram: `frame_rate = sample_rate / hop_length` frames a second."""

    sample_rate: int = 16000  # Hz
    n_fft: int = 1024  # samples
    win_length: int = 800  # samples
    hop_length: int = 160  # samples
    n_mels: int = 80
    f_min: float = 0.0  # Hz
    f_max: float = 8000.0  # Hz
    floor: float = 1e-4  # smallest mel amplitude before the logarithm


def read(path: str | Path) -> tuple[torch.Tensor, int]:
    """Read a sound file as mono waveform (S,) float32 in [-1, 1], and its sample rate in Hz."""
    try:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(
            f"{path} could not be read as audio: {error}.",
            "Give a WAV, FLAC, OGG, Opus or MP3 file; convert others with ffmpeg.",
        ) from error
    if samples.shape[0] == 0:
        raise UserError(f"{path} holds no samples.", "Remove the clip or record it again.")
    return torch.from_numpy(samples.mean(axis=1)), rate


def load(path: str | Path, sample_rate: int) -> torch.Tensor:
    """Read a sound file as mono waveform (S,) float32 in [-1, 1] at `sample_rate` Hz."""
    waveform, rate = read(path)
    return resample(waveform, rate, sample_rate)


def save(path: str | Path, waveform: torch.Tensor, sample_rate: int) -> None:
    """Write waveform (S,) as 16-bit WAV, clipped to [-1, 1]."""
    try:
        soundfile.write(str(path), to_numpy(waveform), sample_rate, subtype="PCM_16")
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{path} could not be written: {error}.", "Free space on the disk, then try again.") from error


def to_numpy(waveform: torch.Tensor) -> np.ndarray:
    """Waveform (S,) as float32 numpy in [-1, 1]."""
    return waveform.detach().float().clamp(-1, 1).cpu().numpy()


def resample(waveform: torch.Tensor, source_rate: int, target_rate: int) -> torch.Tensor:
    """Band-limited resampling of (..., S) from `source_rate` to `target_rate`, both in Hz."""
    if source_rate == target_rate:
        return waveform
    return AF.resample(waveform, source_rate, target_rate)


@lru_cache(maxsize=8)
def mel_filterbank(settings: MelSettings) -> torch.Tensor:
    """Slaney-normalised triangular filters, (n_fft // 2 + 1, n_mels)."""
    return AF.melscale_fbanks(
        settings.n_fft // 2 + 1, settings.f_min, settings.f_max,
        settings.n_mels, settings.sample_rate, norm="slaney", mel_scale="slaney",
    )


def log_mel(waveform: torch.Tensor, settings: MelSettings) -> torch.Tensor:
    """Natural logarithm of the mel amplitude of (B, S): (B, n_mels, F), F = S // hop_length + 1."""
    window = torch.hann_window(settings.win_length, device=waveform.device)
    frames = waveform.shape[-1] // settings.hop_length + 1
    short = max(0, settings.n_fft // 2 + 1 - waveform.shape[-1])  # reflecting at the ends needs so many samples
    spectrum = torch.stft(
        torch.nn.functional.pad(waveform, (0, short)), settings.n_fft, settings.hop_length, settings.win_length,
        window, center=True, return_complex=True,
    ).abs()[..., :frames]
    filters = mel_filterbank(settings).to(waveform.device)
    return torch.log(torch.clamp(filters.T @ spectrum, min=settings.floor))


def griffin_lim(mel: torch.Tensor, settings: MelSettings, n_iter: int = 32) -> torch.Tensor:
    """Waveform (B, (F - 1) * hop_length) of a log-mel (B, n_mels, F), deterministic.

    The magnitude is the pseudo-inverse of the filterbank refined by multiplicative
    non-negative least squares (Lee and Seung 2001), the phase by fast Griffin-Lim
    (Perraudin et al. 2013) from zero phase.
    """
    window = torch.hann_window(settings.win_length, device=mel.device)
    frames = mel.shape[-1]
    short = max(0, settings.n_fft // (2 * settings.hop_length) + 2 - frames)  # as in `log_mel`
    padded = torch.nn.functional.pad(mel.float(), (0, short), value=math.log(settings.floor))
    waveform = AF.griffinlim(
        _magnitude(padded, settings), window, settings.n_fft, settings.hop_length,
        settings.win_length, power=1.0, n_iter=n_iter, momentum=0.99, length=None, rand_init=False,
    )
    return waveform[..., :(frames - 1) * settings.hop_length]


@lru_cache(maxsize=8)
def _inverse_filterbank(settings: MelSettings) -> torch.Tensor:
    return torch.linalg.pinv(mel_filterbank(settings).T)


def _magnitude(mel: torch.Tensor, settings: MelSettings, n_iter: int = 20) -> torch.Tensor:
    target = torch.exp(mel)
    filters = mel_filterbank(settings).to(mel.device)
    magnitude = torch.clamp(_inverse_filterbank(settings).to(mel.device) @ target, min=1e-6)
    for _ in range(n_iter):
        magnitude = magnitude * (filters @ target) / (filters @ (filters.T @ magnitude) + 1e-8)
    return magnitude
