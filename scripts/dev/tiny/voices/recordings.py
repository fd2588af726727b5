"""Recordings of people and of other synthesizers, to train the codec and the vocoder with.

A folder has a sub-folder for each reader with sound files, and with `phones.csv` if their words are known. Readers are
what is scarce, so each recording also serves at one other speed of playback: pitch and resonances shift together, as
between readers, while the frames of the mel keep their times, because the hop is scaled with the speed.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from config.errors import UserError
from data.acoustics.audio import MelSettings, log_mel, mel_filterbank, resample_windowed_sinc
from models import weights
from models.phonetic_encoder.encoder import log_mel as whisper_log_mel
from scripts.dev.tiny.voices import phones
from scripts.dev.tiny.voices.codec import normalise_level
from scripts.dev.tiny.voices.features import FRAMES_PER_CODE, SpeechFeatures

SETTINGS = MelSettings()
HOPS = (128, 136, 148, 172, 188)  # samples; the pitch is shifted by 160 / hop
SHARD = 100  # clips of a reader in a file
JOINED = {"waveform": 0, "mels": 1, "features": 1, "levels": 1, "lengths": 0, "hops": 0}  # dimension of the clips
HIGHEST_HZ, LOWEST_HZ = 500.0, 60.0  # of the pitch
_WINDOW = 400  # samples of YIN's difference function
_LAGS = int(SETTINGS.sample_rate / LOWEST_HZ) + 2
_APERIODICITY = 0.2
PIECE = 6000  # frames that are analysed at a time


@dataclass(frozen=True)
class Recordings:
    """Clips end to end in one tensor of each kind; clip i begins at frame `starts[i]` and has `lengths[i]` frames.

    Frames of a clip are a multiple of four. Version 0 of a clip is the recording, version 1 is played at another speed.
    """

    waveform: torch.Tensor  # (160 * frames,) float16; frame f is centred on sample 160 f
    mels: torch.Tensor  # (2, frames, n_mels) float16: log-mel
    features: torch.Tensor  # (2, frames / 4, FEATURES) float16: see `SpeechFeatures`
    levels: torch.Tensor  # (2, clips, 2): mean and deviation of log F0
    starts: torch.Tensor  # (clips,)
    lengths: torch.Tensor  # (clips,)
    hops: torch.Tensor  # (clips,) samples: of version 1
    readers: torch.Tensor  # (clips,) index into `names`
    names: tuple[str, ...]
    phones: tuple[str, ...]  # (clips,) "" if unknown

    def clip_features(self, version: int, clip: int) -> torch.Tensor:
        """Features (U, FEATURES) of a clip."""
        start, length = int(self.starts[clip]) // FRAMES_PER_CODE, int(self.lengths[clip]) // FRAMES_PER_CODE
        return self.features[version, start : start + length]


def read(path: Path) -> np.ndarray:
    """Waveform (S,) at 16 kHz, silence at the ends cut to 0.1 s."""
    waveform, rate = soundfile.read(path, dtype="float32")
    if rate != SETTINGS.sample_rate:
        raise ValueError(f"{path} has {rate} Hz; {SETTINGS.sample_rate} Hz are expected.")
    powers = np.square(waveform[: len(waveform) // 160 * 160].reshape(-1, 160)).mean(1)
    loud = np.flatnonzero(powers > powers.max() * 10 ** (-35 / 10)) if len(powers) else np.zeros(0, int)
    if not len(loud):
        return np.zeros(0, np.float32)
    return waveform[max(0, loud[0] - 10) * 160 : (loud[-1] + 11) * 160]


def prepare(folder: Path, cache: Path, extractor: SpeechFeatures) -> None:
    """Write the features of all recordings in `folder` to files in `cache`; those that exist are kept.

    The first clips of each reader come first, so that a training can begin before all are there.
    """
    cache.mkdir(parents=True, exist_ok=True)
    shards = []
    for reader in sorted(path for path in folder.iterdir() if path.is_dir()):
        paths = sorted(path for path in reader.iterdir() if path.suffix in (".ogg", ".wav", ".flac"))
        shards += [(start // SHARD, reader.name, paths[start : start + SHARD]) for start in range(0, len(paths), SHARD)]
    for number, reader_name, paths in sorted(shards):
        target = cache / f"{reader_name}-{number:03d}.safetensors"
        if target.is_file():
            continue
        clips, names = [], []
        for path in paths:
            samples = read(path)
            if len(samples) >= SETTINGS.sample_rate // 2:
                clips.append(analyse(samples, random.Random(path.name).choice(HOPS), extractor))
                names.append(path.name)
        if not clips:
            print(f"{target.name}: no clip of half a second or more", flush=True)
            continue
        tensors = {key: torch.cat([clip[key] for clip in clips], dimension) for key, dimension in JOINED.items()}
        partial = target.with_suffix(".partial")
        save_file(tensors, partial, metadata={"names": json.dumps(names)})
        partial.rename(target)
        print(f"prepared {target.name}", flush=True)


def analyse(samples: np.ndarray, hop: int, extractor: SpeechFeatures) -> dict[str, torch.Tensor]:
    """What `JOINED` names, of one recording (S,) and of the same played 160 / `hop` times faster."""
    frames = len(samples) // (FRAMES_PER_CODE * SETTINGS.hop_length) * FRAMES_PER_CODE
    waveform = normalise_level(torch.from_numpy(samples))[: frames * SETTINGS.hop_length]
    waveform = waveform / max(1.0, float(waveform.abs().max()))
    mels = torch.stack([shifted_mel(waveform, step)[:frames] for step in (SETTINGS.hop_length, hop)])
    # The last frames of the faster copy may lie beyond its samples.
    played = [F.pad(play_faster(waveform, step), (0, step)) for step in (SETTINGS.hop_length, hop)]
    features = [extractor(mel.T, whisper_log_mel(samples_of_version, step)[:, :frames])
                for mel, samples_of_version, step in zip(mels, played, (SETTINGS.hop_length, hop), strict=True)]
    return {"waveform": waveform.half(), "mels": mels.half(),
            "features": torch.stack([values for values, _ in features]).half(),
            "levels": torch.stack([level for _, level in features])[:, None],
            "lengths": torch.tensor([frames]), "hops": torch.tensor([hop])}


def load(folder: Path, cache: Path, device: torch.device) -> Recordings:
    """All recordings of `folder` that `prepare` wrote to `cache`."""
    files = sorted(cache.glob("*.safetensors"))
    if not files:
        raise UserError(f"{cache} has no prepared recordings.", "Run the stage `prepare` first.")
    readers_of_files = [path.stem.rpartition("-")[0] for path in files]
    shards = [weights.read(path) for path in files]
    known_phones: list[str] = []
    for path, reader in zip(files, readers_of_files, strict=True):
        table = phones.read_table(folder / reader)
        with weights.open_safetensors(path) as file:
            known_phones += [table.get(name, "") for name in json.loads(file.metadata()["names"])]

    names = tuple(dict.fromkeys(readers_of_files))
    readers = torch.cat([torch.full_like(shard["lengths"], names.index(reader))
                         for reader, shard in zip(readers_of_files, shards, strict=True)])
    tensors = {key: torch.cat([shard[key] for shard in shards], dimension).to(device)
               for key, dimension in JOINED.items()}
    return Recordings(**tensors, starts=tensors["lengths"].cumsum(0) - tensors["lengths"], readers=readers.to(device),
                      names=names, phones=tuple(known_phones))


def pitches(waveform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log F0 and voicing of each frame (F,) of a long waveform (160 F,), see `pitch`."""
    total, margin = len(waveform) // SETTINGS.hop_length, 20  # frames on either side, which are computed and dropped
    padded = F.pad(waveform, (margin * SETTINGS.hop_length, margin * SETTINGS.hop_length))
    log_f0, voiced = [], []
    for start in range(0, total, PIECE):
        frames = min(PIECE, total - start)
        piece = padded[start * SETTINGS.hop_length : (start + frames + 2 * margin) * SETTINGS.hop_length].float()
        frequency, periodic = pitch(piece, frames + 2 * margin)
        log_f0.append(frequency[margin : margin + frames])
        voiced.append(periodic[margin : margin + frames])
    return torch.cat(log_f0), torch.cat(voiced)


def play_faster(waveform: torch.Tensor, hop: int) -> torch.Tensor:
    """Waveform (S,) played 160 / `hop` times faster: (S * hop / 160,)."""
    if hop == SETTINGS.hop_length:
        return waveform
    common = math.gcd(hop, SETTINGS.hop_length)
    return resample_windowed_sinc(waveform, SETTINGS.hop_length // common, hop // common)


def shifted_mel(waveform: torch.Tensor, hop: int) -> torch.Tensor:
    """Log-mel (F, n_mels) of (S,) as if played 160 / `hop` times faster, one frame every 10 ms of the original."""
    played = play_faster(waveform, hop)
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
