"""Sound files as numpy: read, cut, repaired, resampled and written by soundfile and soxr. Never loads torch.

A long recording is read in order in blocks and never sought in, since not every compressed file can be sought to the
sample; memory does not grow with its length. A file that is not audio raises `UserError` naming it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from config import confinement
from config.errors import UserError
from data.measures import Measures, Samples, gain_to, integrated_loudness

VOICE_RATE = 16000  # Hz: of the copy of a recording in which voices are detected, and of its noise
_BLOCK_S = 20.0
_CUT_AS = {"PCM_S8": "int16", "PCM_U8": "int16", "PCM_16": "int16", "PCM_24": "int32", "PCM_32": "int32"}


def read_samples(path: str | Path | BinaryIO, name: str | Path = "") -> tuple[np.ndarray, int]:
    """A sound file as mono waveform (S,) float32 in [-1, 1], and its sample rate in Hz; `name` is for an open file."""
    try:
        if isinstance(path, str | Path):
            name = path
            with confinement.verified(path) as source:
                samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
        else:
            samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(name, error) from error
    if samples.shape[0] == 0:
        raise UserError(f"{name} holds no samples.", "Remove the clip or record it again.")
    _require_finite(samples, name, 0, rate)
    return samples.mean(axis=1), rate


def file_duration(path: str | Path) -> float:
    """Duration of a sound file in seconds, by its header."""
    return duration_and_rate(path)[0]


_ROUNDING_S = 2.0  # that a last part may end behind its recording: subtitles stay for a while


def cut_to_flac(path: str | Path, begin_s: float, end_s: float | None) -> tuple[bytes, int]:
    """The part of a sound file from `begin_s` to `end_s` (None: its end), as the bytes of a FLAC file.

    Rate and channels stay, and 16 bits a sample if the file has no more: the same part always has the same bytes. The
    second value is how many samples were above full scale, which FLAC cannot hold, and were cut to it.
    """
    try:
        with confinement.verified(path) as source, soundfile.SoundFile(source) as file:
            begin = round(begin_s * file.samplerate)
            end = file.frames if end_s is None else min(file.frames, round(end_s * file.samplerate))
            lasts = file.frames / file.samplerate
            if begin >= end or (end_s is not None and end_s > lasts + _ROUNDING_S):
                which = f"begins at {begin_s:g}" if begin >= end else f"ends at {end_s:g}"
                raise UserError(f"The part {which} s, and {path} lasts {lasts:.1f} s.",
                                "Check that the times belong to this recording, and that they are seconds.")
            file.seek(begin)
            samples = file.read(end - begin, dtype=_CUT_AS.get(file.subtype, "float32"), always_2d=True)
            above = 0
            if samples.dtype == np.float32:
                _require_finite(samples, path, begin, file.samplerate)
                above = int((np.abs(samples) > 1).sum())
            made = io.BytesIO()
            subtype = "PCM_24" if file.subtype in ("PCM_24", "PCM_32", "FLOAT", "DOUBLE") else "PCM_16"
            soundfile.write(made, samples, file.samplerate, format="FLAC", subtype=subtype)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(path, error) from error
    return made.getvalue(), above


def _require_finite(samples: np.ndarray, name: str | Path, start: int, rate: int) -> None:
    """Refuse samples (S, channels) that are no numbers; the first is number `start` of the file."""
    if not np.isfinite(samples).all():
        first_s = (start + int(np.argmin(np.isfinite(samples).all(axis=1)))) / rate
        raise UserError(f"{name} holds samples that are not finite numbers, the first at {first_s:.2f} s.",
                        "Record or convert it again.")


def _unreadable(path: str | Path, error: Exception) -> UserError:
    reason = getattr(error, "error_string", "") or str(error)  # of libsndfile, without the file's name again
    return UserError(
        f"{path} could not be read as audio: {reason.rstrip('.')}.",
        "Give a WAV, FLAC, OGG, Opus or MP3 file; convert others with ffmpeg.",
    )


def encode_flac(waveform: np.ndarray, sample_rate: int) -> bytes:
    """Waveform (S,) as the bytes of a 24-bit FLAC file, clipped to [-1, 1]."""
    target = io.BytesIO()
    soundfile.write(target, np.clip(waveform, -1, 1), sample_rate, format="FLAC", subtype="PCM_24")
    return target.getvalue()


def duration_and_rate(path: str | Path) -> tuple[float, int]:
    """Duration in seconds and sample rate in Hz, by the header."""
    try:
        with confinement.verified(path) as source:
            info = soundfile.info(source)
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:  # UnicodeError: a name that is not UTF-8
        raise _unreadable(path, error) from error
    return float(info.duration), int(info.samplerate)


def read_blocks(path: Path, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order as mono blocks (S,) float32 at its own rate."""
    try:
        with confinement.verified(path) as source, soundfile.SoundFile(source) as file:
            frames = max(1, round(block_s * file.samplerate))
            while len(block := file.read(frames, dtype="float32", always_2d=True)):
                _require_finite(block, path, file.tell() - len(block), file.samplerate)
                yield block.mean(axis=1)
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error


def read_resampled(path: Path, rate: int, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order as mono blocks (S,) float32 at `rate` Hz."""
    _, own = duration_and_rate(path)
    if own == rate:
        yield from read_blocks(path, block_s)
        return
    stream = soxr.ResampleStream(own, rate, 1, dtype="float32", quality="HQ")
    for block in read_blocks(path, block_s):
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def read_spans(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
    """The waveforms (S,) of spans of a recording in seconds, in order and not overlapping, at its own rate."""
    _, rate = duration_and_rate(path)
    wanted = [(round(begin * rate), round(end * rate)) for begin, end in spans]
    held, start, number = list[np.ndarray](), 0, 0
    for block in read_blocks(path):
        held.append(block)
        end = start + sum(map(len, held))
        while number < len(wanted) and wanted[number][1] <= end:
            joined = np.concatenate(held)
            yield joined[wanted[number][0] - start:wanted[number][1] - start]
            number += 1
        keep = wanted[number][0] if number < len(wanted) else end
        while held and start + len(held[0]) <= keep:
            start += len(held.pop(0))
        if number == len(wanted):
            return
    if number < len(wanted) and held:  # the header promised more, or the last span ends with the recording
        yield np.concatenate(held)[max(0, wanted[number][0] - start):]


@dataclass(frozen=True)
class ClipFormat:
    """Format of a clip cut from a recording: `sample_rate` 0 and `lufs` None keep those of the recording."""

    sample_rate: int = 0
    lufs: float | None = -23.0
    denoise: bool = False


def format_clip(samples: np.ndarray, rate: int, finish: ClipFormat, noise: np.ndarray) -> tuple[np.ndarray, int]:
    """A clip (S,) at `rate` Hz in its final format, and its rate; `noise` at `VOICE_RATE` is the noise profile."""
    if finish.denoise and len(noise) >= VOICE_RATE // 4 and len(samples):
        samples = _without_noise(samples, rate, noise)
    wanted = finish.sample_rate or rate
    if wanted != rate:
        samples = soxr.resample(samples, rate, wanted, quality="VHQ").astype(np.float32)
    return (samples if finish.lufs is None else at_loudness(samples, wanted, finish.lufs)), wanted


def write_denoised(path: Path, noise: np.ndarray, target: Path) -> None:
    """A copy of a recording at `VOICE_RATE` without its noise, whose profile is `noise` (S,) at that rate."""
    with soundfile.SoundFile(str(target), "w", VOICE_RATE, 1, "FLOAT", format="WAV") as file:
        for block in read_resampled(path, VOICE_RATE):
            file.write(_without_noise(block, VOICE_RATE, noise) if len(block) else block)


def at_loudness(samples: np.ndarray, rate: int, lufs: float) -> np.ndarray:
    """The clip at this loudness, or as near as its peak allows; silence stays."""
    measured = integrated_loudness(samples, rate)
    if measured is None:
        return samples
    return (samples * gain_to(lufs, measured, float(np.abs(samples).max()))).astype(np.float32)


def _without_noise(samples: np.ndarray, rate: int, noise: np.ndarray) -> np.ndarray:
    import noisereduce  # slow import

    profile = soxr.resample(noise, VOICE_RATE, rate, quality="HQ") if rate != VOICE_RATE else noise
    made = noisereduce.reduce_noise(y=samples, sr=rate, y_noise=profile, stationary=True, prop_decrease=0.9)
    return np.asarray(made, dtype=np.float32)


EDGE_SILENCE_S = 0.2  # at each end
TRIM, LEVEL = "trim", "level"
_FADE_S = 0.005


def repair(waveform: Samples, sample_rate: int, measures: Measures, fixes: Sequence[str],
           target_lufs: float) -> Samples:
    """(S,) with `fixes` applied: `trim` to 0.2 s of silence at each end, `level` to `target_lufs` or near it."""
    if TRIM in fixes:
        waveform = _trimmed(waveform, sample_rate, measures)
    if LEVEL in fixes and measures.level_lufs is not None:
        waveform = waveform * np.float32(gain_to(target_lufs, measures.level_lufs, float(np.abs(waveform).max())))
    return waveform.astype(np.float32)


def _trimmed(waveform: Samples, sample_rate: int, measures: Measures) -> Samples:
    begin = max(0, round((measures.silence_start_s - EDGE_SILENCE_S) * sample_rate))
    end = len(waveform) - max(0, round((measures.silence_end_s - EDGE_SILENCE_S) * sample_rate))
    cut = waveform[begin:end].copy()
    fade = np.linspace(0, 1, max(1, round(_FADE_S * sample_rate)), dtype=np.float32)[:len(cut)]
    if begin:
        cut[:len(fade)] *= fade
    if end < len(waveform):
        cut[len(cut) - len(fade):] *= fade[::-1]
    return cut
