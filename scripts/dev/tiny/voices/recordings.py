"""Recordings of people and of other synthesizers, to train the codec and the vocoder with: no texts, no times.

A folder has a sub-folder for each reader with sound files. Readers are what is scarce, so each recording also serves
at other speeds of playback: pitch and resonances shift together, as between readers, while the frames of the mel keep
their times, because the hop is scaled with the speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import torch.nn.functional as F

from data.acoustics.audio import MelSettings, log_mel, mel_filterbank, resample_windowed_sinc
from models.phonetic_encoder import losses
from models.phonetic_encoder.encoder import WIDTH, PhoneticEncoder
from scripts.dev.tiny.voices.codec import normalise_level

SETTINGS = MelSettings()
HOPS = (160, 136, 148, 172)  # samples; the pitch is shifted by 160 / hop
CONTENT_LAYER = 4  # of the phonetic encoder
HIGHEST_HZ, LOWEST_HZ = 500.0, 60.0  # of the pitch
_WINDOW = 400  # samples of YIN's difference function
_LAGS = int(SETTINGS.sample_rate / LOWEST_HZ) + 2
_APERIODICITY = 0.2
PIECE = 6000  # frames that are analysed at a time


@dataclass(frozen=True)
class Recordings:
    """Clips end to end in one tensor of each kind; clip i begins at frame `starts[i]` and has `lengths[i]` frames.

    Frames of a clip are a multiple of four. Frame f is centred on sample 160 f of `waveform`.
    """

    waveform: torch.Tensor  # (samples,) float16
    mels: torch.Tensor  # (len(HOPS), frames, n_mels) float16: log-mel
    content: torch.Tensor  # (frames / 2, 512) float16: the phonetic encoder's states, standardised
    log_f0: torch.Tensor  # (frames,) float16: natural logarithm of Hz, interpolated where unvoiced
    voiced: torch.Tensor  # (frames,) bool
    starts: torch.Tensor  # (clips,)
    lengths: torch.Tensor  # (clips,)
    readers: torch.Tensor  # (clips,) index into `names`
    names: tuple[str, ...]


def read_folder(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Reader and waveform (S,) at 16 kHz of every recording, sorted by name, silence at the ends cut to 0.1 s."""
    paths = sorted(path for path in folder.glob("*/*") if path.suffix in (".ogg", ".wav", ".flac"))
    with ThreadPoolExecutor() as pool:
        for path, waveform in zip(paths, pool.map(_read, paths), strict=True):
            if len(waveform) >= SETTINGS.sample_rate // 2:
                yield path.parent.name, waveform


def _read(path: Path) -> np.ndarray:
    waveform, rate = soundfile.read(path, dtype="float32")
    if rate != SETTINGS.sample_rate:
        raise ValueError(f"{path} has {rate} Hz; {SETTINGS.sample_rate} Hz are expected.")
    powers = np.square(waveform[: len(waveform) // 160 * 160].reshape(-1, 160)).mean(1)
    loud = np.flatnonzero(powers > powers.max() * 10 ** (-35 / 10)) if len(powers) else np.zeros(0, int)
    if not len(loud):
        return np.zeros(0, np.float32)
    return waveform[max(0, loud[0] - 10) * 160 : (loud[-1] + 11) * 160]


def prepare(clips: Iterable[tuple[str, np.ndarray]], encoder: PhoneticEncoder | None, device: torch.device,
            hops: tuple[int, ...] = HOPS) -> Recordings:
    """Mel at every hop, states of `encoder` (zero without it) and pitch of all clips, on `device`.

    Clips are joined end to end first: their ends are silent, so neighbours hardly mix, and the work is a few hundred
    large batches instead of thousands of small ones.
    """
    names: list[str] = []
    parts, readers, lengths = [], [], []
    for reader, samples in clips:
        if reader not in names:
            names.append(reader)
        whole = len(samples) // (4 * SETTINGS.hop_length) * 4
        waveform = normalise_level(torch.from_numpy(samples))[: whole * SETTINGS.hop_length]
        parts.append((waveform / max(1.0, float(waveform.abs().max()))).half())
        readers.append(names.index(reader))
        lengths.append(whole)
    joined = torch.cat(parts).to(device)
    total = len(joined) // SETTINGS.hop_length

    mels, log_f0, voiced = [], [], []
    margin = 20  # frames on either side, which are computed and dropped
    padded = F.pad(joined, (margin * SETTINGS.hop_length, margin * SETTINGS.hop_length))
    for start in range(0, total, PIECE):
        frames = min(PIECE, total - start)
        piece = padded[start * SETTINGS.hop_length : (start + frames + 2 * margin) * SETTINGS.hop_length].float()
        inside = slice(margin, margin + frames)
        mels.append(torch.stack([shifted_mel(piece, hop)[inside] for hop in hops]).half())
        frequency, periodic = pitch(piece, frames + 2 * margin)
        log_f0.append(frequency[inside])
        voiced.append(periodic[inside])

    counts = torch.tensor(lengths, device=device)
    starts = torch.cumsum(counts, 0) - counts
    states = content_states(joined, encoder) if encoder else joined.new_zeros(1, WIDTH)
    return Recordings(joined, torch.cat(mels, 1), states, torch.cat(log_f0), torch.cat(voiced),
                      starts, counts, torch.tensor(readers, device=device), tuple(names))


@torch.inference_mode()
def content_states(waveform: torch.Tensor, encoder: PhoneticEncoder, window_s: float = 10.24,
                   batch_size: int = 32) -> torch.Tensor:
    """the phonetic encoder's states of waveform (S,), standardised in each dimension: (S // 320, 512) float16."""
    size = int(window_s * SETTINGS.sample_rate)
    windows = F.pad(waveform, (0, -len(waveform) % size)).view(-1, size)
    states = torch.cat([
        losses.states(encoder, losses.whisper_mel(batch.float()), CONTENT_LAYER)[-1].half().flatten(0, 1)
        for batch in windows.split(batch_size)
    ])[: len(waveform) // 320]
    sample = states[:: max(1, len(states) // 20000)].float()
    mean, std = sample.mean(0), sample.std(0)
    for part in states.split(100000):  # in place: the states are the largest tensor
        part.copy_((part.float() - mean) / std)
    return states


def shifted_mel(waveform: torch.Tensor, hop: int) -> torch.Tensor:
    """Log-mel (F, n_mels) of (S,) as if played 160 / `hop` times faster, one frame every 10 ms of the original."""
    common = math.gcd(hop, SETTINGS.hop_length)
    played = waveform if hop == SETTINGS.hop_length else resample_windowed_sinc(
        waveform, SETTINGS.hop_length // common, hop // common)
    if hop == SETTINGS.hop_length:
        return log_mel(played[None], SETTINGS)[0].T

    # Every `hop` samples of the resampled waveform are 160 samples, 10 ms, of the original.
    window = torch.hann_window(SETTINGS.win_length, device=waveform.device)
    spectrum = torch.stft(played, SETTINGS.n_fft, hop, SETTINGS.win_length, window, return_complex=True).abs()
    filters = mel_filterbank(SETTINGS).to(waveform.device)
    return torch.log((filters.T @ spectrum).clamp(min=SETTINGS.floor)).T


def pitch(waveform: torch.Tensor, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Natural logarithm of F0 in Hz (F,), interpolated where unvoiced, and voicing (F,), by YIN.

    de Cheveigné and Kawahara 2002; frame f is centred on sample 160 f.
    """
    size = _WINDOW + _LAGS + 1
    padded = F.pad(waveform, (size // 2, size + SETTINGS.hop_length))
    segments = padded.unfold(0, size, SETTINGS.hop_length)[:frames]
    transform = 1 << (size + _WINDOW).bit_length()
    head = torch.fft.rfft(segments[:, :_WINDOW], transform)
    correlation = torch.fft.irfft(torch.fft.rfft(segments, transform) * head.conj(), transform)[:, : _LAGS + 1]
    energy = F.pad(segments.double().square().cumsum(1), (1, 0))
    lags = torch.arange(_LAGS + 1, device=waveform.device)
    power = (energy[:, lags + _WINDOW] - energy[:, lags]).float()
    difference = (power[:, :1] + power - 2 * correlation).clamp(min=0)
    mean = difference[:, 1:].cumsum(1) / lags[1:]
    normalised = F.pad(difference[:, 1:] / mean.clamp(min=1e-12), (1, 0), value=1.0)

    # The smallest lag at a local minimum below the threshold; without one the frame is unvoiced.
    inner = normalised[:, 1:-1]
    minima = (inner < _APERIODICITY) & (inner <= normalised[:, :-2]) & (inner < normalised[:, 2:])
    minima[:, : int(SETTINGS.sample_rate / HIGHEST_HZ) - 1] = False
    voiced = minima.any(1) & (power[:, 0] > power[:, 0].max() * 1e-4)
    lag = minima.int().argmax(1).clamp(min=1).float() + 1
    log_f0 = torch.log(SETTINGS.sample_rate / lag)

    known = voiced.nonzero()[:, 0].cpu().numpy()
    if len(known) == 0:
        return torch.full((frames,), math.log(120.0), device=waveform.device), voiced
    curve = np.interp(np.arange(frames), known, log_f0[voiced].cpu().numpy())
    return torch.from_numpy(curve).float().to(waveform.device), voiced
