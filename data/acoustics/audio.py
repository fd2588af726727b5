"""Waveforms and mel spectrograms in torch; the only module that imports torchaudio.

`MelSettings` and `log_mel` belong to the built-in family. `mel_power`, `prompt_mel` and `kaldi_filterbank` are the
features of published models; they work in pieces, so an hour of audio needs little more memory than its mel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr
import torch
import torch.nn.functional as F
import torchaudio.compliance.kaldi as kaldi
import torchaudio.functional as AF

from config.errors import UserError
from data.sound_files import read_samples, trim

PIECE = 6000  # frames of a spectrum in memory
SILENCE = 1e-4  # a recording with a peak below -80 dB has no voice


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


def read(path: str | Path | BinaryIO, name: str | Path = "") -> tuple[torch.Tensor, int]:
    """Read a sound file as mono waveform (S,) float32 in [-1, 1], and its sample rate in Hz.

    `name` stands for an open file in error messages.
    """
    samples, rate = read_samples(path, name)
    return torch.from_numpy(samples), rate


def load(path: str | Path, sample_rate: int, trimmed_start_s: float = 0.0, trimmed_end_s: float = 0.0) -> torch.Tensor:
    """Read a sound file as mono waveform (S,) float32 in [-1, 1] at `sample_rate` Hz, without so much of its ends."""
    samples, rate = read_samples(path)
    if trimmed_start_s or trimmed_end_s:
        samples = trim(samples, rate, trimmed_start_s, trimmed_end_s)
    return resample(torch.from_numpy(samples), rate, sample_rate)


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
    """Resampling of (S,) as by librosa: soxr, quality HQ, to ceil(S * target_rate / source_rate) samples.

    Chatterbox and IndexTTS2 read every clip so. A tone at 1.05 times the new Nyquist frequency is 130 dB lower.
    """
    if source_rate == target_rate:
        return waveform
    resampled = torch.from_numpy(soxr.resample(waveform.cpu().numpy(), source_rate, target_rate, quality="HQ"))
    length = -(-len(waveform) * target_rate // source_rate)
    return F.pad(resampled, (0, max(0, length - len(resampled))))[:length].to(waveform.device)


def resample_windowed_sinc(waveform: torch.Tensor, source_rate: int, target_rate: int) -> torch.Tensor:
    """Resampling of (..., S) by torchaudio's default filter, of six zero crossings under a Hann window.

    A tone just above the new Nyquist frequency comes back at -10 dB. Only for the steps that the published code takes
    with it: 24 to 16 kHz in S3Gen, 22.05 to 16 kHz in IndexTTS2.
    """
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
    # The reflection at the ends needs these samples.
    short = max(0, settings.n_fft // 2 + 1 - waveform.shape[-1])
    spectrum = torch.stft(
        torch.nn.functional.pad(waveform, (0, short)), settings.n_fft, settings.hop_length, settings.win_length,
        window, center=True, return_complex=True,
    ).abs()[..., :frames]
    filters = mel_filterbank(settings).to(waveform.device)
    return torch.log(torch.clamp(filters.T @ spectrum, min=settings.floor))


@lru_cache(maxsize=8)
def _inverse_filterbank(settings: MelSettings) -> torch.Tensor:
    return torch.linalg.pinv(mel_filterbank(settings).T)


def magnitude(mel: torch.Tensor, settings: MelSettings, n_iter: int = 20) -> torch.Tensor:
    """Magnitudes of the short-time spectrum (B, n_fft // 2 + 1, F) of a log-mel (B, n_mels, F).

    The pseudo-inverse of the filterbank, refined by multiplicative non-negative least squares (Lee and Seung 2001).
    """
    target = torch.exp(mel)
    filters = mel_filterbank(settings).to(mel.device)
    magnitudes = torch.clamp(_inverse_filterbank(settings).to(mel.device) @ target, min=1e-6)
    correlation = filters @ target
    for _ in range(n_iter):
        magnitudes = magnitudes * correlation / (filters @ (filters.T @ magnitudes) + 1e-8)
    return magnitudes


def require_samples(waveform: torch.Tensor, least: int, sample_rate: int) -> None:
    """Refuse a waveform (S,) of fewer than `least` samples, or with a sample that is not finite."""
    assert waveform.ndim == 1, f"one mono clip is wanted, not {tuple(waveform.shape)}"
    if len(waveform) < least:
        raise UserError(
            f"The clip has {len(waveform)} samples at {sample_rate} Hz; at least {least} are needed.",
            "Give a longer recording.",
        )
    if not bool(torch.isfinite(waveform).all()):
        raise UserError("The clip holds samples that are not finite numbers.", "Record or convert it again.")


def require_sound(waveform: torch.Tensor) -> None:
    """Refuse a waveform (S,) that is silent from end to end."""
    peak = float(waveform.abs().max())
    if peak < SILENCE:
        raise UserError(
            f"The clip is silent: its largest sample is {peak:.1e} of full scale.",
            "Give a recording in which the voice is heard.",
        )


def trim_silence(waveform: torch.Tensor, below_db: float = 20.0) -> torch.Tensor:
    """Cut the ends of (S,) that are `below_db` dB or more under the loudest frame; as librosa's `effects.trim`.

    Frames of 2048 samples, one each 512, centred on their first sample's place, zeros outside the clip.
    """
    frame, hop = 2048, 512
    frames = len(waveform) // hop + 1
    blocks = frame // hop
    padded = F.pad(waveform, (frame // 2, frame // 2))[:(frames + blocks - 1) * hop]
    energy = padded.view(-1, hop).square().sum(1)  # (frames + 3,)
    power = (energy.unfold(0, blocks, 1).sum(1) / frame).clamp(min=1e-10)  # (frames,)
    loud = torch.nonzero(power > power.max() * 10 ** (-below_db / 10))[:, 0]
    return waveform[int(loud[0]) * hop:(int(loud[-1]) + 1) * hop]


@lru_cache(maxsize=8)
def slaney_filters(sample_rate: int, n_fft: int, n_mels: int, f_max: float) -> torch.Tensor:
    """Triangular filters of equal area from 0 to `f_max` Hz, (n_mels, n_fft // 2 + 1), float32.

    Computed in float64, as librosa does for the published models; `mel_filterbank`, in float32, is less exact.
    The scale (Slaney 1998, Auditory Toolbox) is linear up to 1000 Hz and logarithmic above.
    """
    linear, step = 200 / 3, math.log(6.4) / 27  # Hz a mel below 1000 Hz; log of the ratio a mel above
    top = f_max / linear if f_max < 1000 else 15 + math.log(f_max / 1000) / step
    mels = np.linspace(0, top, n_mels + 2)
    edges = np.where(mels < 15, mels * linear, 1000 * np.exp((mels - 15) * step))  # Hz, (n_mels + 2,)
    bins = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)  # Hz
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return torch.from_numpy((np.clip(np.minimum(rising, falling), 0, None) * area[:, None]).astype(np.float32))


def _spectra(padded: torch.Tensor, window: torch.Tensor, hop_length: int) -> Iterator[torch.Tensor]:
    """The short-time spectrum of (B, S) in pieces (B, n_fft // 2 + 1, at most PIECE) complex, in order."""
    n_fft = len(window)
    frames = (padded.shape[-1] - n_fft) // hop_length + 1
    for start in range(0, frames, PIECE):
        end = min(start + PIECE, frames)
        piece = padded[..., start * hop_length:(end - 1) * hop_length + n_fft]
        yield torch.stft(piece, n_fft, hop_length, window=window, center=False, return_complex=True)


def mel_power(waveform: torch.Tensor, filters: torch.Tensor, window: torch.Tensor, hop_length: int) -> torch.Tensor:
    """Mel power of (B, S), reflected at its ends by half a window: (B, n_mels, F), F = S // hop_length + 1.

    `filters` (n_mels, n_fft // 2 + 1); `window` (n_fft,); S must exceed n_fft // 2.
    """
    padded = F.pad(waveform, (len(window) // 2, len(window) // 2), mode="reflect")
    return torch.cat([filters @ piece.abs().square() for piece in _spectra(padded, window, hop_length)], dim=-1)


def prompt_mel(waveform: torch.Tensor, sample_rate: int = 24000, n_fft: int = 1920, hop_length: int = 480,
               f_max: float = 8000.0) -> torch.Tensor:
    """Natural logarithm of the mel amplitude of (B, S): (B, 80, F), F = S // hop_length.

    The mel of HiFi-GAN and Matcha-TTS (`mel_spectrogram`). The defaults are what CosyVoice 2's flow takes and HiFT
    makes: 24 kHz, 50 frames a second, 0 to 8000 Hz.
    """
    edge = (n_fft - hop_length) // 2
    for row in waveform:
        require_samples(row, edge + 1, sample_rate)
    filters = slaney_filters(sample_rate, n_fft, 80, f_max).to(waveform.device)
    window = torch.hann_window(n_fft, device=waveform.device)
    padded = F.pad(waveform, (edge, edge), mode="reflect")
    pieces = [filters @ (piece.abs().square() + 1e-9).sqrt() for piece in _spectra(padded, window, hop_length)]
    return torch.cat(pieces, dim=-1).clamp(min=1e-5).log()


def kaldi_filterbank(waveform: torch.Tensor, n_mels: int = 80) -> torch.Tensor:
    """Kaldi's log filterbank of (S,) at 16 kHz: (F, n_mels), 25 ms windows each 10 ms, F = (S - 400) // 160 + 1."""
    window, hop_length = 400, 160
    require_samples(waveform, window, 16000)
    frames = (len(waveform) - window) // hop_length + 1
    return torch.cat([
        kaldi.fbank(
            waveform[None, start * hop_length:(min(start + PIECE, frames) - 1) * hop_length + window],
            num_mel_bins=n_mels, dither=0.0, sample_frequency=16000,
        )
        for start in range(0, frames, PIECE)
    ])
